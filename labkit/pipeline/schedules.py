"""The pipeline schedules of the field, each from the rule of its paper, in the order torch 2.13
executes it.

GPipe: Huang et al. 2018, arXiv 1811.06965. 1F1B and interleaved 1F1B: Narayanan et al. 2021, arXiv
2104.04473. ZB-H1, ZB-H2 and ZBV: Qi et al. 2023, arXiv 2401.10241; the paper's automatic ones,
which need times, are in ``zero_bubble``. All but ZBV are one rule, ``_alternate``, and differ in
how many forwards warm a rank up, how many stages it holds, and whether the backward is split.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain

from labkit.pipeline.schedule import Action, Schedule, parse, phases, validate
from labkit.units import check_whole
from labkit.words import to_say

__all__ = [
    "SCHEDULES",
    "TITLES",
    "Action",
    "Schedule",
    "gpipe",
    "interleaved_1f1b",
    "interleaved_zero_bubble",
    "naive",
    "one_f_one_b",
    "parse",
    "phases",
    "validate",
    "zbv",
    "zero_bubble_h1",
    "zero_bubble_h2",
]


def naive(num_ranks: int, num_microbatches: int = 1) -> Schedule:
    """One microbatch at a time, all the way forward and back: one rank works, the others wait,
    whatever the count."""
    return _alternate("naive", num_ranks, num_microbatches, lambda rank: 0)


def gpipe(num_ranks: int, num_microbatches: int) -> Schedule:
    """All forwards, then all backwards (Huang et al. 2018, section 2.2): every activation is kept
    until then."""
    return _alternate("gpipe", num_ranks, num_microbatches, lambda rank: num_microbatches)


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """1F1B with flush (Narayanan et al. 2021, section 2.2.1): the bubble of GPipe, with fewer
    activations kept.

    Rank r runs p-1-r forwards to fill the pipeline, then one forward and one backward in turn, then
    what is left.
    """
    return _alternate("1f1b", num_ranks, num_microbatches, lambda rank: num_ranks - 1 - rank)


def interleaved_1f1b(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2): rank r holds stages r, r+p, r+2p,
    ...

    Microbatches pass in equal rounds of p (or a little more, as torch allows). Raises ValueError
    where they cannot.
    """
    first = (num_chunks - 1) * _per_round(num_ranks, num_microbatches, num_chunks)
    return _alternate(
        "interleaved_1f1b",
        num_ranks,
        num_microbatches,
        lambda rank: first + 2 * (num_ranks - 1 - rank),
        num_chunks,
    )


def zero_bubble_h1(num_ranks: int, num_microbatches: int) -> Schedule:
    """ZB-H1 (Qi et al. 2023, section 2.1): 1F1B whose weight-backwards wait, r of them on rank r,
    to fill the end.

    Torch runs it as ScheduleInterleavedZeroBubble with one stage per rank.
    """
    return _alternate(
        "zb_h1",
        num_ranks,
        num_microbatches,
        lambda rank: num_ranks - 1 - rank,
        lag=lambda rank: rank,
    )


def zero_bubble_h2(num_ranks: int, num_microbatches: int) -> Schedule:
    """ZB-H2 (Qi et al. 2023, section 2.2): twice the warm-up of 1F1B fills the beginning, and 2 r
    weight-backwards wait on rank r to fill the end. Every rank keeps 2p-1 microbatches.

    The ranks end one after the other, as they began: that is a gain where none waits for the others
    before its optimizer (section 4). torch has no class for it; its interpreting runtime runs it.
    """
    return _alternate(
        "zb_h2",
        num_ranks,
        num_microbatches,
        lambda rank: 2 * (num_ranks - 1 - rank),
        lag=lambda rank: 2 * rank,
    )


def interleaved_zero_bubble(num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> Schedule:
    """ZB-H1 over several chunks, as torch's ScheduleInterleavedZeroBubble runs it. Raises as
    ``interleaved_1f1b``."""
    first = (num_chunks - 1) * _per_round(num_ranks, num_microbatches, num_chunks)
    return _alternate(
        "interleaved_zb",
        num_ranks,
        num_microbatches,
        lambda rank: first + num_ranks - 1 - rank,
        num_chunks,
        lag=lambda rank: rank,
    )


def zbv(num_ranks: int, num_microbatches: int) -> Schedule:
    """ZBV (Qi et al. 2023, section 6): two stages per rank in a V, rank r holding r and 2p-1-r,
    backward split.

    Its warm-up needs 2p-1 microbatches; with fewer, the missing ones are left out of the same
    order.
    """
    _check_counts(num_ranks, num_microbatches)
    num_planned = max(num_microbatches, 2 * num_ranks - 1)
    _check_counts(num_ranks, num_planned)

    def steps(rank: int) -> list[Step]:
        far = num_ranks - rank  # the number of ranks from here to the bottom of the V
        down = rank
        up = 2 * num_ranks - 1 - rank
        backward_down = [("I", down), ("W", down)]
        pass_up = [("F", up), ("I", up), ("W", up)]
        warmup = [("F", down)] * (2 * far - 1) + [("F", up), ("F", down)] * rank + pass_up * far
        num_full = num_planned - 2 * num_ranks + 1 + rank
        steady = [("F", down), *backward_down, *pass_up] * num_full
        steady += (backward_down + pass_up) * (far - 1)
        cooldown = (
            [("I", down), ("I", up)] * rank
            + backward_down * far
            + [("W", up)] * rank
            + [("W", down)] * rank
        )
        return warmup + steady + cooldown

    stage_rank = (*range(num_ranks), *reversed(range(num_ranks)))
    return _number("zbv", num_microbatches, stage_rank, map(steps, range(num_ranks)))


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved_1f1b": interleaved_1f1b,
    "zb_h1": zero_bubble_h1,
    "zb_h2": zero_bubble_h2,
    "interleaved_zb": interleaved_zero_bubble,
    "zbv": zbv,
}
TITLES: dict[str, str] = {
    "naive": to_say("Naive"),
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": to_say("Interleaved 1F1B"),
    "zb_h1": "ZB-H1",
    "zb_h2": "ZB-H2",
    "interleaved_zb": to_say("Interleaved zero bubble"),
    "zbv": "ZBV",
}


