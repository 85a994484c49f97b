"""One training step under each cure for a full memory: its bytes, its new weights.

    run = lab.launch(cure_run.steps, ("none", "microbatches", "FSDP"), ranks=2)
    run[0]["FSDP"].footprint.peak_bytes
    lab.launch(lambda: cure_run.steps(["none"], width=256, num_sequences=1, length=32))

The model is the transformer of the course with 2 blocks; by default of width 128, with 4 sequences
of 128 tokens on each rank. The first of two steps makes the optimizer's states, the second is
watched.
"""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.footprint import Footprint
from labkit.units import check_whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from labkit.measure.memory import Watch

CURES = ("microbatches", "checkpointing", "FSDP", "bf16", "half the length")
"""What can be done about a full memory without another machine"""
MOST_TOKENS = 128
"""The longest sequence that the model takes"""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What came of a step."""

    footprint: Footprint
    """its bytes, moment by moment"""
    weights: "Tensor"
    """all of them after two steps, as one vector"""


def steps(
    cures: Sequence[str] = ("none", *CURES),
    *,
    width: int = 128,
    num_sequences: int = 4,
    length: int = MOST_TOKENS,
) -> dict[str, Watched]:
    """In a rank: two steps under each cure, "none" without any, of blocks of ``width`` (a multiple
    of 4) and on sequences of ``length`` tokens. Collective: every rank calls it. Raises ValueError
    for what is no cure, or for sizes that the model can't have."""
    for cure in cures:
        if cure not in ("none", *CURES):
            raise ValueError(f"a cure is none, {', '.join(CURES)}; got {cure!r}")
    check_whole(width=width, **{"number of sequences": num_sequences})
    if width % 4 or not 2 <= length <= MOST_TOKENS:
        raise ValueError(
            f"the width is a multiple of 4, the length from 2 to {MOST_TOKENS}; got "
            f"width={width}, length={length}"
        )
    return {cure: _watched(cure, width, num_sequences, length) for cure in cures}


def _watched(cure: str, width: int, num_sequences: int, length: int) -> Watched:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from labkit import model
    from labkit.measure import memory

    torch.manual_seed(0)
    net = model.Transformer(2, width, 4, max_len=MOST_TOKENS)
    kept = length // 2 if cure == "half the length" else length
    told = model.story_tokens(num_sequences, length, seed=dist.get_rank())
    batch = [part[:, :kept] for part in told]
    if cure == "checkpointing":
        _recompute(net)
    with memory.watch() as watched:
        if cure == "FSDP":
            for layer in (*net.layers, net):
                fully_shard(layer)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        _step(net, optimizer, batch, watched, cure)
        watched.layers(net.layers)
        _step(net, optimizer, batch, watched, cure, marks=True)
    weights = [_whole(weight).flatten() for weight in net.parameters()]
    return Watched(footprint=watched.footprint(), weights=torch.cat(weights))


def _recompute(net: "nn.Module") -> None:
    """The blocks keep their inputs only."""
    from torch.utils.checkpoint import checkpoint

    for block in net.layers[1:-1]:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _step(
    net: "nn.Module",
    optimizer: "torch.optim.Optimizer",
    batch: "list[Tensor]",
    watched: "Watch",
    cure: str,
    *,
    marks: bool = False,
) -> None:
    """One step; gradients are averaged over the ranks, by FSDP or by hand."""
    import torch
    import torch.distributed as dist

    from labkit import model
    from labkit.sharding import engines

    num = 4 if cure == "microbatches" else 1
    mark = watched.mark if marks else contextlib.nullcontext
    for tokens, targets in zip(*(part.chunk(num) for part in batch), strict=True):
        low = torch.autocast(tokens.device.type, torch.bfloat16, enabled=cure == "bf16")
        with low:
            loss = model.loss(net(tokens), targets) / num
        engines.claim(watched, net, optimizer)
        watched.kept()
        mark("loss")
        loss.backward()
    engines.claim(watched, net, optimizer)
    for weight in net.parameters() if cure != "FSDP" else ():
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    mark("step")
    optimizer.step()
    engines.claim(watched, net, optimizer)
    optimizer.zero_grad()


def _whole(weight: "Tensor") -> "Tensor":
    """A weight, gathered where it is sharded."""
    whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return whole.detach()
