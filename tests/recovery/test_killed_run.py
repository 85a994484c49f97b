"""A rank that dies in its second save leaves the first one, or both."""

import pytest
import torch
from small_training import build, train

import labkit as lab
from labkit.recovery import checkpoint, killed_run


def saved_twice(folder, moment):
    net, optimizer = build("ddp")
    killed_run.die_in_save(moment)
    for step in (1, 2):
        train(net, optimizer, [step])
        checkpoint.save(folder, step, net, optimizer)


@pytest.mark.parametrize(
    ("moment", "steps"), [("fsync", [1]), ("rename", [1]), ("renamed", [2, 1])]
)
def test_only_after_the_rename_there_is_a_second_checkpoint(tmp_path, moment, steps):
    with pytest.raises(lab.RankFailed, match="rank 0 was killed by SIGKILL"):
        lab.launch(saved_twice, tmp_path, moment, ranks=2, backend="gloo", timeout_s=40)
    left = checkpoint.checkpoints(tmp_path)
    assert [checkpoint.about(path)["step"] for path in left] == steps
    assert [checkpoint.fault(path) for path in left] == ["" for _ in steps]
    drafts = list(tmp_path.glob(".*-step-2"))
    assert len(drafts) == 2 - len(steps)


@pytest.mark.parametrize(("moment", "number"), [("open", 1), ("fsync", 0)])
def test_a_moment_that_no_save_has_is_refused(moment, number):
    with pytest.raises(
        ValueError, match="a moment of a save is one of fsync, rename, renamed, half-way"
    ):
        killed_run.die_in_save(moment, number)


def overwritten(file):
    killed_run.die_in_save("half-way", number=3)
    torch.save({"step": 1}, file)
    torch.save({"step": 1}, file.with_name("another"))
    torch.save({"step": 2}, file)


def test_who_is_killed_half_way_through_an_overwrite_leaves_nothing_to_read(tmp_path):
    file = tmp_path / "last.pt"
    with pytest.raises(lab.RankFailed, match="rank 0 was killed by SIGKILL"):
        lab.launch(overwritten, file, ranks=1, backend="gloo", timeout_s=40)
    assert torch.load(file.with_name("another")) == {"step": 1}
    with pytest.raises(RuntimeError, match="zip archive"):
        torch.load(file)


def twice_in_place(folder):
    import torch.distributed as dist

    for step in (1, 2):
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save({"step": step}, folder / "last.pt")
    dist.barrier()


def twice_in_a_draft(folder):
    net, optimizer = build("ddp")
    for step in (1, 2):
        train(net, optimizer, [step])
        checkpoint.save(folder, step, net, optimizer)


@pytest.mark.parametrize(
    ("training", "moment", "names", "loads"),
    [
        (twice_in_place, "half-way", "last.pt", "PytorchStreamReader failed"),
        (twice_in_a_draft, "half-way", ".000002-step-2, 000001-step-1", "1"),
        (twice_in_a_draft, "rename", ".000002-step-2, 000001-step-1", "1"),
        (twice_in_a_draft, "renamed", "000001-step-1, 000002-step-2", "2"),
    ],
)
def test_what_a_kill_leaves_is_told(tmp_path, training, moment, names, loads):
    left, loadable = killed_run.left_by_a_kill(training, tmp_path / "new", moment)
    assert left == names
    assert str(loadable).startswith(loads)


def test_half_way_through_a_draft_its_last_file_is_half_written(tmp_path):
    killed_run.left_by_a_kill(twice_in_a_draft, tmp_path, "half-way")
    whole = tmp_path / "000001-step-1" / checkpoint.REST
    half = tmp_path / ".000002-step-2" / checkpoint.REST
    assert 2 * half.stat().st_size == pytest.approx(whole.stat().st_size, rel=0.05)


def broken(folder):
    raise KeyError("a bug")


def idle(folder):
    pass


def test_a_training_that_ends_otherwise_is_no_kill(tmp_path):
    with pytest.raises(lab.RankFailed, match="a bug"):
        killed_run.left_by_a_kill(broken, tmp_path, "rename")
    with pytest.raises(ValueError, match="idle saves less than twice"):
        killed_run.left_by_a_kill(idle, tmp_path, "rename")


def gathered():
    import torch.distributed as dist

    net, optimizer = build("fsdp2")
    train(net, optimizer, [0])
    found = checkpoint.whole(net, optimizer)
    return dist.get_rank(), {name: tuple(each.shape) for name, each in found.items()}


def test_whole_gathers_every_tensor_on_rank_0_alone():
    run = lab.launch(gathered, ranks=2, backend="gloo", timeout_s=40)
    assert run[1] == (1, {})
    shapes = run[0][1]
    assert shapes["model/1.weight"] == shapes["optimizer/1.weight/exp_avg"] == (7, 10)


def gathered_before_a_step():
    net, optimizer = build("fsdp2")
    train(net, optimizer, [0])
    found = checkpoint.whole(net, optimizer)
    before = {name: tensor.clone() for name, tensor in found.items()}
    train(net, optimizer, [1])
    return [name for name in found if not torch.equal(found[name], before[name])]


def test_what_whole_gathers_does_not_change_when_training_goes_on():
    run = lab.launch(gathered_before_a_step, ranks=2, backend="gloo", timeout_s=40)
    assert run[0] == []
