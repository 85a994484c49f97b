"""Laws of the ladder: the launch wins over the environment, the environment over the machine, and
what this machine lacks is refused with a way out."""

import json

import pytest

import labkit as lab
from labkit.devices import rung
from labkit.devices.rung import Pretend, Rung


@pytest.mark.parametrize(
    ("gpus", "ranks", "environment", "told", "name"),
    [
        (0, 2, None, {}, "cpu"),
        (0, 2, None, {"has_pretend": True}, "pretend"),
        (1, 2, None, {"has_pretend": True}, "pretend"),
        (2, 2, None, {"has_pretend": True}, "cuda"),
        (0, 2, "cpu", {"has_pretend": True}, "cpu"),
        (0, 2, None, {"has_pretend": True, "backend": "gloo"}, "cpu"),
        (0, 2, None, {"has_pretend": True, "devices": "deepspeed"}, "pretend"),
        (2, 2, "pretend", {"devices": "deepspeed"}, "pretend"),
        (2, 2, "cpu", {"devices": "deepspeed"}, "cpu"),
        (1, 2, "shared", {"devices": "deepspeed"}, "cpu"),
        (1, 2, None, {"devices": "deepspeed"}, "cpu"),
        (2, 2, None, {"devices": "deepspeed"}, "cuda"),
        (2, 2, None, {"devices": "trainer"}, "cuda"),
        (1, 2, None, {"devices": "trainer", "has_pretend": True}, "cpu"),
        (2, 2, "pretend", {"devices": "trainer", "has_pretend": True}, "cpu"),
        (1, 2, "cuda", {"devices": "trainer"}, "cpu"),
        (2, 2, "cpu", {"devices": "trainer"}, "cpu"),
        (8, 8, None, {}, "cuda"),
        (1, 2, None, {}, "cpu"),  # sharing is for who asks for it
        (1, 1, None, {}, "cuda"),
        (1, 2, "shared", {}, "shared"),
        (8, 2, "shared", {}, "shared"),
        (1, 4, "cuda", {}, "shared"),
        (8, 4, "pretend", {}, "pretend"),
        (8, 4, "cpu", {}, "cpu"),
        (8, 4, "", {}, "cuda"),
        (8, 4, "cpu", {"devices": "cuda"}, "cuda"),
        (8, 4, "cpu", {"devices": "pretend"}, "pretend"),
        (8, 4, "cpu", {"backend": "nccl"}, "cuda"),
        (8, 4, "pretend", {"backend": "gloo"}, "cpu"),
    ],
)
def test_the_launch_wins_then_the_environment_then_the_machine(
    gpus, ranks, environment, told, name, monkeypatch
):
    monkeypatch.delenv(rung.VARIABLE, raising=False)
    if environment is not None:
        monkeypatch.setenv(rung.VARIABLE, environment)
    chosen = rung.choose(ranks, gpus, **told)
    assert chosen.name == name
    assert chosen.backend == rung.BACKENDS[name]
    assert chosen.has_gpu == (name in ("cuda", "shared"))
    assert chosen.carrier == ("nccl" if name == "cuda" else "gloo")


@pytest.mark.parametrize(
    ("gpus", "told", "words"),
    [
        (1, {"devices": "cuda"}, "devices='cuda' needs a GPU for each rank; asked for 2 ranks"),
        (1, {"backend": "nccl"}, "nccl needs a GPU for each rank; .* this machine has 1 GPUs"),
        (0, {"devices": "shared"}, "devices='shared' needs a GPU; .* ask for devices=\"pretend\""),
        (0, {"devices": "tpu"}, "devices is one of cuda, shared, pretend, cpu, or lab.pretend"),
        (0, {"backend": "mpi"}, "backend is"),
        (8, {"devices": "cuda", "backend": "nccl"}, "Leave backend out"),
        (8, {"devices": Pretend(), "backend": "gloo"}, "Leave backend out"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(gpus, told, words, monkeypatch):
    monkeypatch.delenv(rung.VARIABLE, raising=False)
    with pytest.raises(ValueError, match=words):
        rung.choose(2, gpus, **told)


def test_a_rung_that_the_environment_cannot_mean_is_named(monkeypatch):
    monkeypatch.setenv(rung.VARIABLE, "gpu")
    with pytest.raises(ValueError, match=r"LABKIT_DEVICE is one of .*; got 'gpu'. Unset it"):
        rung.choose(2, 0)
    monkeypatch.setenv(rung.VARIABLE, "cuda")
    with pytest.raises(ValueError, match="LABKIT_DEVICE=cuda needs a GPU"):
        rung.choose(2, 0)


def test_a_rung_arrives_as_it_left():
    kinds = [
        Rung(name="cpu", backend="gloo"),
        rung.choose(2, 0, devices=lab.pretend(memory_mib=64, link_gb_per_s=2)),
    ]
    for kind in kinds:
        assert Rung.from_json(json.loads(json.dumps(kind.to_json()))) == kind
    assert kinds[1].pretend == Pretend(memory_mib=64, link_gb_per_s=2)


@pytest.mark.parametrize("size", ["memory_mib", "link_gb_per_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), "64"])
def test_a_pretend_device_has_sizes(size, value):
    with pytest.raises(ValueError, match=size):
        lab.pretend(**{size: value})
