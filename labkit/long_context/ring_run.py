"""Ring attention by hand: queries stay, keys and values go round, and a softmax that is not
finished is carried on.

Of a pair of pieces a rank keeps the output and the logarithm of the sum of exponentials (lse). Two
pairs of the same queries are joined exactly by those logarithms (Milakov and Gimelshein 2018,
arXiv:1805.02867; Liu et al. 2023, arXiv:2310.01889).
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from labkit.long_context.attention import Attention
from labkit.long_context.pieces import BACKWARD, pairs, work
from labkit.measure.pace import Pace

Pieces = tuple[int, ...]
Timed = Callable[[str, int, float], contextlib.AbstractContextManager]
"""Makes a block last as long as so many pairs, labelled with a way (F or B) and a rank."""


def paced(attention: Attention, pace: Pace) -> Timed:
    """Pairs at the stated pace."""

    def taking(way: str, rank: int, num_pairs: float) -> contextlib.AbstractContextManager:
        factor = BACKWARD if way == "B" else 1.0
        return pace.taking(f"{way}{rank}", 1e3 * attention.pair_ms * num_pairs * factor)

    return taking


def unpaced(way: str, rank: int, num_pairs: float) -> contextlib.AbstractContextManager:
    """As fast as it goes."""
    return contextlib.nullcontext()


# --- a pair of pieces ---


def scores(q_BHTD: Tensor, k_BHSD: Tensor, same: bool) -> Tensor:
    """What each token of a piece asks of each of another; of its own piece only those before."""
    found = q_BHTD @ k_BHSD.transpose(-2, -1) / math.sqrt(q_BHTD.shape[-1])
    if not same:
        return found
    later = torch.ones(found.shape[-2:], dtype=torch.bool, device=found.device).triu(1)
    return found.masked_fill(later, -math.inf)


def attended(q: Tensor, k: Tensor, v: Tensor, same: bool) -> tuple[Tensor, Tensor]:
    """The output of a pair, and its lse."""
    asked = scores(q, k, same)
    lse = asked.logsumexp(-1)
    return (asked - lse.unsqueeze(-1)).exp() @ v, lse


def gradients(
    q: Tensor, k: Tensor, v: Tensor, same: bool, lse: Tensor, met: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What a pair adds to the gradients of its queries, keys and values; scores are computed again,
    from the lse of all pairs of these queries. ``met``: for each query, gradient times output."""
    share = (scores(q, k, same) - lse.unsqueeze(-1)).exp()
    grad_v = share.transpose(-2, -1) @ grad
    share *= (grad @ v.transpose(-2, -1)).sub_(met)
    share /= math.sqrt(q.shape[-1])
    return share @ k, share.transpose(-2, -1) @ q, grad_v


def joined(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Two outputs of the same queries as one: each weighs as much as its sum of exponentials."""
    total = torch.logaddexp(lse, more_lse)
    weight = (lse - total).exp().unsqueeze(-1)
    more_weight = (more_lse - total).exp().unsqueeze(-1)
    return weight * out + more_weight * more, total


# --- the ring ---


def exchange(tensor: Tensor) -> tuple[Tensor, list[Any]]:
    """Begins to send to the next rank and to receive from the one before: what will arrive, and
    what to wait for."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    arriving = torch.empty_like(tensor)
    calls = [
        dist.P2POp(dist.isend, tensor, (rank + 1) % size),
        dist.P2POp(dist.irecv, arriving, (rank - 1) % size),
    ]
    return arriving, dist.batch_isend_irecv(calls)


def passed_on(tensor: Tensor) -> Tensor:
    """Sends to the next rank, and waits for what comes from the one before."""
    arriving, waiting = exchange(tensor)
    for each in waiting:
        each.wait()
    return arriving


def go_round(kv: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(whose they are, keys and values) round by round. The next ones travel while the caller
    computes with these; two of them lie here at a time if the caller lets go of its own."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    for number in range(size):
        is_last = number == size - 1
        arriving, waiting = (kv, []) if is_last else exchange(kv)
        yield (rank - number) % size, kv
        while waiting:
            waiting.pop().wait()
        kv = arriving


class Ring(Function):
    """Attention of this rank's queries with the keys of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, attention: Attention, taking: Timed
    ) -> Tensor:
        """Shapes (batch, heads, tokens of this rank, head_dim); the tokens are its two pieces."""
        held = attention.held()
        mine = held[dist.get_rank()]
        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:-1], -math.inf, device=q.device)
        for rank, kv in go_round(torch.stack([k, v])):
            num_pairs = work(mine, held[rank], causal=attention.causal)
            with taking("F", rank, num_pairs):
                for i, j in pairs(mine, held[rank], causal=attention.causal):
                    own = _part(mine, i, q)
                    other = _part(held[rank], j, q)
                    more = attended(
                        q[..., own, :],
                        kv[0][..., other, :],
                        kv[1][..., other, :],
                        _is_masked(attention, i, j),
                    )
                    out[..., own, :], lse[..., own] = joined(out[..., own, :], lse[..., own], *more)
            del kv
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.attention, ctx.taking = attention, taking
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of keys and values go on with their keys, and after the last round they are
        home."""
        q, k, v, out, lse = ctx.saved_tensors
        attention = ctx.attention
        held = attention.held()
        mine = held[dist.get_rank()]
        grad_q = torch.zeros_like(q)
        grad_kv = torch.zeros_like(torch.stack([k, v]))
        met = (grad_out * out).sum(-1, keepdim=True)
        for rank, kv in go_round(torch.stack([k, v])):
            num_pairs = work(mine, held[rank], causal=attention.causal)
            with ctx.taking("B", rank, num_pairs):
                for i, j in pairs(mine, held[rank], causal=attention.causal):
                    own = _part(mine, i, q)
                    other = _part(held[rank], j, q)
                    more = gradients(
                        q[..., own, :],
                        kv[0][..., other, :],
                        kv[1][..., other, :],
                        _is_masked(attention, i, j),
                        lse[..., own],
                        met[..., own, :],
                        grad_out[..., own, :],
                    )
                    grad_q[..., own, :] += more[0]
                    grad_kv[0][..., other, :] += more[1]
                    grad_kv[1][..., other, :] += more[2]
                    del more
            del kv
            grad_kv = passed_on(grad_kv)
        return grad_q, grad_kv[0], grad_kv[1], None, None


def _part(held: Pieces, piece: int, like: Tensor) -> slice:
    """Where a piece lies among the tokens of the rank that holds it."""
    size = like.shape[-2] // len(held)
    place = held.index(piece)
    return slice(place * size, (place + 1) * size)


def _is_masked(attention: Attention, one: int, other: int) -> bool:
    return attention.causal and one == other
