"""Why a measured pipeline idles more (or less) than the predicted one, cause by cause, in
microseconds."""

from collections.abc import Callable, Iterator
from statistics import median

from labkit.pipeline.schedule import Action, Key, Schedule, walk
from labkit.timeline import COMM, COMPUTE, Timeline, busy_us
from labkit.units import format_us

CAUSES = {
    "durations": "actions that took longer than stated",
    "messages": "messages slower than predicted",
    "start-up": "ranks that began late",
    "runtime": "time between actions (the loss, waits for sends, Python)",
}
"""what each cause of a residual is, in words"""


def residual(predicted: Timeline, measured: Timeline) -> dict[str, float]:
    """Measured minus predicted idle time of all ranks together, in microseconds, split by cause.

    The schedule is retraced with one more thing as it was measured at a time, so the causes add up
    to "total": "durations" (actions took other than stated), "messages" (beyond the predicted
    message time), "start-up" (ranks began late), "runtime" (between actions: the loss, waits for
    sends, Python). Raises ValueError when the two timelines hold different actions.
    """
    order, took_us, messages_us = _order(measured), _durations(measured), _messages(predicted)
    pause_us = _pause_us(predicted)
    if took_us.keys() != _durations(predicted).keys():
        odd = min(took_us.keys() ^ _durations(predicted).keys())
        raise ValueError(
            f"a residual compares two timelines of one configuration; only one of these holds {odd}"
        )
    lags = list(_lags(measured, messages_us, pause_us))
    causes = {
        "durations": {},
        "messages": {action: lag for action, lag, waited, first in lags if waited and not first},
        "start-up": {action: lag for action, lag, _, first in lags if first},
        "runtime": {action: lag for action, lag, waited, first in lags if not waited and not first},
    }
    idle_us, known, before_us = {}, {}, _idle_us(predicted)
    for cause, more in causes.items():
        known = known | more
        after_us = _retraced_idle_us(order, took_us, messages_us, pause_us, known)
        idle_us[cause], before_us = after_us - before_us, after_us
    return {**idle_us, "total": _idle_us(measured) - _idle_us(predicted)}


def words(why: dict[str, float]) -> str:
    """A residual as one sentence, the largest cause first, small ones left out."""
    if not {*CAUSES, "total"} <= set(why):
        raise ValueError(f"a residual has {', '.join(CAUSES)} and total; got {list(why)}")
    large = [cause for cause in CAUSES if abs(why[cause]) >= 0.05 * abs(why["total"])]
    told = [
        f"{CAUSES[cause]}: {format_us(why[cause])}"
        for cause in sorted(large, key=lambda cause: -abs(why[cause]))
    ]
    more = "more" if why["total"] >= 0 else "less"
    return f"The ranks together idled {format_us(abs(why['total']))} {more} than predicted: {'; '.join(told)}."


def message_us(measured: Timeline) -> float:
    """What a message cost in a pipeline, in microseconds: the median time from the end of an action
    to the start of one on another rank that waited for it."""
    waits_us = [lag for _, lag, waited, _ in _lags(measured, {}, 0.0) if waited]
    if not waits_us:
        raise ValueError(
            "a message's cost shows where one rank waits for another; in this timeline none does"
        )
    return median(waits_us)


def gap_us(measured: Timeline) -> float:
    """The runtime's own time between two actions of a rank, in microseconds: the median where it
    waited for nothing.

    0.0 where every action waited for a message.
    """
    wait_us = message_us(measured)
    every = {
        (a.stage, a.kind.replace("I", "B"), a.microbatch): wait_us
        for _, a, *_ in _actions(measured)
    }
    gaps_us = [
        lag for _, lag, waited, first in _lags(measured, every, 0.0) if not waited and not first
    ]
    return max(0.0, median(gaps_us)) if gaps_us else 0.0


def _pause_us(predicted: Timeline) -> float:
    """The gap that a prediction was made with: the least pause between two actions of a rank."""
    ends_us, pauses_us = {}, [float("inf")]
    for start, rank, end in sorted(
        (start, rank, end) for rank, _, start, end in _actions(predicted)
    ):
        pauses_us.append(start - ends_us.get(rank, -float("inf")))
        ends_us[rank] = end
    return least if (least := max(0.0, min(pauses_us))) < float("inf") else 0.0