Step = tuple[str, int]
"""kind, stage: an action before it has a microbatch"""


def _alternate(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    warmup: Callable[[int], int],
    num_chunks: int = 1,
    lag: Callable[[int], int] | None = None,
) -> Schedule:
    """``warmup(rank)`` forwards, then one forward and one backward in turn, then the backwards that
    are left. ``lag(rank)``: where the backward is split, how many of its W wait."""
    per_round = _per_round(num_ranks, num_microbatches, num_chunks)

    def steps(rank: int) -> list[Step]:
        stages = range(rank, num_chunks * num_ranks, num_ranks)
        forwards = _in_rounds("F", stages, per_round, num_microbatches)
        backwards = _in_rounds("B", stages[::-1], per_round, num_microbatches)
        num_warmup = min(len(forwards), warmup(rank))
        num_paired = len(forwards) - num_warmup
        pairs = zip(forwards[num_warmup:], backwards[:num_paired], strict=True)
        order = [*forwards[:num_warmup], *chain.from_iterable(pairs), *backwards[num_paired:]]
        return _split_backward(order, lag=lag(rank)) if lag else order

    return _number(
        name, num_microbatches, tuple(range(num_ranks)) * num_chunks, map(steps, range(num_ranks))
    )


def _in_rounds(
    kind: str, stages: Iterable[int], per_round: int, num_microbatches: int
) -> list[Step]:
    """All microbatches through all stages of a rank: ``per_round`` pass a stage before the next
    stage's turn."""
    one_round: list[Step] = []
    for stage in stages:
        one_round += [(kind, stage)] * per_round
    return one_round * (num_microbatches // per_round)


def _split_backward(steps: list[Step], lag: int) -> list[Step]:
    """Every B becomes I, followed by the W of the I that came ``lag`` earlier; the W that are left
    come last."""
    split: list[Step] = []
    due: deque[Step] = deque()
    for kind, stage in steps:
        split.append(("I" if kind == "B" else kind, stage))
        if kind == "B":
            due.append(("W", stage))
            if len(due) > lag:
                split.append(due.popleft())
    return [*split, *due]


def _number(
    name: str, num_microbatches: int, stage_rank: tuple[int, ...], steps: Iterable[list[Step]]
) -> Schedule:
    """A Schedule from its steps: in every schedule here, the n-th of a kind on a stage is
    microbatch n."""
    orders = []
    for mine in steps:
        count = dict.fromkeys(mine, -1)
        numbered = []
        for kind, stage in mine:
            count[kind, stage] += 1
            if count[kind, stage] < num_microbatches:
                numbered.append(Action(stage, kind, count[kind, stage]))
        orders.append(tuple(numbered))
    return Schedule(
        name=name,
        num_ranks=len(orders),
        num_stages=len(stage_rank),
        num_microbatches=num_microbatches,
        stage_rank=stage_rank,
        orders=tuple(orders),
    )


def _per_round(num_ranks: int, num_microbatches: int, num_chunks: int) -> int:
    """How many microbatches pass a chunk before the rank turns to its next chunk."""
    _check_counts(num_ranks, num_microbatches, num_chunks)
    num_rounds = max(1, num_microbatches // num_ranks) if num_chunks > 1 else 1
    if num_microbatches % num_rounds:
        raise ValueError(
            f"interleaved schedules pass microbatches in m // p equal rounds; {num_microbatches} "
            f"do not divide into {num_rounds}. Take a multiple of {num_ranks}, the number of ranks"
        )
    return num_microbatches // num_rounds


def _check_counts(num_ranks: int, num_microbatches: int, num_chunks: int = 1) -> None:
    check_whole(
        1, 100_000, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks
    )
    actions = num_ranks * num_microbatches * num_chunks
    check_whole(1, 100_000, **{"ranks times microbatches times chunks": actions})
