"""Ranks that disagree: who made another call than the others, and which of them are the odd ones.

Pure functions: calls or outcomes in, a Finding out, or None where nothing is proved.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from labkit.launching.verdicts.outcome import Finding, Outcome, line_of
from labkit.words import say, to_say

_DETAIL = re.compile(
    r"Rank \d+ is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), OpType=(\w+), "
    r"TensorShape=\[([\d, ]*)\], TensorDtypes=(\w*)"
)
"""How TORCH_DISTRIBUTED_DEBUG=DETAIL tells what a rank called; its own call comes first."""
RULE = to_say("Every rank must call the same collectives in the same order, with the same shapes.")


def swapped(calls: Sequence[Sequence[dict]]) -> Finding | None:
    """Ranks that make the same calls in another order: same op, same shape, so nothing fails and
    numbers get mixed up.

    ``calls[r]`` is what rank r called. A call is known by the lines that led to it; ranks that make
    it equally often must make it at the same numbers of its group. One collective written in two
    branches is two calls, each made by some ranks only: no fault. Two tensors reduced by one line
    (in a loop over a set, say) can't be told apart.
    """
    moved = []
    for (group, _), numbers in _numbers(calls).items():
        equally_often = len({len(seqs) for seqs in numbers.values()}) == 1
        if equally_often and len(set(numbers.values())) > 1:
            odd = minority(numbers)
            moved.append((min(numbers[odd[0]]), group, odd))
    if not moved:
        return None
    seq, group, odd = min(moved)
    here = {}
    for rank, mine in enumerate(calls):
        for call in mine:
            if (call["group"], call["seq"]) == (group, seq):
                here[rank] = call
    lines = [
        say("ranks make the same calls in another order. Number {seq} of their group is", seq=seq)
    ]
    for rank, call in here.items():
        lines.append(call_of(rank, call["op"], call["shapes"], call))
    lines.append(
        say(
            "Op and shape agree, so nothing fails: these tensors are mixed up. {rule}",
            rule=say(RULE),
        )
    )
    return Finding(fault="swapped_order", ranks=odd, text="\n".join(lines), where=here[odd[0]])


def _numbers(calls: Sequence[Sequence[dict]]) -> dict[tuple, dict[int, tuple[int, ...]]]:
    """(group, the lines that led to a call) -> rank -> the numbers at which it made that call."""
    numbers: dict[tuple, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for rank, mine in enumerate(calls):
        for call in mine:
            by_rank = numbers[call["group"], str(call.get("stack"))]
            by_rank[rank] = (*by_rank.get(rank, ()), call["seq"])
    return numbers


def detailed(outcomes: Sequence[Outcome]) -> Finding | None:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL found: every rank refuses the call, and says which one
    was its own."""
    told = {}
    places = {}
    for outcome in sorted(outcomes, key=lambda each: each.rank):
        found = _DETAIL.search(outcome.error.get("message", ""))
        if found:
            _, op, shape, dtype = found.groups()
            told[outcome.rank] = (op, shape, dtype)
            places[outcome.rank] = outcome.error["where"]
    if len(told) < 2:
        return None
    lines = [say("ranks call different collectives, as TORCH_DISTRIBUTED_DEBUG=DETAIL has found:")]
    for rank, (op, shape, dtype) in told.items():
        lines.append(call_of(rank, op.lower(), f"[{shape}] {dtype}", places[rank]))
    odd = minority(told) or tuple(told)
    return mismatch([op for op, _, _ in told.values()], odd, lines, places[odd[0]])


def disagreeing(outcomes: Sequence[Outcome], dead: int, reason: str = "") -> tuple[int, ...]:
    """Who brought another size or type, when gloo aborted rank ``dead``: those of the others that
    differ in their last call, or else the dead one. Where two of them differ, gloo's ``reason``
    ("32 vs 4": bytes that came, bytes awaited) tells whether the dead one was with the larger or
    the smaller."""
    votes = {}
    sizes = {}
    for outcome in outcomes:
        if outcome.calls:
            call = outcome.calls[-1]
            votes[outcome.rank] = (str(call["shapes"]), str(call["dtypes"]))
            sizes[outcome.rank] = sum(math.prod(shape) for shape in call["shapes"])
    compared = re.search(r"(\d+) vs (\d+)", reason)
    if compared and len(set(sizes.values())) == 2:
        came, awaited = map(int, compared.groups())
        alike = min if came > awaited else max
        votes[dead] = votes[alike(sizes, key=sizes.get)]
    return minority(votes) or (dead,)


def minority(votes: dict[int, Hashable]) -> tuple[int, ...]:
    """The ranks that are not with the majority; all of them where two values are equally frequent,
    none where all agree."""
    counted = Counter(votes.values()).most_common()
    if len(counted) < 2:
        return ()
    (most, most_often), (_, often) = counted[:2]
    if most_often == often:
        return tuple(sorted(votes))
    return tuple(sorted(rank for rank, vote in votes.items() if vote != most))


def mismatch(ops: list[str], odd: tuple[int, ...], lines: list[str], where: dict) -> Finding:
    """The finding that ranks bring different things to one collective: another op, or another shape
    or type."""
    fault = "mismatched_shape" if len(set(ops)) == 1 else "mismatched_op"
    return Finding(fault=fault, ranks=odd, text="\n".join([*lines, say(RULE)]), where=where)


def call_of(rank: int, op: str, brought: object, place: dict) -> str:
    """What a rank called, with what, and where: an indented line."""
    return "  " + say(
        "rank {rank}: {op} of {brought} at {line}",
        rank=rank,
        op=op,
        brought=brought,
        line=line_of(place),
    )
