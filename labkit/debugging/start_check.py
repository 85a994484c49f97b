"""The exercises of chapter 00, start here: who waits how long, a mean over ranks of which some have
nothing, and a check that finds a broken all-reduce."""

from collections.abc import Callable, Iterator
from itertools import chain
from math import isclose

from labkit.check import exercise, hint, on_ranks, status, wrong
from labkit.launching.verdicts.verdict import LaunchError
from labkit.words import say, to_say

__all__ = ["hint", "honest_check", "mean_of_all", "status", "waits"]
Found = Iterator[tuple[str, str]]
_SECONDS = (
    ((3.0,), (1.0,)),
    ((1.0, 5.0), (4.0, 2.0)),
    ((2.0, 2.0, 2.0), (2.0, 2.0, 2.0)),
    ((1.0, 0.0, 4.0), (0.5, 3.0, 1.0), (2.0, 1.0, 1.0)),
)
_NUMBERS = (
    ((1.0, 2.0), (6.0,)),
    ((4.0,), (), (1.0, 1.0)),
    ((), (), (), (2.5, 0.5, -6.0)),
)
FAULTS = {
    "nothing": to_say("does nothing"),
    "first": to_say("gives everyone what rank 0 has"),
    "times": to_say("multiplies a rank's own numbers by the number of ranks"),
    "root": to_say("gives the sum to rank 0 alone"),
    "first out": to_say("leaves rank 0 out of the sum"),
    "last out": to_say("leaves the last rank out of the sum"),
}
"""How ``honest_check`` breaks all_reduce: name -> what it does then."""


@exercise
def waits(answer: Callable) -> Found:
    """``answer(seconds)``: how long each rank waits in all; ``seconds[rank][step]`` is what it
    computes before the all-reduce at the end of each step."""
    for seconds in _SECONDS:
        ends = [max(step) for step in zip(*seconds, strict=True)]
        right = [sum(ends) - sum(mine) for mine in seconds]
        given = [list(rank) for rank in seconds]
        mine = [float(each) for each in answer(given)]
        if len(mine) != len(right) or not all(map(_close, mine, right)):
            yield wrong(
                "seconds {seconds}: the all-reduces end {ends} s after their step began, so the "
                "ranks wait {right}; got {mine}",
                seconds=given,
                ends=ends,
                right=right,
                mine=mine,
            )


@exercise
def mean_of_all(answer: Callable) -> Found:
    """``answer(numbers)``, called on every rank with its own list: the mean over all numbers,
    on every rank. A list may be empty."""
    for lists in _NUMBERS:
        every = list(chain.from_iterable(lists))
        right = sum(every) / len(every)
        run = on_ranks(len(lists), _mean, answer, lists)
        for rank, mine in enumerate(run):
            if not _close(mine, right):
                yield wrong(
                    "the ranks have {lists}: rank {rank} should get {right:.4g}; got {mine:.4g}",
                    lists=[list(numbers) for numbers in lists],
                    rank=rank,
                    right=right,
                    mine=mine,
                )


@exercise
def honest_check(answer: Callable) -> Found:
    """``answer()``, called on every rank: returns where all_reduce adds, and raises AssertionError
    on a rank at least where it does anything else."""
    for num_ranks in (2, 3, 4):
        for rank, raised in enumerate(on_ranks(num_ranks, _checked, answer, "")):
            if raised:
                yield wrong(
                    "{num_ranks} ranks: all_reduce is right, and rank {rank} says {raised}",
                    num_ranks=num_ranks,
                    rank=rank,
                    raised=raised,
                )
    for fault, what in FAULTS.items():
        if not _finds(answer, fault):
            yield wrong("3 ranks: all_reduce {what}, and your check found nothing", what=say(what))


def _finds(answer: Callable, fault: str) -> bool:
    """Whether a rank raises; one that leaves the others waiting has raised as well."""
    try:
        return any(on_ranks(3, _checked, answer, fault, hang_s=3.0))
    except LaunchError:
        return True


def _close(mine: float, right: float) -> bool:
    return isclose(mine, right, rel_tol=1e-5, abs_tol=1e-6)


# --- in the ranks ---


def _mean(answer: Callable, lists: tuple[tuple[float, ...], ...]) -> float:
    """What the answer makes of this rank's numbers."""
    import torch.distributed as dist

    return float(answer(list(lists[dist.get_rank()])))


def _checked(answer: Callable, fault: str) -> str:
    """What the answer raised, "" for nothing, with all_reduce broken in a way of FAULTS."""
    import torch.distributed as dist

    right = dist.all_reduce
    if fault:
        dist.all_reduce = _broken(fault, right)
    try:
        answer()
    except AssertionError as error:
        return repr(error)
    finally:
        dist.all_reduce = right
    return ""


def _broken(fault: str, right: Callable) -> Callable:
    """An all_reduce with a fault. It takes part in as many collectives as the right one."""
    import torch.distributed as dist

    def all_reduce(tensor: object, *_: object, **__: object) -> None:
        mine = tensor.clone()
        rank = dist.get_rank()
        last = dist.get_world_size() - 1
        left_out = {"first": range(1, last + 1), "first out": (0,), "last out": (last,)}
        if rank in left_out.get(fault, ()):
            mine.zero_()
        right(mine)
        if fault in left_out or (fault == "root" and rank == 0):
            tensor.copy_(mine)
        elif fault == "times":
            tensor.mul_(dist.get_world_size())

    return all_reduce
