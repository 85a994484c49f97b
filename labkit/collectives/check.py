"""The exercises of chapter 02, collectives. Answers are graded at sizes that the chapter does not
show.

On real ranks every message is logged: how many bytes, how many, and how many steps they take one
after another.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import ceil, log2, nan
from numbers import Real
from typing import Any

from labkit.check import exercise, hint, on_ranks, over_budget, status, wrong
from labkit.collectives.algorithms import plan
from labkit.collectives.network import Link, formula_us
from labkit.collectives.plans import sent_bytes
from labkit.words import say

__all__ = [
    "halving_all_reduce",
    "hint",
    "predicted_all_reduce",
    "ring_all_reduce",
    "status",
    "tree_broadcast",
    "which_algorithm",
]

_SLOW = Link(alpha_us=50.0, bandwidth_gb_per_s=1.0)
_FAST = Link(alpha_us=2.0, bandwidth_gb_per_s=300.0)
_ASKED = (
    (4, 4e5, Link(alpha_us=10_000.0, bandwidth_gb_per_s=0.1)),
    (6, 1e3, _SLOW),
    (6, 1e6, _SLOW),
    (48, 64e6, _FAST),
    (100, 256e3, _FAST),
)
"""ranks, bytes and a link each, as exercise 3 is asked"""
Log = list[tuple[str, int]]
"""of one rank, in order: ("send", peer), ("recv", peer), or ("wait", which entry it waited for)"""
Name = tuple[int, int, int]
"""of a message: source, destination, how many between the same two before it"""


@exercise
def tree_broadcast(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, num_ranks, tensor, root)`` copies the root's tensor to all, by
    torch.distributed's send and recv.

    Budget: ceil(log2 N) steps, in each of which a rank sends one message at most; N-1 times the
    tensor in all.
    """
    for num_ranks, root in ((4, 0), (5, 3), (6, 1)):
        results, counts, logs = _exchange(answer, num_ranks, 3, root)
        case = say("{num_ranks} ranks, 3 numbers, root {root}", num_ranks=num_ranks, root=root)
        right = [10**root * value for value in (1, 2, 3)]
        yield from _faults(case, results, right, logs)
        num_steps = _num_steps(logs)
        sent = sum(counts)
        least = 12 * (num_ranks - 1)
        fewest = ceil(log2(num_ranks))
        if num_steps > fewest or sent > least:
            yield over_budget(
                "{case}: {num_steps} steps, a tree takes {fewest}; {sent} bytes in all, a tree "
                "sends {least}\n{chart}",
                case=case,
                num_steps=num_steps,
                fewest=fewest,
                sent=sent,
                least=least,
                chart=_chart(logs),
            )


@exercise
def which_algorithm(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_bytes, sent_bytes)`` names the algorithm of an all-reduce of ``num_bytes``, of
    which rank r sent ``sent_bytes[r]``: "ring", "tree" or "parameter_server". Four ranks or more;
    the root may be any of them."""
    for num_ranks in (4, 5, 8, 12):
        for name, options in (("ring", {}), ("tree", {"root": 1}), ("parameter_server", {})):
            sent = sent_bytes(plan("all_reduce", name, num_ranks, **options), 1200.0)
            told = [round(each) for each in sent]
            turned = [*told[num_ranks // 2 :], *told[: num_ranks // 2]]
            given = answer(1200, list(turned))
            if given != name:
                yield wrong(
                    "answer(1200, {turned}) is {given!r:.40}; it was a {name}",
                    turned=turned,
                    given=given,
                    name=name,
                )


@exercise
def halving_all_reduce(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, num_ranks, tensor)`` leaves in ``tensor`` the sum over all ranks, which are a
    power of two; the length is a multiple of their number.

    By torch.distributed's send, recv, isend, irecv or batch_isend_irecv. Budget: 2 log2 N steps
    (messages count in the order in which they are posted), and 2(N-1)/N of the tensor's bytes from
    each rank.
    """
    for num_ranks, size in ((2, 6), (4, 12)):
        yield from _summed(answer, num_ranks, size, 2 * round(log2(num_ranks)))


