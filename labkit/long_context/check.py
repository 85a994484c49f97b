"""The exercises of chapter 09, long sequences. Real ranks, counted work, counted messages and one
process are the judges."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from labkit.check import exercise, faults, hint, on_ranks, over_budget, status, wrong
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["causal_ring", "hint", "status"]

HEADS, HEAD_DIM = 2, 8
_FREE = {"send", "recv", "barrier"}
"""What a ring calls, and what hands in nothing."""


class _Did(NamedTuple):
    """What a rank did."""

    fault: str
    """what is wrong with its output; "" for nothing"""
    blocks: tuple[int, ...]
    """which it took"""
    num_pairs: float
    """its products of matrices, as pairs of blocks"""
    calls: Counter
    """how often it called what"""
    sent_bytes: int
    """handed to its neighbours"""


@exercise
def causal_ring(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(take)`` is a rank's part of causal attention over a sequence that is cut into 2 n
    blocks of as many tokens, on n ranks. ``take(i, j)`` hands a rank the two blocks that it chooses
    to hold, one after the other: (q, k, v), each (heads, tokens, head_dim).

    It returns attention's output of those tokens, (heads, tokens, head_dim): softmax(q k^T /
    sqrt(head_dim)) v, where a token sees itself and all before it. Budget: a rank hands its
    neighbours n - 1 times the bytes of k and v, and multiplies at most one pair of blocks more than
    an even share of the pairs that must be. Run on real ranks.
    """
    for num_ranks, tokens in ((2, 3), (4, 2), (3, 4)):
        run = on_ranks(num_ranks, _rings, answer, tokens, hang_s=25)
        done = [_Did(*each) for each in run]
        case = say(
            "{num_ranks} ranks, blocks of {tokens} tokens", num_ranks=num_ranks, tokens=tokens
        )
        yield from _undealt(case, done)
        yield from faults(case, run)
        yield from _too_much_work(case, done)
        yield from _too_many_messages(case, done, 2 * 4 * HEADS * 2 * tokens * HEAD_DIM)


def _undealt(case: str, done: list[_Did]) -> Iterator[tuple[str, str]]:
    """Blocks that lie nowhere, or twice."""
    held = Counter(itertools.chain.from_iterable(each.blocks for each in done))
    if set(held.values()) != {1} or len(held) != 2 * len(done):
        told = [
            say("rank {rank}: {blocks}", rank=rank, blocks=each.blocks)
            for rank, each in enumerate(done)
        ]
        yield wrong(
            "{case}: each of the {blocks} blocks lies on one rank; these were taken\n{drawn}",
            case=case,
            blocks=2 * len(done),
            drawn="\n".join(told),
        )


def _too_much_work(case: str, done: list[_Did]) -> Iterator[tuple[str, str]]:
    """Work that is uneven, or need not be; or that could not be counted."""
    due = 2 * len(done) + 1
    works = [each.num_pairs for each in done]
    if sum(works) < 2 * len(done) ** 2:
        yield wrong(
            "{case}: {seen:g} pairs of blocks were counted in all; attention needs {least}. Only "
            "products of matrices (@, einsum) are counted",
            case=case,
            seen=sum(works),
            least=2 * len(done) ** 2,
        )
    if max(works) > due + 1:
        drawn = []
        for rank, each in enumerate(works):
            drawn.append(f"rank {rank}  {'#' * round(each):<{round(max(works))}}  {each:g}")
        yield over_budget(
            "{case}: who multiplied how many pairs of blocks; an even share of what must be is "
            "{due}\n{drawn}",
            case=case,
            due=due,
            drawn="\n".join(drawn),
        )


def _too_many_messages(case: str, done: list[_Did], kv_bytes: int) -> Iterator[tuple[str, str]]:
    """More bytes than a ring's, or calls that bring all keys at once."""
    most = (len(done) - 1) * kv_bytes
    for rank, each in enumerate(done):
        others = sorted(set(each.calls) - _FREE)
        if others:
            yield over_budget(
                "{case}, rank {rank}: {calls} was called; in a ring ranks only send to a neighbour "
                "and receive, and hold the keys of one other rank at a time",
                case=case,
                rank=rank,
                calls=", ".join(others),
            )
        if each.sent_bytes > most:
            yield over_budget(
                "{case}, rank {rank}: {sent} bytes sent; {most} are enough, its keys and values in "
                "every round but the last",
                case=case,
                rank=rank,
                sent=each.sent_bytes,
                most=most,
            )


# --- in the ranks ---


def _rings(answer: Callable, tokens: int) -> tuple:
    """One rank: what ``_Did`` has."""
    import torch
    import torch.distributed as dist
    from torch.utils.flop_counter import FlopCounterMode

    from labkit.measure import traffic

    num_blocks = 2 * dist.get_world_size()
    torch.manual_seed(0)
    whole = 2 * torch.randn(3, HEADS, num_blocks * tokens, HEAD_DIM)
    chosen: list[int] = []

    def take(*blocks: int) -> "tuple[Tensor, ...]":
        numbers = [int(each) for each in blocks]
        if len(set(numbers)) != 2 or not set(numbers) <= {*range(num_blocks)} or chosen:
            raise ValueError(
                f"a rank takes two different blocks of 0 to {num_blocks - 1}, once; got {blocks}"
            )
        chosen.extend(numbers)
        return tuple(whole[:, :, _places(numbers, tokens)])

    with traffic.count() as counted, FlopCounterMode(display=False) as products:
        made = answer(take)
    held: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(held, chosen)
    num_pairs = products.get_total_flops() / (4 * HEADS * tokens**2 * HEAD_DIM)
    fault = _fault(made, whole, held, tokens)
    return fault, tuple(chosen), num_pairs, counted.calls, counted.payload_bytes["send"]


