"""What lies on the device while DeepSpeed offloads, by the device's own allocator: gradients do not
stay there."""

import pytest
import torch

import labkit as lab
from labkit.sharding import partition

BUCKET = 300_000
"""elements that DeepSpeed gathers before it reduces: more than a layer's"""


def held_after_backwards(stage, offload):
    """Bytes a parameter that the allocator counts after each backward of the second step, of two
    microbatches."""
    import deepspeed

    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(32)))
    sharding = {"stage": stage, "reduce_bucket_size": BUCKET, "overlap_comm": False}
    if offload:
        sharding["offload_optimizer"] = {"device": "cpu"}
    adam = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_optimization": sharding,
        "zero_force_ds_cpu_optimizer": False,
        "optimizer": adam,
    }
    num_params = sum(weight.numel() for weight in net.parameters())
    engine, *_ = deepspeed.initialize(model=net, config=config)
    seen = torch.randn(1, 512, dtype=torch.bfloat16).to(engine.device)
    held = []
    for _ in range(4):
        engine.backward(engine(seen).float().square().mean())
        held.append(torch.accelerator.memory_allocated() / num_params)
        engine.step()
    return held[2:]


@pytest.mark.real
@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=pytest.mark.again)])
def test_gradients_do_not_stay_on_the_device(stage):
    """With Adam on the device a rank holds 16 bytes a parameter there, with Adam on the host 2: no
    gradient, only a bucket."""
    for offload, bytes_each in ((False, 16), (True, 2)):
        ran = lab.launch(
            held_after_backwards, stage, offload, ranks=1, devices="pretend", timeout_s=100
        )
        assert ran[0] == pytest.approx([bytes_each] * 2, abs=0.5), (stage, offload, ran[0])
    device, host = partition.offload_places(1e9, 1, stage, "optimizer", num_microbatches=2)
    assert device == {"parameters": 2e9}
    assert host == {"gradients": 6e9, "optimizer": 12e9}


def test_stage_1_keeps_its_gradients_on_the_device():
    device, host = partition.offload_places(1e9, 4, 1, "optimizer")
    assert device == {"parameters": 2e9, "gradients": 2e9}
    assert host == {"gradients": 1e9, "optimizer": 3e9}
