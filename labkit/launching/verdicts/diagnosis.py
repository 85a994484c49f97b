"""What is wrong with ranks that wait, read off what each of them told.

Pure functions: outcomes in, a Finding out, or None where nothing is proved.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

from labkit.launching.verdicts.outcome import Finding, Outcome, line_of, rank_list

_ALIKE = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "_all_gather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
)
"""Collectives to which every rank brings the same shape; in the others shapes may differ and prove
nothing."""
_DETAIL = re.compile(
    r"Rank \d+ is running collective: CollectiveFingerPrint\(SequenceNumber=(\d+), OpType=(\w+), "
    r"TensorShape=\[([\d, ]*)\], TensorDtypes=(\w*)"
)
"""How TORCH_DISTRIBUTED_DEBUG=DETAIL tells what a rank called; its own call comes first."""
_RULE = "Every rank must call the same collectives in the same order, with the same shapes."


def waits_for(outcomes: Sequence[Outcome]) -> dict[int, tuple[int, ...]]:
    """Whom each waiting rank waits for: the peer of a send or recv, or the members of its group
    that have not come.

    A member has come when it has called a collective of that number, whichever it was; where all
    have, the call itself is what differs, and every rank waits for those that called another one.
    """
    waits = {}
    for outcome in _stuck(outcomes):
        if outcome.pending:
            work = outcome.pending[0]
            awaited = {*_not_there_yet(work), *_elsewhere(outcomes, work)}
            if awaited:
                waits[outcome.rank] = tuple(sorted(awaited - {outcome.rank}))
        elif outcome.where.get("peer") is not None:
            waits[outcome.rank] = (outcome.where["peer"],)
    return waits


def _not_there_yet(work: dict) -> list[int]:
    """Members of a collective's group whose last number, as far as they told, is smaller."""
    return [
        rank
        for rank, seq in work["last"].items()
        if rank in work["ranks"] and (seq or 0) < work["seq"]
    ]


def _elsewhere(outcomes: Sequence[Outcome], work: dict) -> list[int]:
    """Ranks that called something else as that number of the group."""
    called = _called(outcomes, work["group"], work["seq"])
    return [rank for rank, call in called.items() if _what(call) != _what(work)]


def missing(outcomes: Sequence[Outcome]) -> Finding | None:
    """Running ranks wait in a collective for one that has already returned."""
    returned = {outcome.rank: outcome for outcome in outcomes if outcome.how == "returned"}
    for outcome in _stuck(outcomes):
        for work in outcome.pending:
            gone = [rank for rank in returned if _left_before(rank, work)]
            if gone:
                waiting = [each for each in _stuck(outcomes) if _waits_in(each, work["group"])]
                return _absence([returned[rank] for rank in gone], waiting, work)
    return None


def _left_before(rank: int, work: dict) -> bool:
    """Whether a rank that has returned is a member that never came to this collective. One whose
    last number is unknown may have come."""
    reached = work["last"].get(rank)
    return rank in work["ranks"] and reached is not None and reached < work["seq"]


def _waits_in(outcome: Outcome, group: str) -> bool:
    return any(work["group"] == group for work in outcome.pending)


def _absence(gone: list[Outcome], waiting: list[Outcome], work: dict) -> Finding:
    """Why ranks are missing: their loop was shorter, the group is not the one that was meant, or
    they never called."""
    missed = [outcome.rank for outcome in gone]
    them = [outcome.rank for outcome in waiting]
    first = waiting[0]
    pronoun = "it" if len(missed) == 1 else "them"
    verb = "wait" if len(them) > 1 else "waits"
    text = (
        f"{rank_list(missed)} already returned; {rank_list(them)} {verb} for {pronoun} in "
        f"{place_of(first)}.\n"
    )
    times = max(_times_called(outcome, first.where, work["op"]) for outcome in gone)
    if times:
        text += (
            f"{rank_list(missed)} called that line {times} times, the others are there once more: "
            "fewer batches. Give every rank the same number of steps (drop_last, a sampler that "
            "pads), or use DDP's `join()`."
        )
        return Finding(fault="uneven_inputs", ranks=tuple(missed), text=text, where=first.where)
    if any(ranks == them and name != work["group"] for name, ranks in first.groups.items()):
        text += (
            f"{rank_list(them)} are exactly the members of a group made with new_group, but they "
            f"call a collective of all {len(work['ranks'])} ranks: pass `group=`."
        )
        return Finding(fault="wrong_group", ranks=tuple(them), text=text, where=first.where)
    text += (
        "Every rank of a group must call every collective of that group: look for an `if rank "
        f"...` or a loop that is shorter on {rank_list(missed)}."
    )
    return Finding(fault="missing_rank", ranks=tuple(missed), text=text, where=first.where)


def _times_called(outcome: Outcome, place: dict, op: str) -> int:
    """How often a rank has called a collective from a line."""
    line = (place.get("file"), place.get("line"), op)
    return [(call.get("file"), call.get("line"), call["op"]) for call in outcome.calls].count(line)


def different(outcomes: Sequence[Outcome]) -> Finding | None:
    """Ranks are in different collectives at one place of a group's sequence, and somebody waits
    there."""
    stuck_at = set()
    for outcome in _stuck(outcomes):
        stuck_at |= {(work["group"], work["seq"]) for work in outcome.pending}
    for group, seq in sorted(stuck_at, key=lambda place: place[1]):
        called = _called(outcomes, group, seq)
        what = {rank: _what(call) for rank, call in called.items()}
        if len(set(what.values())) > 1:
            return _difference(called, minority(what), seq)
    return None


