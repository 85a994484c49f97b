"""What is wrong with ranks that wait, read off what each of them told: its calls, where it is, whom
it waits for.

Pure functions: endings in, a Finding out, or None where nothing is proved.
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from labkit.launching.outcome import Ending, Finding, line_of, rank_list

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


def waits_for(endings: Sequence[Ending]) -> dict[int, tuple[int, ...]]:
    """Whom each waiting rank waits for: the peer of a send or recv, or the members of its group
    that have not come.

    A member has come when it has called a collective of that number, whichever it was; where all
    have, the call itself is what differs, and every rank waits for those that called another one.
    """
    waits = {}
    for ending in endings:
        if ending.how != "stuck":
            continue
        if ending.where.get("peer") is not None and not ending.pending:
            waits[ending.rank] = (ending.where["peer"],)
        for work in ending.pending[:1]:
            late = [
                rank
                for rank, seq in work["last"].items()
                if rank in work["ranks"] and (seq or 0) < work["seq"]
            ]
            called = _called(endings, work["group"], work["seq"])
            other = [rank for rank, call in called.items() if _what(call) != _what(work)]
            if late or other:
                waits[ending.rank] = tuple(sorted({*late, *other} - {ending.rank}))
    return waits


def missing(endings: Sequence[Ending]) -> Finding | None:
    """Running ranks wait in a collective for one that has already returned."""
    returned = [e for e in endings if e.how == "returned"]
    for ending in endings:
        for work in ending.pending if ending.how == "stuck" else ():
            reached = {
                e.rank: work["last"].get(e.rank) for e in returned if e.rank in work["ranks"]
            }
            gone = [rank for rank, seq in reached.items() if seq is not None and seq < work["seq"]]
            if gone:
                waiting = [
                    e
                    for e in endings
                    if e.how == "stuck" and work["group"] in {w["group"] for w in e.pending}
                ]
                return _absence(gone, waiting, work, [e for e in returned if e.rank in gone])
    return None


def _absence(gone: list[int], waiting: list[Ending], work: dict, left: list[Ending]) -> Finding:
    """Why a rank is missing: its loop was shorter, the group is not the one that was meant, or it
    never called."""
    them, it = [e.rank for e in waiting], "it" if len(gone) == 1 else "them"
    text = (
        f"{rank_list(gone)} already returned; {rank_list(them)} "
        f"{'wait' if len(them) > 1 else 'waits'} for {it} in "
        f"{place_of(waiting[0])}.\n"
    )
    here = [_line(waiting[0].where)]
    times = max(
        sum(_line(call) in here and call["op"] == work["op"] for call in e.calls) for e in left
    )
    meant = [
        name for name, ranks in waiting[0].groups.items() if ranks == them and name != work["group"]
    ]
    if times:
        fault, odd = "uneven_inputs", gone
        text += (
            f"{rank_list(gone)} called that line {times} times, the others are there once more: "
            "fewer batches. "
            "Give every rank the same number of steps (drop_last, a sampler that pads), or use "
            "DDP's `join()`."
        )
    elif meant:
        fault, odd = "wrong_group", them
        text += (
            f"{rank_list(them)} are exactly the members of a group made with new_group, but they "
            "call a "
            f"collective of all {len(work['ranks'])} ranks: pass `group=`."
        )
    else:
        fault, odd = "missing_rank", gone
        text += (
            "Every rank of a group must call every collective of that group: look for an `if rank "
            "...` or a loop "
            f"that is shorter on {rank_list(gone)}."
        )
    return Finding(fault=fault, ranks=tuple(odd), text=text, where=waiting[0].where)


def different(endings: Sequence[Ending]) -> Finding | None:
    """Ranks are in different collectives at one place of a group's sequence, and somebody waits
    there."""
    stuck_at = {
        (work["group"], work["seq"]) for e in endings if e.how == "stuck" for work in e.pending
    }
    for group, seq in sorted(stuck_at, key=lambda place: place[1]):
        called = _called(endings, group, seq)
        if len({_what(call) for call in called.values()}) > 1:
            odd = minority({rank: _what(call) for rank, call in called.items()})
            lines = [f"ranks call different collectives as number {seq} of their group:"]
            lines += [
                f"  rank {rank}: {call['op']} of {call['shapes']} {'/'.join(call['dtypes'])} at "
                f"{line_of(call)}"
                for rank, call in sorted(called.items())
            ]
            alike = len({call["op"] for call in called.values()}) == 1
            return Finding(
                fault="mismatched_shape" if alike else "mismatched_op",
                ranks=odd,
                text="\n".join([*lines, _RULE]),
                where=called[odd[0]],
            )
    return None


def silent(endings: Sequence[Ending]) -> Finding | None:
    """Nothing moves, and no collective proves why: a stopped rank, a cycle of messages, a rank busy
    elsewhere."""
    stuck = [e for e in endings if e.how == "stuck"]
    stopped = [e.rank for e in stuck if e.state == "stopped"]
    if stopped:
        them = rank_list(stopped)
        return Finding(
            fault="sigstop",
            ranks=tuple(stopped),
            text=f"{them} {'are' if len(stopped) > 1 else 'is'} "
            "stopped (SIGSTOP, a debugger, or Ctrl-Z): `kill -CONT` lets a process go on.",
        )
    if cycle := _cycle(endings):
        first = next(e for e in stuck if e.rank == cycle[0])
        calls = ", ".join(
            f"rank {e.rank} in {e.where['call']} with rank {e.where['peer']}"
            for e in stuck
            if e.rank in cycle
        )
        return Finding(
            fault="send_cycle",
            ranks=cycle,
            where=first.where,
            text=f"a cycle: {calls}. Each waits for the other to do the opposite. Let one side "
            "receive "
            "first, or use isend and irecv, and wait for both.",
        )
    waited = {rank for ranks in waits_for(endings).values() for rank in ranks}
    busy = [e for e in stuck if not e.pending and not e.where.get("call")]
    busy = [e for e in busy if e.rank in waited] or busy
    if busy:
        them, verb = rank_list([e.rank for e in busy]), "are" if len(busy) > 1 else "is"
        return Finding(
            fault="hang",
            ranks=tuple(e.rank for e in busy),
            where=busy[0].where,
            text=f"{them} {verb} in no collective but busy at {line_of(busy[0].where)}: an "
            "endless loop, a "
            "wait for something outside, or work that is only slow.",
        )
    return None


def swapped(calls: Sequence[Sequence[dict]]) -> Finding | None:
    """Ranks that make the same calls in another order: same op, same shape, so nothing fails and
    numbers get mixed up.

    ``calls[r]`` is what rank r called. A call is known by the lines that led to it; ranks that make
    it equally often must make it at the same numbers of its group. One collective written in two
    branches is two calls, each made by some ranks only: no fault. Two tensors reduced by one line
    (in a loop over a set, say) can't be told apart.
    """
    numbers: dict[tuple, dict[int, list[int]]] = {}
    for rank, mine in enumerate(calls):
        for call in mine:
            numbers.setdefault((call["group"], str(call.get("stack"))), {}).setdefault(
                rank, []
            ).append(call["seq"])
    moved = []
    for (group, _), by_rank in numbers.items():
        if (
            len({len(seqs) for seqs in by_rank.values()})
            == 1
            < len({tuple(seqs) for seqs in by_rank.values()})
        ):
            odd = minority({rank: tuple(seqs) for rank, seqs in by_rank.items()})
            moved.append((min(by_rank[odd[0]]), group, odd))
    if not moved:
        return None
    seq, group, odd = min(moved)
    here = {
        rank: call
        for rank, mine in enumerate(calls)
        for call in mine
        if (call["group"], call["seq"]) == (group, seq)
    }
    text = [f"ranks make the same calls in another order. Number {seq} of their group is"]
    text += [
        f"  rank {r}: {call['op']} of {call['shapes']} at {line_of(call)}"
        for r, call in here.items()
    ]
    text.append("Op and shape agree, so nothing fails: these tensors are mixed up. " + _RULE)
    return Finding(fault="swapped_order", ranks=odd, text="\n".join(text), where=here[odd[0]])


def detailed(endings: Sequence[Ending]) -> Finding | None:
    """What TORCH_DISTRIBUTED_DEBUG=DETAIL found: every rank refuses the call, and says which one
    was its own."""
    told = {e.rank: found for e in endings if (found := _DETAIL.search(e.error.get("message", "")))}
    if len(told) < 2:
        return None
    odd = minority({rank: found.groups()[1:] for rank, found in told.items()})
    lines = ["ranks call different collectives, as TORCH_DISTRIBUTED_DEBUG=DETAIL has found:"]
    places = {e.rank: e.error["where"] for e in endings if e.rank in told}
    lines += [
        f"  rank {rank}: {op.lower()} of [{shape}] {dtype} at {line_of(places[rank])}"
        for rank, (_, op, shape, dtype) in (
            (rank, found.groups()) for rank, found in sorted(told.items())
        )
    ]
    alike = len({found[2] for found in told.values()}) == 1
    return Finding(
        fault="mismatched_shape" if alike else "mismatched_op",
        ranks=odd or tuple(told),
        text="\n".join([*lines, _RULE]),
        where=places[(odd or tuple(told))[0]],
    )


def disagreeing(endings: Sequence[Ending], dead: int, reason: str = "") -> tuple[int, ...]:
    """Who brought another size or type, when gloo aborted rank ``dead``: those of the others that
    differ in their last call, or else the dead one. Where two of them differ, gloo's ``reason``
    ("32 vs 4": bytes that came, bytes awaited) tells whether the dead one was with the larger or
    the smaller."""
    last = {
        e.rank: (str(e.calls[-1]["shapes"]), str(e.calls[-1]["dtypes"])) for e in endings if e.calls
    }
    size = {e.rank: sum(map(math.prod, e.calls[-1]["shapes"])) for e in endings if e.calls}
    came = re.search(r"(\d+) vs (\d+)", reason)
    if came and len(set(size.values())) == 2:
        extreme = min if int(came[1]) > int(came[2]) else max
        last[dead] = last[extreme(size, key=size.get)]
    return minority(last) or (dead,)


def minority(votes: dict[int, Hashable]) -> tuple[int, ...]:
    """The ranks that are not with the majority; all of them where two values are equally frequent,
    none where all agree."""
    counted = Counter(votes.values()).most_common()
    if len(counted) < 2:
        return ()
    tied = counted[0][1] == counted[1][1]
    return tuple(sorted(rank for rank, vote in votes.items() if tied or vote != counted[0][0]))


def place_of(ending: Ending) -> str:
    """Where a stuck rank is, in words."""
    call = ending.where.get("call") or (ending.pending[0]["op"] if ending.pending else None)
    return f"{call + ' at ' if call else ''}{line_of(ending.where)}"


def _called(endings: Sequence[Ending], group: str, seq: int) -> dict[int, dict]:
    """What each rank called as one number of a group, as far as it is known."""
    found = {}
    for ending in endings:
        under_way = ({**work, **ending.where} for work in ending.pending if ending.how == "stuck")
        for call in (*ending.calls, *under_way):
            if (call["group"], call["seq"]) == (group, seq):
                found.setdefault(ending.rank, call)
    return found


def _what(call: dict) -> tuple[str, str]:
    return call["op"], str(call["shapes"]) if call["op"] in _ALIKE else ""


def _line(call: dict) -> tuple:
    return call.get("file"), call.get("line")


def _cycle(endings: Iterable[Ending]) -> tuple[int, ...]:
    """Ranks that wait for one another by messages, round in a circle."""
    peer = {
        e.rank: e.where["peer"]
        for e in endings
        if e.how == "stuck" and e.where.get("peer") is not None
    }
    for rank in peer:
        path = [rank]
        while (after := peer.get(path[-1])) is not None and after not in path:
            path.append(after)
        if after == rank:
            return tuple(sorted(path))
    return ()
