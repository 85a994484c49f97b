"""An Accelerator for each of its engines, inside a rank and on the CPU.

Accelerate 1.15 runs FSDP and DeepSpeed on all ranks where it has found GPUs. Without any it trains
with DDP (ACCELERATE_USE_CPU), or takes each rank for the only process, and says nothing. Here it is
told what it would have found; the ranks, the engines and their collectives are real.
"""

import functools
import os
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

from labkit.accelerate import update
from labkit.accelerate.update import SHAPE, Update
from labkit.devices import rung

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from labkit.launching.job import Job

ENGINES = (*update.ENGINES, "zero3")
_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def accelerator(
    engine: str = "ddp",
    *,
    precision: str = "no",
    accumulation: int = 1,
    max_norm: float | None = None,
    layer: str = "Block",
) -> "Accelerator":
    """What ``Accelerator()`` becomes in a rank that ``accelerate launch`` has started with this
    engine.

    "one process" forgets that there are ranks, as ``python train.py`` would. DeepSpeed clips at the
    ``max_norm`` of its configuration; FSDP makes units of the modules of class ``layer``. Raises
    ValueError for an unknown engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"an engine is one of {', '.join(ENGINES)}; got {engine!r}")
    from accelerate import Accelerator, DistributedType, PartialState

    if engine == "one process":
        for name in _RANK:
            os.environ.pop(name, None)
    os.environ.pop("ACCELERATE_USE_CPU", None)  # with it DeepSpeed would not be used
    state = PartialState(cpu=True)
    plugin: dict[str, Any] = {}
    if engine == "fsdp":
        state.distributed_type = DistributedType.MULTI_GPU
        plugin["fsdp_plugin"] = _fsdp_plugin(layer)
    elif engine.startswith("zero"):
        plugin["deepspeed_plugin"] = _deepspeed_plugin(int(engine[-1]), accumulation, max_norm)
    return Accelerator(
        mixed_precision=precision, gradient_accumulation_steps=accumulation, **plugin
    )


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


def start(update: Update) -> "Job":
    """Begins the update on real ranks; returns at once."""
    from labkit.launching import launcher

    return launcher.start(
        step,
        update.engine,
        update.precision,
        update.accumulation,
        ranks=update.num_ranks,
        devices=rung.DEEPSPEED if update.engine.startswith("zero") else None,
        timeout_s=60,
    )


def step(
    engine: str = "ddp", precision: str = "no", accumulation: int = 1, max_norm: float = 1.0
) -> dict:
    """One rank: trains, and looks at the third update of the usual loop, line by line.

    The dict has ``before`` and ``after`` prepare (see ``described``), ``sync`` (sync_gradients of
    each microbatch) and per microbatch and line the collectives ``calls``, ``payload_bytes``, and
    whether the line ``moved`` the weights.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from labkit import model
    from labkit.measure import trace

    torch.manual_seed(0)
    accelerate = accelerator(
        engine, precision=precision, accumulation=accumulation, max_norm=max_norm
    )
    net = model.Transformer(**SHAPE)
    data = TensorDataset(*model.story_tokens(6 * accumulation * accelerate.num_processes, 16))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=2)
    before = described(net, optimizer, loader)
    net, optimizer, loader = accelerate.prepare(net, optimizer, loader)
    after = described(net, optimizer, loader)
    synchronised = []
    lines = []
    with trace.record(operators=False):
        for tokens, targets in loader:
            with accelerate.accumulate(net):
                row, loss = _lines(accelerate, net, optimizer, tokens, targets, max_norm)
            synchronised.append(accelerate.sync_gradients)
            lines.append(row)
    return {
        "before": before,
        "after": after,
        "sync": synchronised[-accumulation:],
        "lines": lines[-accumulation:],
        "loss": loss,
    }


def _lines(
    accelerate: "Accelerator",
    net: "nn.Module",
    optimizer: Any,
    tokens: "Tensor",
    targets: "Tensor",
    max_norm: float,
) -> tuple[dict, float]:
    """The usual loop's lines for one batch: what each did, and the loss."""
    from labkit import model

    row: dict = {}
    line = functools.partial(_watched, optimizer, row)
    loss = line("forward", lambda: model.loss(net(tokens), targets))
    line("backward", lambda: accelerate.backward(loss))
    if accelerate.sync_gradients:
        line("clip", lambda: accelerate.clip_grad_norm_(net.parameters(), max_norm))
    line("step", optimizer.step)
    line("zero_grad", optimizer.zero_grad)
    return row, loss.item()


def _watched(optimizer: Any, row: dict, name: str, work: Callable) -> Any:
    """Does a line's work and writes down what it called and whether the weights moved."""
    import torch

    from labkit.measure import traffic

    was = [held.clone() for held in _held(optimizer)]
    with traffic.count() as counted:
        made = work()
    moved = not all(map(torch.equal, was, _held(optimizer)))
    row[name] = {
        "calls": dict(counted.calls),
        "payload_bytes": dict(counted.payload_bytes),
        "moved": moved,
    }
    return made


def described(net: "nn.Module", optimizer: Any, loader: Any) -> dict[str, str]:
    """The types, sizes and places that ``prepare`` may change: "weights" with their number on this
    rank, "inside" what a block computes in. Draws a batch and runs a forward."""
    import torch

    inner = net
    while not hasattr(inner, "layers"):
        inner = inner.module  # what is wrapped
    inside = []
    hook = inner.layers[1].up.register_forward_hook(
        lambda module, inputs, made: inside.append(made.dtype)
    )
    weights = list(inner.parameters())
    kind = type(weights[0].data).__name__
    dtype = _short(weights[0].dtype)
    here = sum(getattr(each, "_local_tensor", each).numel() for each in weights)
    tokens, _ = next(iter(loader))
    with torch.no_grad():
        made = net(tokens)
    hook.remove()
    return {
        "model": type(net).__name__,
        "optimizer": type(optimizer).__name__,
        "loader": type(loader).__name__,
        "batch sampler": type(loader.batch_sampler).__name__,
        "batches": str(len(loader)),
        "batch on": str(tokens.device),
        "weights": f"{kind} {dtype}, {here:,}",
        "inside": _short(inside[-1]),
        "output": _short(made.dtype),
    }


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _held(optimizer: Any) -> "list[Tensor]":
    """What the optimizer updates on this rank: weights, shards of them, or their fp32 copy."""
    tensors = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [getattr(each, "_local_tensor", each).detach() for each in tensors]
