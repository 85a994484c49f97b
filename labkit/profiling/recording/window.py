"""The part of a recorded script that its steps are in."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from labkit.timeline import Timeline

STEP = "Optimizer.step#"
"""how the label of an optimizer's step begins"""
WARM_STEPS = 2
"""steps that are left out, where there are more"""
MOST_DRAWN = 3_000
"""spans that one picture is made of; steps beyond are left out"""


class Window(NamedTuple):
    """The steps that are looked at."""

    timeline: Timeline
    """their spans, each rank's own"""
    steps: int
    """how many; 0 where the script has none, and all of it is looked at"""
    bounds_us: tuple[tuple[float, float], ...]
    """(start, end) on each rank"""
    first: int = 0
    """the optimizer's step at whose end it begins, counted from 0"""


def window(timeline: Timeline) -> Window:
    """From the end of one optimizer's step to the end of a later one, the first steps left out.

    Without a whole step on every rank: everything, and 0 steps. Of several optimizers, the one
    that steps last counts.
    """
    ends = [_ends(timeline, rank) for rank in range(timeline.num_ranks)]
    fewest = min(map(len, ends), default=0)
    if fewest < 2:
        return Window(timeline, 0, _all(timeline))
    first = min(WARM_STEPS, fewest - 1) - 1
    last = fewest - 1
    while True:
        bounds = tuple((mine[first], mine[last]) for mine in ends)
        part = _within(timeline, bounds)
        if len(part) <= MOST_DRAWN or last - first == 1:
            return Window(part, last - first, bounds, first)
        last -= 1


def without_cut(timeline: Timeline, ranks: Sequence[int]) -> Timeline:
    """The same without the last optimizer step of some ranks, and what lies behind its start: the
    recording ended in it."""
    kept = np.ones(len(timeline), bool)
    for rank in ranks:
        mine = timeline.rank == rank
        starts = timeline.start_us[mine & _steps(timeline)]
        kept &= ~mine | (timeline.start_us < starts.max(initial=0.0))
    return timeline.select(kept)


def _steps(timeline: Timeline) -> np.ndarray:
    """Which spans are optimizer steps."""
    named = [label.startswith(STEP) for label in timeline.label.tolist()]
    return (timeline.lane == "mark") & np.array(named, bool)


def _ends(timeline: Timeline, rank: int) -> list[float]:
    """When a rank's steps end."""
    found = timeline.select((timeline.rank == rank) & _steps(timeline))
    return step_ends(list(zip(found.label.tolist(), found.end_us.tolist(), strict=True)))


def step_ends(marks: Sequence[tuple[str, float]]) -> list[float]:
    """When steps end, of marks (label, end). Of several optimizers that step one after the other,
    the last one's."""
    found = sorted((end, label) for label, end in marks if label.startswith(STEP))
    return [end for end, label in found if label == found[-1][1]]


def _within(timeline: Timeline, bounds: Sequence[tuple[float, float]]) -> Timeline:
    """The spans that begin between their rank's bounds, and end there: the last step's messages are
    written down by a thread that may be late."""
    begin = np.array([start for start, _ in bounds])
    end = np.array([end for _, end in bounds])
    at = timeline.rank
    part = timeline.select((timeline.start_us >= begin[at]) & (timeline.start_us < end[at]))
    return replace(part, end_us=np.minimum(part.end_us, end[part.rank]))


def _all(timeline: Timeline) -> tuple[tuple[float, float], ...]:
    if not len(timeline):
        return ((0.0, 0.0),) * timeline.num_ranks
    start_us = float(timeline.start_us.min())
    return ((start_us, float(timeline.end_us.max())),) * timeline.num_ranks
