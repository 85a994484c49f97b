"""Laws of checkpoints, on real ranks: what comes back is what was saved, bit for bit; a killed save
costs nothing."""

import argparse
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import labkit as lab
from labkit.recovery import checkpoint, training_state


def build(engine, seed=0, frozen=(), dropout=0.0):
    """A model of sizes that no number of ranks divides, and its optimizer; two of its layers share
    a weight."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Embedding(11, 10),
        nn.Linear(10, 7),
        nn.Dropout(dropout),
        nn.LayerNorm(7),
        nn.Linear(7, 10),
        nn.Linear(10, 11, bias=False),
    )
    net.register_buffer("seen", torch.zeros(1))
    net[5].weight = net[0].weight
    for index in frozen:
        net[index].requires_grad_(False)
    if engine == "fsdp2":
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (net[1], net[4], net):
            fully_shard(layer, mesh=mesh)
    else:
        net = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(
        [each for each in net.parameters() if each.requires_grad], lr=0.01
    )
    return net, optimizer


def train(net, optimizer, steps, rate=None):
    """The losses of some steps; the data depend on the step alone."""
    import torch.distributed as dist

    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randint(0, 11, (12, 3), generator=generator).chunk(dist.get_world_size())[
            dist.get_rank()
        ]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        if rate:
            rate.step()
        losses.append(loss.item())
    return losses


def whole(net, optimizer):
    """Every tensor of the training state, whole, by name."""
    found, _ = training_state.collect(net, optimizer)
    return {
        name: (each.full_tensor() if hasattr(each, "full_tensor") else each).clone()
        for name, each in found.items()
    }


def write(folder, engine, kind):
    net, optimizer = build(engine)
    train(net, optimizer, range(3))
    (net.module if engine == "ddp" else net).seen += 5
    before = whole(net, optimizer)
    if kind == "asynchronous":
        saving = checkpoint.save_async(folder, 3, net, optimizer)
        train(net, optimizer, range(9, 12))  # goes on while it is written
        return before, saving.result(), whole(net, optimizer)
    return before, checkpoint.save(folder, 3, net, optimizer, kind=kind), None


def read(folder, engine):
    net, optimizer = build(engine, seed=1)
    found = checkpoint.load(folder, net, optimizer)
    return whole(net, optimizer), found, optimizer.param_groups[0]["betas"]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


ROUTES = [
    ("ddp", 2, "ddp", 2),
    ("ddp", 1, "fsdp2", 3),
    ("fsdp2", 4, "fsdp2", 2),
    ("fsdp2", 3, "ddp", 1),
]


@pytest.mark.parametrize("kind", [*checkpoint.KINDS, "asynchronous"])
@pytest.mark.parametrize("route", ROUTES, ids=str)
def test_restored_bits_are_the_saved_bits(kind, route, tmp_path):
    engine, num_ranks, other, others = route
    wrote = lab.launch(write, tmp_path, engine, kind, ranks=num_ranks, backend="gloo", timeout_s=40)
    got = lab.launch(read, tmp_path, other, ranks=others, backend="gloo", timeout_s=40)
    assert len(wrote[0][0]) == 30 and all(same(wrote[0][0], mine) for mine, *_ in got)
    assert all(
        found["step"] == 3
        and found["ranks"] == num_ranks
        and found["rng"] == (num_ranks == others)
        and found["path"] == wrote[0][1]
        and tuple(betas) == (0.9, 0.999)
        for _, found, betas in got
    )
    if kind == "asynchronous":
        assert not same(wrote[0][0], wrote[0][2])
    for file in wrote[0][1].iterdir():  # nothing that must be unpickled
        if file.suffix == ".pt":
            assert not torch.serialization.get_unsafe_globals_in_checkpoint(file)
        else:
            assert file.suffix == ".safetensors" or json.loads(file.read_text())


def interrupted(folder, engine, kind, when):
    """Losses of six steps; of six with a save after ``when``; of the steps after it in a model that
    loaded it."""

    def started(seed):
        net, optimizer = build(engine, seed, dropout=0.3)
        return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    told = []
    for save in (False, True):
        net, optimizer, rate = started(0)
        losses = train(net, optimizer, range(when), rate)
        if save:
            checkpoint.save(
                folder, when, net, optimizer, kind=kind, extra={"rate": rate.state_dict()}
            )
        told.append(losses + train(net, optimizer, range(when, 6), rate))
    net, optimizer, rate = started(1)
    torch.rand(7)
    found = checkpoint.load(folder, net, optimizer)
    rate.load_state_dict(found["extra"]["rate"])
    return *told, train(net, optimizer, range(found["step"], 6), rate)


@pytest.mark.parametrize(
    ("engine", "kind", "when"),
    [
        ("ddp", "sharded", 3),
        ("fsdp2", "sharded", 3),
        ("fsdp2", "plain", 3),
        ("ddp", "incremental", 3),
        ("ddp", "plain", 0),
        ("fsdp2", "sharded", 0),
    ],
)
def test_training_resumed_is_training_undisturbed(engine, kind, when, tmp_path):
    for rank in lab.launch(
        interrupted, tmp_path, engine, kind, when, ranks=2, backend="gloo", timeout_s=40
    ):
        undisturbed, saving, resumed = rank
        assert (
            undisturbed == saving and undisturbed[when:] == resumed and len(set(undisturbed)) == 6
        )


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
    touched, fsync = [], os.fsync

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


@pytest.mark.parametrize("kind", checkpoint.KINDS)
def test_a_save_killed_at_any_moment_never_costs_the_last_good_one(kind, tmp_path):
    lab.launch(first, tmp_path / "start", kind, ranks=2, backend="gloo", timeout_s=40)
    shutil.copytree(tmp_path / "start", tmp_path / "whole")
    touched = lab.launch(
        killed_at, tmp_path / "whole", kind, 0, 0, ranks=2, backend="gloo", timeout_s=40
    )
    assert {"open", "os.mkdir", "os.rename", "fsync", "shutil.rmtree"} <= set(touched[0])
    assert (kind == "incremental") == ("os.link" in touched[0])
    ends, moments = [], range(1, len(touched[0]) + 1)
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


def bytes_written(folder, frozen, kind):
    net, optimizer = build("ddp", frozen=frozen)
    sizes, tensors = [], []
    for step in range(3):
        train(net, optimizer, [step])
        sizes.append(
            checkpoint.about(checkpoint.save(folder, step, net, optimizer, kind=kind))[
                "written_bytes"
            ]
        )
        tensors.append(whole(net, optimizer))
    changed = sum(
        each.nbytes for name, each in tensors[2].items() if not torch.equal(each, tensors[1][name])
    )
    return sizes, changed, sum(each.nbytes for each in tensors[2].values())


def test_incremental_saves_what_is_frozen_and_adam_changes_all_the_rest(tmp_path):
    """The bytes of values; each file has a header of some 200 bytes beside, and rest.pt is not
    counted."""
    found = {}
    for name, frozen in (("all trained", ()), ("half frozen", (0, 1, 5))):
        sizes, changed, total = lab.launch(
            bytes_written,
            tmp_path / name,
            frozen,
            "incremental",
            ranks=1,
            backend="gloo",
            timeout_s=40,
        )[0]
        assert sizes[1] == sizes[2] <= sizes[0]
        found[name] = (sizes[0] - sizes[2], changed / total)
    assert found["all trained"][1] > 0.98 and found["half frozen"][1] < 0.8
    assert (
        found["half frozen"][0] > 4 * (2 * 110 + 77) - 110 * 4
    )  # the embedding (tied), the linear layer
    assert found["all trained"][0] < 4 * 1 + 1000  # the buffer and its header


def test_a_link_lives_longer_than_the_checkpoint_it_came_from(tmp_path):
    lab.launch(
        bytes_written, tmp_path, (0, 1, 5), "incremental", ranks=2, backend="gloo", timeout_s=40
    )
    newest = checkpoint.checkpoints(tmp_path)
    assert [checkpoint.about(path)["step"] for path in newest] == [
        2,
        1,
    ]  # not 0, whose files they link
    assert [checkpoint.fault(path) for path in newest] == ["", ""]
    assert any(file.stat().st_nlink == 2 for file in newest[0].glob("*.safetensors"))


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


def refusals(folder):
    def message(work, *args, **kwargs):
        with pytest.raises(ValueError) as caught:
            work(*args, **kwargs)
        return str(caught.value)

    net, optimizer = build("ddp")
    told = [
        message(checkpoint.load, folder, net, optimizer),
        message(checkpoint.save, folder, 1, net, kind="quick"),
        message(checkpoint.save, folder, 1, net, keep=0),
        message(checkpoint.save_async, folder, 1, net, kind="plain"),
        message(checkpoint.save, folder, 1, net, extra={"args": argparse.Namespace(lr=1)}),
    ]
    checkpoint.save(folder, 1, net, optimizer, extra={"args": {"lr": 1}, "tensor": torch.ones(2)})
    return [*told, message(checkpoint.load, folder, torch.nn.Linear(2, 3))]


def test_what_cannot_be_is_refused_with_the_way_out(tmp_path):
    told = lab.launch(refusals, tmp_path, ranks=1, backend="gloo", timeout_s=40)[0]
    parts = (
        "there is no checkpoint in ",
        "is plain or sharded or incremental, and 1 or more are kept; got 'quick'",
        "keep=0",
        "is sharded or incremental",
        "argparse.Namespace could only be unpickled",
        "0.weight is [[11, 10], 'torch.float32'] in ",
    )
    for text, words in zip(told, parts, strict=True):
        assert words in text
    with pytest.raises(ValueError, match="here is no process group"):
        checkpoint.save(tmp_path, 1, torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="has none: save one first"):
        checkpoint.about(Path("nowhere"))


def with_deepspeed(folder, stage, universal, steps):
    """Losses of some ZeRO steps, summed over the ranks' shares; without ``universal`` it saves
    before step 3."""
    import deepspeed
    import torch.distributed as dist

    from labkit import model
    from labkit.sharding import run

    setting = run.Setting(
        engine=f"zero{stage}", num_ranks=dist.get_world_size(), num_microbatches=1
    )
    config = run.deepspeed_config(setting) | {
        "bf16": {"enabled": False},
        "checkpoint": {"load_universal": universal},
    }
    torch.manual_seed(universal)
    engine = deepspeed.initialize(model=model.Transformer(2, 64, 4, max_len=32), config=config)[0]
    if universal:
        engine.load_checkpoint(folder)
    losses = []
    for step in steps:
        if step == 3 and not universal:
            engine.save_checkpoint(folder)
        tokens, targets = (
            each.chunk(setting.num_ranks)[dist.get_rank()]
            for each in model.story_tokens(4, 32, step)
        )
        loss = model.loss(engine(tokens), targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def to_universal(folder):
    """What the command ds_to_universal does. ZeRO 1 and 2 need a note in the checkpoint, which it
    injects."""
    from deepspeed.checkpoint import ds_to_universal

    tag = (folder / "latest").read_text()
    ds_to_universal.main(
        argparse.Namespace(
            input_folder=str(folder / tag),
            output_folder=str(folder / "universal"),
            num_extract_workers=1,
            num_merge_workers=1,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeeds_universal_format_goes_on_with_other_ranks(stage, tmp_path):
    def together(ranks):
        return torch.tensor(list(ranks)).mean(0)

    undisturbed = together(
        lab.launch(
            with_deepspeed, tmp_path, stage, False, range(6), ranks=2, backend="gloo", timeout_s=50
        )
    )
    lab.launch(to_universal, tmp_path, ranks=1, backend="gloo", timeout_s=50)
    for num_ranks in (1, 4):
        resumed = together(
            lab.launch(
                with_deepspeed,
                tmp_path,
                stage,
                True,
                range(3, 6),
                ranks=num_ranks,
                backend="gloo",
                timeout_s=50,
            )
        )
        torch.testing.assert_close(resumed, undisturbed[3:], rtol=0, atol=1e-5)
    assert (undisturbed[3:] - undisturbed[:3]).abs().min() > 1e-2
