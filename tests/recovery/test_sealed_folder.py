"""Laws of a sealed folder, on real ranks: a killed save costs nothing, a damaged file is found."""

import shutil
import signal

import pytest
from small_training import build, train

import labkit as lab
from labkit.recovery import checkpoint

STAGES = (
    "open",
    "os.mkdir",
    "os.rename",
    "os.link",
    "os.remove",
    "os.rmdir",
    "shutil.rmtree",
    "fsync",
)


def killed_at(folder, kind, victim, when):
    """Saves a second checkpoint; ``victim`` kills itself at its ``when``-th touch of the folder.
    Tells them all."""
    import os
    import sys

    import torch.distributed as dist

    net, optimizer = build("ddp", frozen=(1,))
    train(net, optimizer, range(2))
    touched = []
    fsync = os.fsync

    def touch(event, arguments):
        if event in STAGES and any(str(folder) in str(each) for each in arguments[:2]):
            touched.append(event)
            if dist.get_rank() == victim and len(touched) == when:
                os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = lambda number: [touch("fsync", [folder]), fsync(number)]
    sys.addaudithook(touch)
    checkpoint.save(folder, 2, net, optimizer, kind=kind, keep=1)
    return touched


def first(folder, kind):
    net, optimizer = build("ddp", frozen=(1,))
    train(net, optimizer, range(1))
    checkpoint.save(folder, 1, net, optimizer, kind=kind)


@pytest.mark.a_few(1)
@pytest.mark.parametrize("kind", checkpoint.KINDS)
def test_a_save_killed_at_any_moment_never_costs_the_last_good_one(kind, tmp_path):
    lab.launch(first, tmp_path / "start", kind, ranks=2, backend="gloo", timeout_s=40)
    shutil.copytree(tmp_path / "start", tmp_path / "whole")
    touched = lab.launch(
        killed_at, tmp_path / "whole", kind, 0, 0, ranks=2, backend="gloo", timeout_s=40
    )
    assert {"open", "os.mkdir", "os.rename", "fsync", "shutil.rmtree"} <= set(touched[0])
    assert (kind == "incremental") == ("os.link" in touched[0])
    ends = []
    moments = range(1, len(touched[0]) + 1)
    if (
        kind == "incremental"
    ):  # a file per tensor: some of these, and every second moment of the end
        moments = [*moments[:-20:8], *moments[-20::2]]
    for victim, times in ((0, moments), (1, sorted({1, len(touched[1])} - {0}))):
        for when in times:
            folder = tmp_path / f"{victim}-{when}"
            shutil.copytree(tmp_path / "start", folder)
            with pytest.raises(lab.RankFailed, match=f"rank {victim} was killed by SIGKILL"):
                lab.launch(
                    killed_at, folder, kind, victim, when, ranks=2, backend="gloo", timeout_s=40
                )
            newest = checkpoint.checkpoints(folder)[0]
            assert checkpoint.fault(newest) == ""
            ends.append((victim, checkpoint.about(newest)["step"]))
    assert ends == sorted(ends) and {(0, 1), (0, 2)} <= set(ends)  # the old one, then the new one
    left = next(path.parent for path in sorted(tmp_path.glob("0-*/.*-step-*")))
    lab.launch(first, left, kind, ranks=2, backend="gloo", timeout_s=40)
    assert not list(left.glob(".*"))  # leftovers go with the next save


def killed_in_the_background(folder):
    """A save in the background, and rank 1 gone before anybody waited for it."""
    import os

    import torch.distributed as dist

    net, optimizer = build("ddp")
    train(net, optimizer, range(1))
    checkpoint.save(folder, 1, net, optimizer)
    saving = checkpoint.save_async(folder, 2, net, optimizer)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    saving.result()


def test_a_rank_killed_during_a_save_in_the_background_costs_that_save_alone(tmp_path):
    with pytest.raises(lab.RankFailed, match="rank 1 was killed by SIGKILL"):
        lab.launch(killed_in_the_background, tmp_path, ranks=2, backend="gloo", timeout_s=40)
    newest = checkpoint.checkpoints(tmp_path)[-1]
    assert checkpoint.about(newest)["step"] == 1 and checkpoint.fault(newest) == ""


def spoilt(folder, how):
    net, optimizer = build("ddp")
    for step in (1, 2):
        train(net, optimizer, [step])
        path = checkpoint.save(folder, step, net, optimizer)
    import torch.distributed as dist

    if dist.get_rank() == 0:
        file = max(path.glob("shard*"))
        if how == "gone":
            file.unlink()
        else:
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.write_bytes(data[:-9] if how == "cut" else data)
    dist.barrier()
    found = checkpoint.load(folder, net, optimizer)
    with pytest.raises(
        ValueError, match=r"loaded whole or not at all: .*shard-00002.* (has|holds other) .*bytes"
    ):
        checkpoint.load(path, net, optimizer)
    return found["step"], found["skipped"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", " were written"),
        ("flipped", "holds other bytes than were"),
        ("gone", "has no bytes, "),
    ],
)
def test_a_damaged_file_is_named_and_the_one_before_is_taken(how, words, tmp_path):
    step, skipped = lab.launch(spoilt, tmp_path, how, ranks=2, backend="gloo", timeout_s=40)[0]
    assert step == 1 and len(skipped) == 1
    assert "shard-00002-model-00001-of-00001.safetensors" in skipped[0] and words in skipped[0]