def _places(blocks: list[int], tokens: int) -> list[int]:
    """Where the tokens of blocks lie in the sequence."""
    places: list[int] = []
    for each in blocks:
        places += range(each * tokens, (each + 1) * tokens)
    return places


def _fault(made: object, whole: "Tensor", held: list[list[int]], tokens: int) -> str:
    """What is wrong with an output; named, where it is a usual mistake."""
    import torch
    import torch.distributed as dist

    places = _places(held[dist.get_rank()], tokens)
    if not places:
        return ""  # a rank that took no blocks is told of by _undealt
    shape = (HEADS, len(places), HEAD_DIM)
    if not isinstance(made, torch.Tensor) or made.shape != shape:
        given = tuple(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
        return say("the output has the shape {shape}; got {given}", shape=shape, given=given)
    q, k, v = whole
    asked = q[:, places] @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)
    seen = torch.arange(whole.shape[2]) <= torch.tensor(places).unsqueeze(1)
    made = made.detach()
    right = _attend(asked, seen, v)
    if _is(made, right):
        return ""
    for fault, other in _mistakes(asked, seen, v, held, tokens):
        if _is(made, other):
            return fault
    off = ~((made - right).abs().amax((0, 2)) < 1e-4)
    first = places[int(off.nonzero()[0])]
    token = {"token": first, "block": first // tokens}
    if made.isnan().any():
        return say(
            "token {token} (block {block}) has not a number: are all its scores masked at once?",
            **token,
        )
    return say(
        "the output is not that of one process, first at token {token} (block {block})", **token
    )


def _attend(asked: "Tensor", seen: "Tensor", v: "Tensor") -> "Tensor":
    """Softmax over the keys that are seen; where none is, not a number."""
    return asked.masked_fill(~seen, -math.inf).softmax(-1) @ v


def _is(made: "Tensor", other: "Tensor") -> bool:
    """Whether two outputs agree, wherever the second is a number; and it is one somewhere."""
    import torch

    known = other.isfinite()
    return bool(known.any()) and torch.allclose(made[known], other[known], rtol=1e-4, atol=1e-5)


def _mistakes(
    asked: "Tensor", seen: "Tensor", v: "Tensor", held: list[list[int]], tokens: int
) -> "Iterator[tuple[str, Tensor]]":
    """Usual mistakes, each in a sentence, and the output that it makes."""
    import torch
    import torch.distributed as dist

    block_of = torch.arange(len(v[0])) // tokens
    my_block = seen.sum(1, keepdim=True).sub(1) // tokens
    yield (
        say("nothing is masked: a token sees those after it, too"),
        _attend(asked, torch.ones_like(seen), v),
    )
    yield (
        say("a token sees those after it in its own block"),
        _attend(asked, block_of <= my_block, v),
    )
    yield (
        say("the scores are not divided by sqrt(head_dim)"),
        _attend(asked * math.sqrt(HEAD_DIM), seen, v),
    )
    rank = dist.get_rank()
    met = [held[(rank - number) % len(held)] for number in range(len(held))]
    singly = [[each] for each in itertools.chain.from_iterable(met)]
    for parts in (met, singly):
        seen_parts = [seen & torch.isin(block_of, torch.tensor(blocks)) for blocks in parts]
        yield from _badly_joined(asked, seen_parts, v)
    blocks = range(2 * len(held))
    for gone in (*zip(blocks), *itertools.combinations(blocks, 2)):
        yield (
            say("no token sees the keys of block {gone}", gone=say(" and ").join(map(str, gone))),
            _attend(asked, seen & ~torch.isin(block_of, torch.tensor(gone)), v),
        )


def _badly_joined(
    asked: "Tensor", parts: "list[Tensor]", v: "Tensor"
) -> "Iterator[tuple[str, Tensor]]":
    """What comes of parts of the keys, in the order in which they arrive, that are joined without
    regard to their sums of exponentials, or to what was taken from their scores."""
    import torch

    outs = torch.stack([_attend(asked, seen, v).nan_to_num() for seen in parts])
    num_seen = torch.stack([seen.any(1) for seen in parts]).sum(0).unsqueeze(-1)
    told = say("each part is a finished softmax, and they are added as if all weighed the same")
    for total in (outs.sum(0), outs.sum(0) / num_seen, outs.mean(0)):
        yield told, total
    scores = torch.stack([asked.masked_fill(~seen, -math.inf) for seen in parts])
    of_part = scores.amax(-1, keepdim=True)
    so_far = of_part.cummax(0).values
    told = say(
        "parts are added that were made with different totals: what is there is to be rescaled by "
        "exp(old - new)"
    )
    totals = scores.logsumexp(-1, keepdim=True).logcumsumexp(0)
    yield told, ((scores - totals).exp().nan_to_num() @ v).sum(0)
    for top in (of_part, so_far):
        raised = (scores - top).exp().nan_to_num()
        sums = raised.sum(-1, keepdim=True)
        yield told, (raised @ v).sum(0) / sums.sum(0)
        yield told, (raised @ v).sum(0) / (sums * (top - so_far[-1]).exp()).sum(0)
