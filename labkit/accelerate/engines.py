"""Inside a rank: an Accelerator for each of its engines, on whatever device the rank has.

With a GPU for each rank, Accelerate 1.15 finds ranks and devices by itself. It knows no pretend
devices and no GPU that several ranks share; without GPUs it trains with DDP whatever engine was
asked for (ACCELERATE_USE_CPU), or takes each rank for the only process, and says nothing. So it is
told what it would have found; the ranks, the engines and their collectives are real.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelerate import Accelerator, DataLoaderConfiguration

ENGINES = ("one process", "ddp", "fsdp", "zero2", "zero3")
"""what ``accelerator`` can make; not taken from ``update``, which each rank would import"""
FOR_DEEPSPEED = ("transformers.integrations.deepspeed", "setuptools")
"""what a rank of DeepSpeed's imports under Accelerate and the zygote has not: 0.7 s of a core"""
_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_ASKED = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
"""set where ``accelerate launch`` was given an engine that needs GPUs found"""


def find_device() -> None:
    """Before the rank's first ``Accelerator()``: tells Accelerate the ranks and this rank's device.
    Where each has a GPU of its own, it finds both by itself."""
    import torch
    from accelerate import DistributedType, PartialState

    if _has_nccl():
        PartialState()
        return
    os.environ.pop("ACCELERATE_USE_CPU", None)  # with it FSDP and DeepSpeed would not be used
    state = PartialState(cpu=True)
    state.device = torch.get_default_device()
    if state.device.type == "cuda":  # a shared one: there are fewer than ranks
        state.local_process_index = state.device.index
    if any(os.environ.get(name) == "true" for name in _ASKED):
        state.distributed_type = DistributedType.MULTI_GPU


def _has_nccl() -> bool:
    """Whether the ranks communicate by NCCL: then each has a GPU of its own."""
    import torch.distributed as dist

    return dist.is_initialized() and dist.get_backend() == "nccl"


def accelerator(
    engine: str = "ddp",
    *,
    precision: str = "no",
    accumulation: int = 1,
    max_norm: float | None = None,
    layer: str = "Block",
    anywhere: bool = False,
    dataloader_config: "DataLoaderConfiguration | None" = None,
) -> "Accelerator":
    """What ``Accelerator()`` becomes in a rank that ``accelerate launch`` has started with this
    engine.

    "one process" forgets that there are ranks, as ``python train.py`` would. DeepSpeed clips at the
    ``max_norm`` of its configuration; FSDP makes units of the modules of class ``layer``. On a CPU
    Accelerate ignores fp16; with ``anywhere`` it is given what it makes on a GPU.
    ``dataloader_config`` goes to Accelerate as it is. Raises ValueError for an unknown engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"an engine is one of {', '.join(ENGINES)}; got {engine!r}")
    from accelerate import Accelerator, DistributedType, PartialState

    if engine == "one process":
        for name in _RANK:
            os.environ.pop(name, None)
    find_device()
    plugin: dict[str, Any] = {}
    if engine == "fsdp":
        PartialState().distributed_type = DistributedType.MULTI_GPU
        plugin["fsdp_plugin"] = _fsdp_plugin(layer)
    elif engine.startswith("zero"):
        plugin["deepspeed_plugin"] = _deepspeed_plugin(int(engine[-1]), accumulation, max_norm)
    scaled = precision == "fp16" and anywhere and PartialState().device.type != "cuda"
    made = Accelerator(
        mixed_precision="no" if scaled else precision,
        gradient_accumulation_steps=accumulation,
        dataloader_config=dataloader_config,
        **plugin,
    )
    if scaled:
        _scale(made, engine)
    return made


def _scale(made: "Accelerator", engine: str) -> None:
    """What Accelerate 1.15 does for fp16 on a GPU alone: autocast, torch's GradScaler, and FSDP's
    policy. The scaler is torch's own, for the rank's device."""
    import torch

    made.state._mixed_precision = "fp16"
    made.native_amp = True
    made.scaler = torch.amp.GradScaler(made.device.type)
    if engine == "fsdp":
        made.state.fsdp_plugin.set_mixed_precision("fp16", override=True)


def _fsdp_plugin(layer: str) -> object:
    """FSDP2, units made of the modules of class ``layer``."""
    from accelerate import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[layer],
        cpu_ram_efficient_loading=False,
    )


def _deepspeed_plugin(stage: int, accumulation: int, max_norm: float | None) -> object:
    """ZeRO at a stage; DeepSpeed accumulates and clips by itself."""
    from accelerate import DeepSpeedPlugin

    return DeepSpeedPlugin(
        zero_stage=stage,
        gradient_accumulation_steps=accumulation,
        gradient_clipping=max_norm,
        zero3_save_16bit_model=True,
    )
