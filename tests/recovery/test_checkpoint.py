"""Laws of checkpoints, on real ranks: what comes back is what was saved, bit for bit."""

import argparse
import json
import time
from pathlib import Path

import pytest
import torch
from small_training import build, same, train, whole

import labkit as lab
from labkit.recovery import checkpoint


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


ROUTES = [
    ("ddp", 2, "ddp", 2),
    ("ddp", 1, "fsdp2", 3),
    ("fsdp2", 4, "fsdp2", 2),
    ("fsdp2", 3, "ddp", 1),
]


@pytest.mark.a_few(3)
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


def return_before_the_disk(folder):
    """Seconds of a second save in the background whose folder takes a second to make."""
    from labkit.recovery import sealed_folder

    net, optimizer = build("fsdp2")
    train(net, optimizer, range(1))
    checkpoint.save_async(folder, 1, net, optimizer).result()
    begin = sealed_folder.begin

    def slow(*args):
        time.sleep(1)
        return begin(*args)

    sealed_folder.begin = slow
    began = time.perf_counter()
    saving = checkpoint.save_async(folder, 2, net, optimizer)
    stood_s = time.perf_counter() - began
    path = saving.result()
    done_s = time.perf_counter() - began
    return began, stood_s, path, done_s, checkpoint.spent_s(), checkpoint.parts_s()


def test_a_save_in_the_background_waits_for_no_disk(tmp_path):
    run = lab.launch(return_before_the_disk, tmp_path, ranks=2, backend="gloo", timeout_s=40)
    for began_s, stood_s, path, done_s, spent_s, parts_s in run:
        assert list(parts_s) == ["previous", "group", "list", "copy", "write", "seal"]
        edges_s = [edge_s for part in parts_s.values() for edge_s in part]
        assert began_s <= edges_s[0] and edges_s == sorted(edges_s)
        assert parts_s["copy"][1] <= began_s + stood_s <= parts_s["write"][1]
        assert stood_s < 1 < done_s and checkpoint.fault(path) == ""
        stood = [spent_s[part] for part in ("previous", "group", "list", "copy")]
        assert min(stood) > 0 and sum(stood) <= stood_s  # parts of what training waited for
        assert spent_s["write"] > 1 and sum(spent_s.values()) <= done_s


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


@pytest.mark.a_few(2)
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
