"""Attention over a cut sequence on real ranks: two passes, the first counted and held against one
process, the second at the stated pace and recorded."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from labkit.devices import rung
from labkit.long_context.attention import Attention

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.launching.job import Job
    from labkit.long_context.ring_run import Timed

TIMEOUT_S = 60.0


def start(attention: Attention) -> "Job":
    """Begins the passes in the background; ``attention.run()`` starts them and waits."""
    from labkit.launching import launcher

    return launcher.start(
        _attend,
        attention,
        ranks=attention.ranks,
        timeout_s=TIMEOUT_S,
        devices=rung.DEEPSPEED if attention.engine == "deepspeed" else None,
    )


# --- in the ranks ---


def _attend(attention: Attention) -> dict:
    """One rank: the pass beside one process's, counted; then once more, paced and recorded."""
    import torch

    from labkit.measure.apart import difference

    torch.set_num_threads(1)  # several ranks on few cores keep a pace only so
    torch.manual_seed(0)
    whole = _leaves(torch.randn(_shape(attention)) for _ in range(3))
    mine = _leaves(_share(each.detach(), attention).clone() for each in whole)
    expected = _forward_whole(whole, attention)
    upstream = torch.randn_like(expected)
    expected.backward(upstream)
    out, counts = _counted(mine, attention, upstream)
    wanted = [_share(each.grad, attention) for each in whole]
    result = {
        "output_difference": difference(out, _share(expected.detach(), attention)),
        "gradient_difference": difference([each.grad for each in mine], wanted),
        **counts,
    }
    paced = _paced(mine, attention, upstream)
    if paced["pass_allocated_bytes"] is not None:  # gloo's thread may let a message go late
        least = min(result["pass_allocated_bytes"], paced["pass_allocated_bytes"])
        paced["pass_allocated_bytes"] = least
    return {**result, **paced}


@contextlib.contextmanager
def _allocated() -> Iterator[dict]:
    """What the block adds to this device's memory at its highest point, once it has ended."""
    from labkit.measure import memory

    before_bytes = memory.allocated_bytes()
    memory.reset_allocated_peak()
    found: dict[str, int | None] = {"pass_allocated_bytes": None}
    yield found
    peak_bytes = memory.allocated_peak_bytes()
    if peak_bytes is not None:
        found["pass_allocated_bytes"] = peak_bytes - before_bytes


def _counted(
    mine: "list[Tensor]", attention: Attention, upstream: "Tensor"
) -> "tuple[Tensor, dict]":
    """The output of a pass as fast as it goes, and what was counted of it."""
    from labkit.long_context import ring_run
    from labkit.measure import memory, traffic

    held = memory.Activations()
    with traffic.count() as counted, _allocated() as allocated:
        with held.chunk(0):
            out = _forward(mine, attention, ring_run.unpaced)
        held_bytes = held.num_bytes
        out.backward(_share(upstream, attention))
    return out.detach(), {
        "calls": dict(counted.calls),
        "payload_bytes": dict(counted.payload_bytes),
        "sent_bytes": counted.sent_bytes,
        "held_bytes": held_bytes,
        **allocated,
    }


def _paced(mine: "list[Tensor]", attention: Attention, upstream: "Tensor") -> dict:
    """The same pass at its pace, recorded: how long it took, and how often it was late."""
    import torch.distributed as dist

    from labkit.launching import rank
    from labkit.long_context import ring_run
    from labkit.measure import trace
    from labkit.measure.pace import Pace

    rank.current().note("paced")
    pace = Pace()
    again = _leaves(each.detach().clone() for each in mine)
    dist.barrier()
    with trace.record(operators=False), _allocated() as allocated:
        began_s = time.perf_counter()
        out = _forward(again, attention, ring_run.paced(attention, pace))
        out.backward(_share(upstream, attention))
        step_us = 1e6 * (time.perf_counter() - began_s)
    return {"step_us": step_us, "overruns": pace.num_overruns, **allocated}


def _shape(attention: Attention) -> tuple[int, int, int, int]:
    """Of the queries of all ranks: batch, heads, tokens, head_dim."""
    return attention.batch, attention.heads, attention.sequence, attention.head_dim


def _leaves(tensors: "Iterable[Tensor]") -> "list[Tensor]":
    return [each.requires_grad_() for each in tensors]


def _share(x_BHSD: "Tensor", attention: Attention) -> "Tensor":
    """This rank's tokens: its two pieces, one after the other."""
    import torch
    import torch.distributed as dist

    cut = x_BHSD.chunk(2 * attention.ranks, 2)
    return torch.cat([cut[piece] for piece in attention.held()[dist.get_rank()]], 2)


def _forward(mine: "list[Tensor]", attention: Attention, taking: "Timed") -> "Tensor":
    from labkit.long_context import ring_run, ulysses_run

    if attention.way == "ring":
        return ring_run.Ring.apply(*mine, attention, taking)
    if attention.engine == "deepspeed":
        from labkit.long_context import deepspeed_run

        return deepspeed_run.ulysses(*mine, attention, taking)
    return ulysses_run.ulysses(*mine, attention, taking)


def _forward_whole(whole: "list[Tensor]", attention: Attention) -> "Tensor":
    from labkit.long_context import ulysses_run

    return ulysses_run.whole(*whole, attention)