@exercise
def ring_all_reduce(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, num_ranks, tensor)`` leaves in ``tensor`` the sum over all ranks, as a ring
    does; the length is a multiple of their number.

    By the same messages. Budget: 2(N-1) steps, and 2(N-1)/N of the tensor's bytes from each rank.
    """
    for num_ranks in (3, 5):
        yield from _summed(answer, num_ranks, 2 * num_ranks, 2 * (num_ranks - 1))


def _summed(answer: Callable, num_ranks: int, size: int, fewest: int) -> Iterator[tuple[str, str]]:
    """What is wrong with an all-reduce of so many numbers, or costs more than ``fewest`` steps and
    2(N-1)/N of the bytes."""
    results, counts, logs = _exchange(answer, num_ranks, size)
    case = say("{num_ranks} ranks, {size} numbers", num_ranks=num_ranks, size=size)
    ones = int("1" * num_ranks)
    right = [(place % 9 + 1) * ones for place in range(size)]
    yield from _faults(case, results, right, logs)
    most = max(counts)
    least = 2 * (size - size // num_ranks) * 4
    if most > least or _num_steps(logs) > fewest:
        yield over_budget(
            "{case}: a rank sends up to {most} bytes of {least}; the messages take {num_steps} "
            "steps of {fewest}\n{chart}",
            case=case,
            most=most,
            least=least,
            num_steps=_num_steps(logs),
            fewest=fewest,
            chart=_chart(logs),
        )


def _exchange(
    answer: Callable, num_ranks: int, size: int, *more: int
) -> tuple[list, list[int], list[Log]]:
    """Runs an answer: each rank's numbers, the bytes it sent, and its log."""
    results, counts, logs = zip(*on_ranks(num_ranks, _watched, answer, size, *more), strict=True)
    return list(results), list(counts), list(logs)


def _faults(
    case: str, results: list, right: list[int], logs: Sequence[Log]
) -> Iterator[tuple[str, str]]:
    """The first rank whose numbers are not the right ones, and who sent to whom."""
    for rank, got in enumerate(results):
        if got != right:
            yield wrong(
                "{case}: rank r brings 1, 2, ... times 10^r, so that a digit shows from whom it "
                "comes\nrank {rank} ends with {got}\nright is         {right}\n{chart}",
                case=case,
                rank=rank,
                got=got,
                right=right,
                chart=_chart(logs),
            )


def _chart(logs: Sequence[Log]) -> str:
    """Who sends to whom in which step, a line per rank: ">2" is a message to rank 2."""
    steps = _steps(logs)
    rows = [["."] * max(steps.values(), default=0) for _ in logs]
    for (src, dst, _), step in steps.items():
        rows[src][step - 1] = f">{dst}"
    lines = []
    for rank, row in enumerate(rows):
        name = say("rank {rank} sends", rank=rank)
        lines.append(f"{name}  " + "".join(f"{each:<4}" for each in row).rstrip())
    return "\n".join(lines)


def _watched(answer: Callable, size: int, *more: int) -> tuple[list[int], int, Log]:
    """A rank's side: what stands in the tensor at the end, the bytes it sent, and its log."""
    import torch
    import torch.distributed as dist

    from labkit.measure import traffic

    me = dist.get_rank()
    log: Log = []
    tensor = (torch.arange(size) % 9 + 1.0) * 10**me
    _log(log, answer)
    with traffic.count() as counted:
        answer(me, dist.get_world_size(), tensor, *more)
    others = set(counted.calls) - {"send", "recv"}
    if others:
        raise ValueError(
            "use send and recv (isend, irecv, batch_isend_irecv) only; you called "
            f"{', '.join(others)}"
        )
    return [round(value) for value in tensor.tolist()], counted.payload_bytes["send"], log


