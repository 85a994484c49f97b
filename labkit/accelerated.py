"""An Accelerator for each of its engines, inside a rank and on the CPU.

Accelerate 1.15 uses FSDP and DeepSpeed where it has found GPUs. Without any it trains with DDP, or takes each rank for
the only process, and says nothing. Here it is told what it would have found; the ranks, the engines and their
collectives are real.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate import Accelerator

ENGINES = ("one process", "ddp", "fsdp", "zero2", "zero3")
_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def accelerator(engine: str = "ddp", *, precision: str = "no", accumulation: int = 1, max_norm: float | None = None,
                layer: str = "Block") -> "Accelerator":
    """What ``Accelerator()`` becomes in a rank that ``accelerate launch`` has started with this engine.

    "one process" forgets that there are ranks, as ``python train.py`` would. DeepSpeed clips at the ``max_norm`` of its
    configuration; FSDP makes units of the modules of class ``layer``. Raises ValueError for an unknown engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"an engine is one of {', '.join(ENGINES)}; got {engine!r}")
    from accelerate import Accelerator, DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin, PartialState

    if engine == "one process":
        for name in _RANK:
            os.environ.pop(name, None)
    os.environ.pop("ACCELERATE_USE_CPU", None)  # with it DeepSpeed would not be used
    state, plugin = PartialState(cpu=True), {}
    if engine == "fsdp":
        state.distributed_type = DistributedType.MULTI_GPU
        plugin["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2, reshard_after_forward=True, auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=[layer], cpu_ram_efficient_loading=False)
    elif engine.startswith("zero"):
        plugin["deepspeed_plugin"] = DeepSpeedPlugin(
            zero_stage=int(engine[-1]), gradient_accumulation_steps=accumulation, gradient_clipping=max_norm,
            zero3_save_16bit_model=True)
    return Accelerator(mixed_precision=precision, gradient_accumulation_steps=accumulation, **plugin)
