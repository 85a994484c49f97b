"""The usual loop with a real Accelerator: what each of its lines called, and what it moved."""

import functools
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

from labkit.accelerate.engines import FOR_DEEPSPEED, accelerator
from labkit.accelerate.update import SHAPE, SPIKE, Update
from labkit.devices import rung

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from labkit.launching.job import Job


def start(update: Update) -> "Job":
    """Begins the update on real ranks; returns at once."""
    from labkit.launching import launcher
    from labkit.launching.fork import zygote_client

    with_deepspeed = update.engine.startswith("zero")
    if with_deepspeed:
        zygote_client.expect(*FOR_DEEPSPEED)
    return launcher.start(
        step,
        update.engine,
        update.precision,
        update.accumulation,
        anywhere=True,
        spike=update.spike,
        ranks=update.num_ranks,
        devices=rung.DEEPSPEED if with_deepspeed else None,
        timeout_s=60,
    )


def step(
    engine: str = "ddp",
    precision: str = "no",
    accumulation: int = 1,
    max_norm: float = 1.0,
    *,
    anywhere: bool = False,
    spike: bool = False,
) -> dict:
    """One rank: trains, and looks at the third update of the usual loop, line by line; the loss of
    its last batch is SPIKE times as large if there is a ``spike``.

    The dict has ``before`` and ``after`` prepare (see ``described``), ``sync`` (sync_gradients of
    each microbatch) and per microbatch and line the collectives ``calls``, ``payload_bytes``, and
    whether the line ``moved`` the weights. ``anywhere``: see ``engines.accelerator``.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from labkit import model

    torch.manual_seed(0)
    accelerate = accelerator(
        engine,
        precision=precision,
        accumulation=accumulation,
        max_norm=max_norm,
        anywhere=anywhere,
    )
    net = model.Transformer(**SHAPE)
    data = TensorDataset(*model.story_tokens(6 * accumulation * accelerate.num_processes, 16))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=2)
    before = described(net, optimizer, loader)
    net, optimizer, loader = accelerate.prepare(net, optimizer, loader)
    after = described(net, optimizer, loader)
    synchronised, lines, loss = _trained(accelerate, net, optimizer, loader, max_norm, spike)
    return {
        "before": before,
        "after": after,
        "sync": synchronised[-accumulation:],
        "lines": lines[-accumulation:],
        "loss": loss,
    }


def _trained(
    accelerate: "Accelerator",
    net: "nn.Module",
    optimizer: Any,
    loader: Any,
    max_norm: float,
    spike: bool,
) -> tuple[list[bool], list[dict], float]:
    """The usual loop over all batches: of each sync_gradients and what its lines did; and the last
    loss."""
    from labkit.measure import trace

    synchronised = []
    lines = []
    with trace.record(operators=False):
        for number, (tokens, targets) in enumerate(loader, start=1):
            times = SPIKE if spike and number == len(loader) else 1.0
            with accelerate.accumulate(net):
                row, loss = _lines(accelerate, net, optimizer, tokens, targets, max_norm, times)
            synchronised.append(accelerate.sync_gradients)
            lines.append(row)
    return synchronised, lines, loss


def _lines(
    accelerate: "Accelerator",
    net: "nn.Module",
    optimizer: Any,
    tokens: "Tensor",
    targets: "Tensor",
    max_norm: float,
    times: float,
) -> tuple[dict, float]:
    """The usual loop's lines for one batch, its loss ``times`` as large: what each did, and the
    loss."""
    from labkit import model

    row: dict = {}
    line = functools.partial(_watched, optimizer, row)
    loss = line("forward", lambda: times * model.loss(net(tokens), targets))
    line("backward", lambda: accelerate.backward(loss))
    if accelerate.sync_gradients:
        line("clip", lambda: accelerate.clip_grad_norm_(net.parameters(), max_norm))
    before = accelerate.scaler and accelerate.scaler.get_scale()
    line("step", optimizer.step)
    if accelerate.scaler and accelerate.sync_gradients:
        row["step"]["scale"] = (before, accelerate.scaler.get_scale())
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