def _difference(called: dict[int, dict], odd: tuple[int, ...], seq: int) -> Finding:
    lines = [f"ranks call different collectives as number {seq} of their group:"]
    for rank, call in sorted(called.items()):
        what = f"{call['op']} of {call['shapes']} {'/'.join(call['dtypes'])}"
        lines.append(f"  rank {rank}: {what} at {line_of(call)}")
    return _mismatch([call["op"] for call in called.values()], odd, lines, called[odd[0]])


def _mismatch(ops: list[str], odd: tuple[int, ...], lines: list[str], where: dict) -> Finding:
    fault = "mismatched_shape" if len(set(ops)) == 1 else "mismatched_op"
    return Finding(fault=fault, ranks=odd, text="\n".join([*lines, _RULE]), where=where)


def silent(outcomes: Sequence[Outcome]) -> Finding | None:
    """Nothing moves, and no collective proves why: a stopped rank, a cycle of messages, a rank busy
    elsewhere."""
    stuck = _stuck(outcomes)
    return _stopped(stuck) or _send_cycle(stuck) or _busy(stuck, waits_for(outcomes))


def _stopped(stuck: list[Outcome]) -> Finding | None:
    stopped = [outcome.rank for outcome in stuck if outcome.state == "stopped"]
    if not stopped:
        return None
    verb = "are" if len(stopped) > 1 else "is"
    return Finding(
        fault="sigstop",
        ranks=tuple(stopped),
        text=f"{rank_list(stopped)} {verb} stopped (SIGSTOP, a debugger, or Ctrl-Z): `kill -CONT` "
        "lets a process go on.",
    )


def _send_cycle(stuck: list[Outcome]) -> Finding | None:
    cycle = _cycle(stuck)
    if not cycle:
        return None
    inside = [outcome for outcome in stuck if outcome.rank in cycle]
    first = next(outcome for outcome in inside if outcome.rank == cycle[0])
    calls = ", ".join(
        f"rank {outcome.rank} in {outcome.where['call']} with rank {outcome.where['peer']}"
        for outcome in inside
    )
    return Finding(
        fault="send_cycle",
        ranks=cycle,
        where=first.where,
        text=f"a cycle: {calls}. Each waits for the other to do the opposite. Let one side "
        "receive first, or use isend and irecv, and wait for both.",
    )


def _busy(stuck: list[Outcome], waits: dict[int, tuple[int, ...]]) -> Finding | None:
    """Ranks in no collective: those that others wait for, if there are any."""
    busy = [each for each in stuck if not each.pending and not each.where.get("call")]
    awaited = set().union(*waits.values())
    busy = [outcome for outcome in busy if outcome.rank in awaited] or busy
    if not busy:
        return None
    ranks = [outcome.rank for outcome in busy]
    verb = "are" if len(busy) > 1 else "is"
    return Finding(
        fault="hang",
        ranks=tuple(ranks),
        where=busy[0].where,
        text=f"{rank_list(ranks)} {verb} in no collective but busy at {line_of(busy[0].where)}: "
        "an endless loop, a wait for something outside, or work that is only slow.",
    )


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
    lines = [f"ranks make the same calls in another order. Number {seq} of their group is"]
    for rank, call in here.items():
        lines.append(f"  rank {rank}: {call['op']} of {call['shapes']} at {line_of(call)}")
    lines.append("Op and shape agree, so nothing fails: these tensors are mixed up. " + _RULE)
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
    lines = ["ranks call different collectives, as TORCH_DISTRIBUTED_DEBUG=DETAIL has found:"]
    for rank, (op, shape, dtype) in told.items():
        lines.append(f"  rank {rank}: {op.lower()} of [{shape}] {dtype} at {line_of(places[rank])}")
    odd = minority(told) or tuple(told)
    return _mismatch([op for op, _, _ in told.values()], odd, lines, places[odd[0]])


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


def place_of(outcome: Outcome) -> str:
    """Where a stuck rank is, in words."""
    call = outcome.where.get("call")
    if not call and outcome.pending:
        call = outcome.pending[0]["op"]
    line = line_of(outcome.where)
    return f"{call} at {line}" if call else line


def _stuck(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.how == "stuck"]


def _called(outcomes: Iterable[Outcome], group: str, seq: int) -> dict[int, dict]:
    """What each rank called as one number of a group, as far as it is known."""
    found = {}
    for outcome in outcomes:
        calls = list(outcome.calls)
        if outcome.how == "stuck":
            calls += [{**work, **outcome.where} for work in outcome.pending]
        for call in calls:
            if (call["group"], call["seq"]) == (group, seq):
                found.setdefault(outcome.rank, call)
    return found


def _what(call: dict) -> tuple[str, str]:
    """What must agree between ranks: the op, and its shapes where they must be alike."""
    shapes = str(call["shapes"]) if call["op"] in _ALIKE else ""
    return call["op"], shapes


def _cycle(stuck: Iterable[Outcome]) -> tuple[int, ...]:
    """Ranks that wait for one another by messages, round in a circle."""
    peers = {}
    for outcome in stuck:
        if outcome.where.get("peer") is not None:
            peers[outcome.rank] = outcome.where["peer"]
    for rank in peers:
        path = [rank]
        after = peers.get(rank)
        while after is not None and after not in path:
            path.append(after)
            after = peers.get(after)
        if after == rank:
            return tuple(sorted(path))
    return ()
