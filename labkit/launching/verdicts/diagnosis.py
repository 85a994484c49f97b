"""What is wrong with ranks that wait, read off what each of them told.

Pure functions: outcomes in, a Finding out, or None where nothing is proved.
"""

from collections.abc import Iterable, Sequence

from labkit.launching.verdicts.disagreement import call_of, minority, mismatch
from labkit.launching.verdicts.outcome import Finding, Outcome, line_of, rank_list
from labkit.words import say, say_number

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
    text = say_number(
        "{gone} already returned; {waiting} waits for {whom} in {place}.",
        "{gone} already returned; {waiting} wait for {whom} in {place}.",
        len(them),
        gone=rank_list(missed),
        waiting=rank_list(them),
        whom=say_number("it", "them", len(missed)),
        place=place_of(first),
    )
    text += "\n"
    fewer = _fewer(gone, them, first.where, work)
    if fewer:
        text += fewer
        return Finding(fault="uneven_inputs", ranks=tuple(missed), text=text, where=first.where)
    if any(ranks == them and name != work["group"] for name, ranks in first.groups.items()):
        text += say(
            "{waiting} are exactly the members of a group made with new_group, but they call a "
            "collective of all {num_ranks} ranks: pass `group=`.",
            waiting=rank_list(them),
            num_ranks=len(work["ranks"]),
        )
        return Finding(fault="wrong_group", ranks=tuple(them), text=text, where=first.where)
    text += say(
        "Every rank of a group must call every collective of that group: look for an `if rank "
        "...` or a loop that is shorter on {gone}.",
        gone=rank_list(missed),
    )
    return Finding(fault="missing_rank", ranks=tuple(missed), text=text, where=first.where)


def _fewer(gone: list[Outcome], them: list[int], place: dict, work: dict) -> str:
    """Says that ranks are missing from a call which they made before and in which ``them`` wait, ""
    where they never made it. An accelerator's backward calls in a thread of its own, where no line
    is known."""
    missed = rank_list([outcome.rank for outcome in gone])
    times = max(_times_called(outcome, place, work["op"]) for outcome in gone)
    if times:
        return say(
            "{gone} called that line {times} times, {waiting} called it once more: fewer batches "
            "on {gone}. Give every rank the same number of steps (drop_last, a sampler that pads), "
            "or use DDP's `join()`.",
            gone=missed,
            waiting=rank_list(them),
            times=times,
        )
    times = 0 if place.get("call") else max(_times_in_backward(each, work) for each in gone)
    if times:
        return say(
            "{gone} made such a call in a backward {times} times, {waiting} made it once more: "
            "fewer batches on {gone}. Give every rank the same number of steps (drop_last, a "
            "sampler that pads), or use DDP's `join()`.",
            gone=missed,
            waiting=rank_list(them),
            times=times,
        )
    return ""


def _times_in_backward(outcome: Outcome, work: dict) -> int:
    """How often a rank has made the call that is waited for, from no line of Python's."""
    alike = [call for call in outcome.calls if _what(call) == _what(work)]
    return sum(call.get("file") is None for call in alike)


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
    lines = [say("ranks call different collectives as number {seq} of their group:", seq=seq)]
    for rank, call in sorted(called.items()):
        brought = f"{call['shapes']} {'/'.join(call['dtypes'])}"
        lines.append(call_of(rank, call["op"], brought, call))
    return mismatch([call["op"] for call in called.values()], odd, lines, called[odd[0]])


def silent(outcomes: Sequence[Outcome]) -> Finding | None:
    """Nothing moves, and no collective proves why: a stopped rank, a cycle of messages, a rank busy
    elsewhere."""
    stuck = _stuck(outcomes)
    return _stopped(stuck) or _send_cycle(stuck) or _busy(stuck, waits_for(outcomes))


def _stopped(stuck: list[Outcome]) -> Finding | None:
    stopped = [outcome.rank for outcome in stuck if outcome.state == "stopped"]
    if not stopped:
        return None
    text = say_number(
        "{ranks} is stopped (SIGSTOP, a debugger, or Ctrl-Z): `kill -CONT` lets a process go on.",
        "{ranks} are stopped (SIGSTOP, a debugger, or Ctrl-Z): `kill -CONT` lets a process go on.",
        len(stopped),
        ranks=rank_list(stopped),
    )
    return Finding(fault="sigstop", ranks=tuple(stopped), text=text)


def _send_cycle(stuck: list[Outcome]) -> Finding | None:
    cycle = _cycle(stuck)
    if not cycle:
        return None
    inside = [outcome for outcome in stuck if outcome.rank in cycle]
    first = next(outcome for outcome in inside if outcome.rank == cycle[0])
    calls = [
        say(
            "rank {rank} in {call} with rank {peer}",
            rank=outcome.rank,
            call=outcome.where["call"],
            peer=outcome.where["peer"],
        )
        for outcome in inside
    ]
    return Finding(
        fault="send_cycle",
        ranks=cycle,
        where=first.where,
        text=say(
            "a cycle: {calls}. Each waits for the other to do the opposite. Let one side receive "
            "first, or use isend and irecv, and wait for both.",
            calls=say("list|, ").join(calls),
        ),
    )


def _busy(stuck: list[Outcome], waits: dict[int, tuple[int, ...]]) -> Finding | None:
    """Ranks in no collective: those that others wait for, if there are any."""
    busy = [each for each in stuck if not each.pending and not each.where.get("call")]
    awaited = set().union(*waits.values())
    busy = [outcome for outcome in busy if outcome.rank in awaited] or busy
    if not busy:
        return None
    ranks = [outcome.rank for outcome in busy]
    text = say_number(
        "{ranks} is in no collective but busy at {place}: an endless loop, a wait for something "
        "outside, or work that is only slow.",
        "{ranks} are in no collective but busy at {place}: an endless loop, a wait for something "
        "outside, or work that is only slow.",
        len(busy),
        ranks=rank_list(ranks),
        place=line_of(busy[0].where),
    )
    return Finding(fault="hang", ranks=tuple(ranks), where=busy[0].where, text=text)


def place_of(outcome: Outcome) -> str:
    """Where a stuck rank is, in words."""
    call = outcome.where.get("call")
    if not call and outcome.pending:
        call = outcome.pending[0]["op"]
    line = line_of(outcome.where)
    return say("{call} at {line}", call=call, line=line) if call else line


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