def _lags(
    measured: Timeline, messages_us: dict[Key, float], pause_us: float
) -> Iterator[tuple[Action, float, bool, bool]]:
    """Per action: how long after it could start it did, whether a message decided that, whether its
    rank began so."""
    start_us = {action: start for _, action, start, _ in _actions(measured.shifted())}
    order, took_us = _order(measured), _durations(measured)
    traced = _retrace(order, took_us, messages_us, pause_us, lambda action, _: start_us[action])
    for action, ready_us, start, waited, first in traced:
        yield action, start - ready_us, waited, first


def _retraced_idle_us(
    order: Schedule,
    took_us: dict[Action, float],
    messages_us: dict[Key, float],
    pause_us: float,
    lags: dict[Action, float],
) -> float:
    """Idle time of all ranks if actions take ``took_us`` and start ``lags`` after they could."""
    traced = _retrace(
        order,
        took_us,
        messages_us,
        pause_us,
        lambda action, ready_us: ready_us + lags.get(action, 0.0),
    )
    starts_us = {action: start for action, _, start, *_ in traced}
    ends_us = [start + took_us[action] for action, start in starts_us.items()]
    return order.num_ranks * (max(ends_us) - min(starts_us.values())) - sum(took_us.values())


def _retrace(
    order: Schedule,
    took_us: dict[Action, float],
    messages_us: dict[Key, float],
    pause_us: float,
    start_of: Callable[[Action, float], float],
) -> Iterator[tuple[Action, float, float, bool, bool]]:
    """Goes through a schedule in time: action, when it could start, when it does, and the two flags
    of ``_lags``."""
    free_us, done_us, begun = [0.0] * order.num_ranks, {}, set()
    for rank, action, key, need in walk(order):
        arrived_us = 0.0
        if need is not None and order.stage_rank[need[0]] != rank:
            arrived_us = done_us[need] + messages_us.get(need, 0.0)
        ready_us = max(free_us[rank], arrived_us)
        start_us = start_of(action, ready_us)
        yield action, ready_us, start_us, arrived_us > free_us[rank], rank not in begun
        begun.add(rank)
        done_us[key] = start_us + took_us[action]
        free_us[rank] = done_us[key] + pause_us


def _order(timeline: Timeline) -> Schedule:
    """The schedule that a timeline ran, read off its labels."""
    actions = sorted((start, rank, action) for rank, action, start, _ in _actions(timeline))
    holder = {action.stage: rank for _, rank, action in actions}
    if sorted(holder) != [*range(len(holder) or 1)]:
        raise ValueError(
            f"a pipeline's timeline holds actions of stages from 0 on; got stages {sorted(holder)}"
        )
    return Schedule(
        name="as it ran",
        num_ranks=timeline.num_ranks,
        num_stages=len(holder),
        num_microbatches=1 + max(action.microbatch for *_, action in actions),
        stage_rank=tuple(holder[stage] for stage in range(len(holder))),
        orders=tuple(
            tuple(a for _, r, a in actions if r == rank) for rank in range(timeline.num_ranks)
        ),
    )


def _actions(timeline: Timeline, lane: str = COMPUTE) -> list[tuple[int, Action, float, float]]:
    """(rank, action, start_us, end_us) of every row of a lane. Raises ValueError where a label is
    no action."""
    rows = timeline.select(timeline.lane == lane)
    return list(
        zip(
            rows.rank.tolist(),
            map(Action.parse, rows.label.tolist()),
            rows.start_us.tolist(),
            rows.end_us.tolist(),
            strict=True,
        )
    )


def _durations(timeline: Timeline) -> dict[Action, float]:
    return {action: end - start for _, action, start, end in _actions(timeline)}


def _messages(predicted: Timeline) -> dict[Key, float]:
    """How long the message after each action takes in a prediction; what an I passes on counts as
    its B."""
    return {
        (action.stage, action.kind.replace("I", "B"), action.microbatch): end - start
        for _, action, start, end in _actions(predicted, COMM)
    }


def _idle_us(timeline: Timeline) -> float:
    return timeline.num_ranks * timeline.span_us - float(busy_us(timeline).sum())
