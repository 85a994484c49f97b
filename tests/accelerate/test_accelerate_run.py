"""An Accelerator for each engine on the CPU: what prepare does to the objects, and what the engine
then holds."""

import pytest

from labkit import launch
from labkit.accelerate import engines, run, update


def test_what_prepare_changed_is_what_it_did():
    found = {
        engine: launch(run.step, engine, "bf16", ranks=2, backend="gloo", timeout_s=50)[1]
        for engine in ("ddp", "fsdp", "zero2")
    }
    total = found["ddp"]["before"]["weights"]
    assert total == "Tensor float32, 464,384" == found["ddp"]["after"]["weights"]
    assert found["fsdp"]["after"]["weights"] == "DTensor float32, 232,192"
    assert found["zero2"]["after"]["weights"] == "Tensor bfloat16, 464,384"
    assert {engine: result["after"]["output"] for engine, result in found.items()} == {
        "ddp": "float32",
        "fsdp": "bfloat16",
        "zero2": "bfloat16",
    }
    assert {result["after"]["inside"] for result in found.values()} == {"bfloat16"}
    assert found["ddp"]["after"]["model"] == "DistributedDataParallel"


def test_an_accelerator_is_made_for_every_engine_that_is_predicted():
    assert (*update.ENGINES, "zero3") == engines.ENGINES


def counted(engine):
    accelerator = run.accelerator(engine, accumulation=3)
    return (
        accelerator.num_processes,
        accelerator.distributed_type.value,
        accelerator.gradient_accumulation_steps,
    )


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("one process", (1, "NO", 3)),
        ("ddp", (2, "MULTI_CPU", 3)),
        ("fsdp", (2, "FSDP", 3)),
        ("zero3", (2, "DEEPSPEED", 3)),
    ],
)
def test_every_engine_counts_all_ranks_but_the_one_process(engine, expected):
    assert list(launch(counted, engine, ranks=2, backend="gloo", timeout_s=50)) == [expected] * 2


def test_an_unknown_engine_is_refused():
    with pytest.raises(
        ValueError, match="an engine is one of one process, ddp, fsdp, zero2, zero3; got 'megatron'"
    ):
        run.accelerator("megatron")
