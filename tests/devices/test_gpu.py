"""On a machine with a GPU: the planted mistakes fail there too, and what trains on the CPU trains
on the GPU, alone and shared by several ranks. Run them with ``pytest -m gpu``."""

import pytest
from test_device_law import LAW, numbers

import labkit as lab
from labkit import sharding
from labkit.devices import library, mistakes, rung
from labkit.machine import resources

pytestmark = [pytest.mark.gpu, pytest.mark.real, pytest.mark.usefixtures("built")]
NCCL_LETS_IT = "gathered_into_the_cpu"
"""NCCL (torch 2.11) checks the input of an all-gather alone: with one rank it goes through."""
TRAINED = [
    case
    for case in LAW
    if isinstance(case, sharding.Step) or type(case).__name__ in ("Need", "Strategy")
]


WITHOUT_DEEPSPEED = ("No module named 'deepspeed'", "DeepSpeed is not installed")


def ran(case):
    """A run; skips where only DeepSpeed is missing, as on many a GPU machine."""
    try:
        return case.run()
    except (lab.RankFailed, ValueError) as failed:
        if any(words in str(failed) for words in WITHOUT_DEEPSPEED):
            pytest.skip("needs DeepSpeed")
        raise


@pytest.mark.parametrize(("name", "ranks"), [("cuda", 1), ("shared", 2)])
def test_the_planted_mistakes_are_refused_on_cuda(name, ranks):
    run = lab.launch(mistakes.refusals, ranks=ranks, devices=name)
    assert run.devices == name
    for said in run:
        for mistake, words in mistakes.MISTAKES.items():
            if name == "cuda" and mistake.__name__ == NCCL_LETS_IT:
                assert said[mistake.__name__] == ""
            else:
                assert words.format(device="cuda") in said[mistake.__name__]


@pytest.mark.parametrize("case", LAW, ids=str)
def test_a_launch_of_the_package_runs_on_a_shared_gpu(case, monkeypatch):
    monkeypatch.setenv(rung.VARIABLE, "shared")
    run = ran(case)
    assert run.devices == "shared" and "shared GPU" in run.notes


@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_a_shared_gpu_trains_to_the_same_losses(case, monkeypatch):
    runs = []
    for name in ("cpu", "shared"):
        monkeypatch.setenv(rung.VARIABLE, name)
        runs.append(ran(case))
    for on_cpu, on_gpu in zip(*runs, strict=True):
        theirs = numbers(on_gpu)
        losses = {key: value for key, value in numbers(on_cpu).items() if "loss" in key}
        assert losses
        for key, value in losses.items():
            assert theirs[key] == pytest.approx(value, rel=2e-2, nan_ok=True)
        assert on_cpu["shards"].bytes_by("category").keys() == (
            on_gpu["shards"].bytes_by("category").keys()
        )


def test_pretend_devices_hide_the_gpu():
    def seen():
        import torch

        return torch.cuda.is_available(), torch.ones(1).device.type

    assert resources.num_gpus()
    there = [name for name in ("pretend", "cpu") if name == "cpu" or library.is_ready(name)]
    for name in there:
        assert lab.launch(seen, ranks=2, devices=name).results == ((False, name),) * 2
