"""The exercises of chapter 02, collectives. Answers are graded at sizes that the chapter does not
show.

On real ranks every message is logged: how many bytes, how many, and how many steps they take one
after another.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import ceil, log2
from typing import Any

from labkit.check import exercise, hint, on_ranks, over_budget, status, wrong
from labkit.collectives.algorithms import lower_bound_bytes, plan
from labkit.collectives.network import Link, time_us, uniform
from labkit.units import format_bytes, format_us
from labkit.words import say

__all__ = [
    "choose_algorithm",
    "hint",
    "least_bytes",
    "ring_all_reduce",
    "status",
    "tree_broadcast",
]

_SLOW = Link(alpha_us=50.0, bandwidth_gb_per_s=1.0)
_FAST = Link(alpha_us=2.0, bandwidth_gb_per_s=300.0)
_CASES = (
    (8, 2e5, _SLOW),
    (8, 1e4, _SLOW),
    (8, 1e6, _FAST),
    (8, 1e7, _FAST),
    (3, 100, _SLOW),
    (2, 10, _FAST),
    (48, 2e6, _FAST),
    (48, 1e7, _FAST),
    (6, 3e4, _SLOW),
    (6, 1e5, _SLOW),
)  # ranks, bytes, links to choose an algorithm for
Log = list[tuple[str, int]]
"""of one rank, in order: ("send", peer), ("recv", peer), or ("wait", which entry it waited for)"""
Name = tuple[int, int, int]
"""of a message: source, destination, how many between the same two before it"""


@exercise
def ring_all_reduce(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, num_ranks, tensor)`` leaves in ``tensor`` (1-D, any length) the sum over all
    ranks.

    By torch.distributed's send, recv, isend, irecv or batch_isend_irecv. Budget: 2(N-1) steps
    (messages count in the order in which they are posted), and the bytes of a ring whose chunks
    differ by at most one number.
    """
    for num_ranks, size in ((2, 7), (3, 12), (5, 13)):
        results, counts, num_steps = _exchange(answer, num_ranks, size)
        case = say("{num_ranks} ranks, {size} numbers", num_ranks=num_ranks, size=size)
        ones = int("1" * num_ranks)
        yield from _faults(case, results, [(place % 9 + 1) * ones for place in range(size)])
        most = max(counts)
        least = 2 * (size - size // num_ranks) * 4
        if most > least or num_steps > 2 * (num_ranks - 1):
            yield over_budget(
                "{case}: a rank sends up to {most} bytes, a ring {least}; the messages take "
                "{num_steps} steps, a ring's {fewest}",
                case=case,
                most=most,
                least=least,
                num_steps=num_steps,
                fewest=2 * (num_ranks - 1),
            )


@exercise
def tree_broadcast(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, num_ranks, tensor, root)`` copies the root's tensor to all, by
    torch.distributed's send and recv.

    Budget: ceil(log2 N) steps, in each of which a rank sends one message at most; N-1 times the
    tensor in all.
    """
    for num_ranks, root in ((4, 0), (5, 3), (6, 1)):
        results, counts, num_steps = _exchange(answer, num_ranks, 3, root)
        case = say("{num_ranks} ranks, 3 numbers, root {root}", num_ranks=num_ranks, root=root)
        yield from _faults(case, results, [10**root * value for value in (1, 2, 3)])
        sent = sum(counts)
        least = 12 * (num_ranks - 1)
        fewest = ceil(log2(num_ranks))
        if num_steps > fewest or sent > least:
            yield over_budget(
                "{case}: {num_steps} steps, a tree takes {fewest}; {sent} bytes in all, a tree "
                "sends {least}",
                case=case,
                num_steps=num_steps,
                fewest=fewest,
                sent=sent,
                least=least,
            )


def _exchange(
    answer: Callable, num_ranks: int, size: int, *more: int
) -> tuple[list, list[int], int]:
    """Runs an answer: each rank's numbers and bytes sent, and the steps of all messages."""
    results, counts, logs = zip(*on_ranks(num_ranks, _watched, answer, size, *more), strict=True)
    return list(results), list(counts), _num_steps(logs)


def _faults(case: str, results: list, right: list[int]) -> Iterator[tuple[str, str]]:
    """The first rank whose numbers are not the right ones."""
    for rank, got in enumerate(results):
        if got != right:
            yield wrong(
                "{case}: rank r brings 1, 2, ... times 10^r, so that a digit shows from whom it "
                "comes\nrank {rank} ends with {got}\nright is         {right}",
                case=case,
                rank=rank,
                got=got,
                right=right,
            )


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
    """The steps that logged messages take, if each takes one.

    A message goes when both its ends have posted it; a rank posts after what it waited for, and has
    one message out and one in at a time.
    """
    names = _names(logs)
    steps: dict[Name, int] = {}
    for _ in names:  # each pass settles one more message of the longest chain, at least
        for rank, log in enumerate(logs):
            _settle(rank, log, names, steps)
    return max(steps.values(), default=0)


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
def least_bytes(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(primitive, num_ranks, num_bytes)``: the most bytes that surely have to leave or
    reach some rank.

    The greatest lower bound, whatever the algorithm, of what the busiest rank sends or receives;
    ``num_bytes`` is the whole buffer (gathered, or before it is scattered).
    """
    for primitive in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
        for num_ranks, num_bytes in ((2, 1000), (4, 1000), (3, 1000), (64, 6400), (1, 1000)):
            given = answer(primitive, num_ranks, num_bytes)
            right = lower_bound_bytes(primitive, num_ranks, num_bytes)
            if not abs(given - right) <= 1e-6 * num_bytes:
                why = say("true, but no algorithm gets by with less than {right:g}", right=right)
                if given > right:
                    why = say("a ring gets by with {right:g}", right=right)
                case = say(
                    "answer({primitive!r}, {num_ranks}, {num_bytes}) is {given!r:.40}",
                    primitive=primitive,
                    num_ranks=num_ranks,
                    num_bytes=num_bytes,
                    given=given,
                )
                yield wrong("{case}: {why}", case=case, why=why)


@exercise
def choose_algorithm(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_ranks, num_bytes, alpha_us, bandwidth_gb_per_s)`` is "ring" or "tree", for an
    all-reduce.

    The tree sends the whole buffer along every edge. Times are simulated on a network whose links
    are all alike.
    """
    for num_ranks, num_bytes, link in _CASES:
        given = answer(num_ranks, num_bytes, link.alpha_us, link.bandwidth_gb_per_s)
        times = {}
        for name in ("ring", "tree"):
            steps = plan("all_reduce", name, num_ranks)
            times[name] = time_us(steps, uniform(num_ranks, link), num_bytes)
        numbers = f"{num_ranks}, {num_bytes:g}, {link.alpha_us:g}, {link.bandwidth_gb_per_s:g}"
        case = say("answer({numbers}) is {given!r:.40}", numbers=numbers, given=given)
        if given not in times:
            yield wrong('{case}; choose "ring" or "tree"', case=case)
        best = min(times, key=times.get)
        if times[given] > 1.001 * times[best]:
            yield over_budget(
                "{case}: {size} take {took}, by {best} {least}",
                case=case,
                size=format_bytes(num_bytes),
                took=format_us(times[given]),
                best=best,
                least=format_us(times[best]),
            )
