"""DeepSpeed on pretend devices: it is told of them whenever it is imported, they answer what it
asks, and ZeRO trains where the whole does not fit."""

import sys

import pytest
from apart import apart

import labkit as lab
from labkit.devices import pretend
from labkit.devices.rung import Pretend

MIB = 2**20
MEMORY_MIB = 24


def asks_the_device():
    import torch
    from deepspeed.accelerator import get_accelerator

    found = get_accelerator()
    assert found.device_name() == found.communication_backend_name() == "pretend"
    assert found.current_device_name() == "pretend:1" and found.device_count() == 2
    assert found.total_memory() == MEMORY_MIB * MIB
    kept = torch.ones(MIB // 4, device="pretend")
    assert found.memory_allocated() == found.max_memory_allocated() == kept.nbytes
    assert found.available_memory() == (MEMORY_MIB - 1) * MIB
    assert found.on_accelerator(kept) and not found.on_accelerator(kept.cpu())
    for make in (found.ByteTensor, found.LongTensor, found.BFloat16Tensor, found.FloatTensor):
        made = make([1, 2])
        assert made.tolist() == [1, 2] and found.on_accelerator(made)
    found.manual_seed(3)
    state = found.get_rng_state()
    drawn = torch.rand(3, device="pretend")
    found.set_rng_state(state)
    assert torch.rand(3, device="pretend").equal(drawn)
    with found.device(0):
        assert found.current_device() == 0


def is_imported_after():
    assert "deepspeed" not in sys.modules
    finders = len(sys.meta_path)
    asks_the_device()
    assert len(sys.meta_path) == finders - 1


def is_imported_before():
    import deepspeed  # noqa: F401

    pretend.install(Pretend(memory_mib=MEMORY_MIB), num_devices=2, index=1)
    asks_the_device()


def test_deepspeed_imported_later_is_told_of_the_device():
    settings = Pretend(memory_mib=MEMORY_MIB)
    apart(is_imported_after, settings=settings, num_devices=2, index=1)


def test_deepspeed_imported_already_is_told_of_the_device():
    apart(is_imported_before, settings=None)


def trained(stage):
    """The loss of the second step, and the peak of this rank's device in MiB."""
    import deepspeed
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(16)))
    engine, *_ = deepspeed.initialize(
        model=net,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": 70_000,
                "stage3_prefetch_bucket_size": 0,
                "stage3_param_persistence_threshold": 0,
                "stage3_max_live_parameters": 0,
                "stage3_max_reuse_distance": 0,
            },
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        },
    )
    for _ in range(2):
        loss = engine(torch.ones(4, 256)).square().mean()
        engine.backward(loss)
        engine.step()
    return loss.item(), torch.accelerator.max_memory_allocated() / MIB


@pytest.mark.real
@pytest.mark.usefixtures("built")
@pytest.mark.again
def test_stage_3_trains_where_the_whole_does_not_fit():
    for loss, peak_mib in lab.launch(trained, 3, ranks=4, devices=Pretend(memory_mib=14)):
        assert loss > 0 and peak_mib < 14
    with pytest.raises(lab.RankFailed, match="OutOfMemoryError: pretend out of memory"):
        lab.launch(trained, 0, ranks=4, devices=Pretend(memory_mib=14))