def _log(log: Log, answer: Callable) -> None:
    """From now on this rank's messages are logged: send, recv and batch_isend_irecv all call isend
    and irecv."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as inner

    for name in ("isend", "irecv"):
        plain = getattr(inner, name)
        logged = _logged(plain, name[1:], log)
        setattr(inner, name, logged)
        setattr(dist, name, logged)  # the same object: P2POp compares
        mine = getattr(answer, "__globals__", {})  # where a cell said: from ... import isend
        for key, value in list(mine.items()):
            if value is plain:
                mine[key] = logged


def _logged(function: Callable, kind: str, log: Log) -> Callable:
    from torch.distributed import distributed_c10d as inner

    is_inside = False

    @functools.wraps(function)
    def post(tensor: Any, peer: int | None = None, *args: Any, **kwargs: Any) -> "_Work":
        nonlocal is_inside
        given = args if peer is None else (peer, *args)
        if is_inside:  # where torch has a default device, a call comes by twice
            return function(tensor, *given, **kwargs)
        named = [peer, *(kwargs.get(name) for name in ("src", "dst", "group_src", "group_dst"))]
        other = next((each for each in named if each is not None), None)
        if other is None:
            raise ValueError("say from which rank you receive (src=)")
        if not 0 <= other < inner.get_world_size():  # gloo would crash
            raise ValueError(f"ranks are 0 to {inner.get_world_size() - 1}; got {other}")
        log.append((kind, other))
        is_inside = True
        try:
            work = function(tensor, *given, **kwargs)
        finally:
            is_inside = False
        return _Work(work, log, len(log) - 1)

    return post


class _Work:
    """torch's handle of a message, which logs when it was waited for."""

    def __init__(self, work: Any, log: Log, number: int) -> None:
        self._work = work
        self._log = log
        self._number = number

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        done = self._work.wait(*args, **kwargs)
        self._log.append(("wait", self._number))
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _num_steps(logs: Sequence[Log]) -> int:
    """The steps that logged messages take, if each takes one."""
    return max(_steps(logs).values(), default=0)


def _steps(logs: Sequence[Log]) -> dict[Name, int]:
    """The step, from 1, in which each logged message goes, if each takes one.

    A message goes when both its ends have posted it; a rank posts after what it waited for, and has
    one message out and one in at a time.
    """
    names = _names(logs)
    steps: dict[Name, int] = {}
    for _ in names:  # each pass settles one more message of the longest chain, at least
        for rank, log in enumerate(logs):
            _settle(rank, log, names, steps)
    return steps


def _names(logs: Sequence[Log]) -> dict[tuple[int, int], Name]:
    """(rank, entry of its log) -> the message that was posted there."""
    names = {}
    for rank, log in enumerate(logs):
        before: Counter = Counter()
        for number, (kind, peer) in enumerate(log):
            if kind != "wait":
                pair = (rank, peer) if kind == "send" else (peer, rank)
                names[rank, number] = (*pair, before[kind, peer])
                before[kind, peer] += 1
    return names


def _settle(
    rank: int, log: Log, names: dict[tuple[int, int], Name], steps: dict[Name, int]
) -> None:
    """Moves a rank's messages to the steps in which they can go, by what is known of the others."""
    clock = 0
    busy_until = {"send": 0, "recv": 0}
    for number, (kind, peer) in enumerate(log):
        if kind == "wait":
            waited_for = names[rank, peer]
            clock = max(clock, steps[waited_for])
        else:
            name = names[rank, number]
            steps[name] = max(steps.get(name, 0), clock + 1, busy_until[kind] + 1)
            busy_until[kind] = steps[name]


@exercise
def predicted_all_reduce(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(alpha_us, bandwidth_gb_per_s, num_ranks, num_bytes)`` is the faster all-reduce,
    "ring" or "tree", and its time in microseconds, to 1 %, by the closed forms."""
    for num_ranks, num_bytes, link in _ASKED:
        times_us = {
            name: formula_us("all_reduce", name, num_ranks, num_bytes, link)
            for name in ("ring", "tree")
        }
        faster = min(times_us, key=times_us.get)
        given = answer(link.alpha_us, link.bandwidth_gb_per_s, num_ranks, num_bytes)
        name, time_us = _named_time(given)
        if name != faster or not abs(time_us / times_us[faster] - 1) <= 0.01:
            yield wrong(
                "answer({alpha:g}, {bandwidth:g}, {num_ranks}, {num_bytes:g}) is {given!r:.60}; "
                "a ring takes {ring:.6g} us, a tree {tree:.6g} us",
                alpha=link.alpha_us,
                bandwidth=link.bandwidth_gb_per_s,
                num_ranks=num_ranks,
                num_bytes=num_bytes,
                given=given,
                **times_us,
            )


def _named_time(given: Any) -> tuple[Any, float]:
    """An answer's name and time; not a number where it has none."""
    match given:
        case (name, Real() as time_us):
            return name, float(time_us)
    return None, nan
