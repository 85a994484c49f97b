"""Where the difference between a predicted and a measured pipeline comes from: why the ranks idle
more (or less), cause by cause, in microseconds."""

from collections.abc import Callable, Iterator
from itertools import chain
from statistics import median
from typing import NamedTuple

from labkit.pipeline.schedule import Action, Key, Schedule, posts, walk
from labkit.timeline import COMM, COMPUTE, Timeline, busy_us
from labkit.units import format_us

CAUSES = {
    "durations": "actions that took longer than stated",
    "messages": "messages slower than predicted",
    "start-up": "ranks that began late",
    "runtime": "time between actions (the loss, waits for sends, Python)",
}
"""what each cause of a residual is, in words"""


class Span(NamedTuple):
    """An action of a rank in a timeline."""

    rank: int
    action: Action
    start_us: float
    end_us: float


class Step(NamedTuple):
    """An action when a schedule is gone through in time."""

    action: Action
    ready_us: float
    """when it could start"""
    start_us: float
    """when it does"""
    waited: bool
    """whether a message decided when it could"""
    first: bool
    """whether its rank begins with it"""

    @property
    def lag_us(self) -> float:
        """How long after it could start it does."""
        return self.start_us - self.ready_us


def residual(predicted: Timeline, measured: Timeline) -> dict[str, float]:
    """Measured minus predicted idle time of all ranks together, in microseconds, split by cause.

    The schedule is retraced with one more thing as it was measured at a time, so the causes add up
    to "total": "durations" (actions took other than stated), "messages" (beyond the predicted
    message time), "start-up" (ranks began late), "runtime" (between actions: the loss, waits for
    sends, Python). Raises ValueError when the two timelines hold different actions.
    """
    order = _order(measured)
    took_us = _durations(measured)
    if took_us.keys() != _durations(predicted).keys():
        odd = min(took_us.keys() ^ _durations(predicted).keys())
        raise ValueError(
            f"a residual compares two timelines of one configuration; only one of these holds {odd}"
        )
    messages_us = _messages(predicted)
    pauses_us = _pauses_us(predicted)
    lags_us: dict[str, dict[Action, float]] = {cause: {} for cause in CAUSES}
    for step in _as_measured(measured, messages_us, pauses_us):
        lags_us[_cause(step)][step.action] = step.lag_us
    known: dict[Action, float] = {}
    before_us = _idle_us(predicted)
    found = {}
    for cause in CAUSES:
        known |= lags_us[cause]
        after_us = _retraced_idle_us(order, took_us, messages_us, pauses_us, known)
        found[cause] = after_us - before_us
        before_us = after_us
    return {**found, "total": _idle_us(measured) - _idle_us(predicted)}


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
    head = f"The ranks together idled {format_us(abs(why['total']))} {more} than predicted"
    return f"{head}: {'; '.join(told)}."


def message_us(measured: Timeline) -> float:
    """What a message cost in a pipeline, in microseconds: the median time from the end of an action
    to the start of one on another rank that waited for it."""
    waits_us = [step.lag_us for step in _as_measured(measured, {}, {}) if step.waited]
    if not waits_us:
        raise ValueError(
            "a message's cost shows where one rank waits for another; in this timeline none does"
        )
    return median(waits_us)


def gap_us(measured: Timeline) -> float:
    """The runtime's own time between two actions of a rank, in microseconds: the median where it
    waited for nothing, whatever it posted there.

    0.0 where every action waited for a message.
    """
    gaps_us = list(chain.from_iterable(_gaps_us(measured, _equal_messages(measured)).values()))
    return max(0.0, median(gaps_us)) if gaps_us else 0.0


def overheads_us(measured: Timeline) -> dict[str, float]:
    """What a pipeline's runtime cost, in microseconds, under the names of ``Cost``: message_us, and
    the pause between two actions as gap_us and post_us for each message posted in it.

    One pause for all would be too long before a W, where nothing is posted, and too short before
    others.
    """
    gap, post = _line(_gaps_us(measured, _equal_messages(measured)))
    return {"message_us": message_us(measured), "gap_us": gap, "post_us": post}


def _line(gaps_us: dict[int, list[float]]) -> tuple[float, float]:
    """A pause without messages, and what each message adds: the line through the median pauses with
    0, 1, 2 ... messages, weighted by their numbers."""
    points = [(num_posts, median(some_us)) for num_posts, some_us in sorted(gaps_us.items())]
    weights = [len(gaps_us[num_posts]) for num_posts, _ in points]
    if not points:
        return 0.0, 0.0
    post_us = max(0.0, _slope(points, weights)) if len(points) > 1 else 0.0
    rest_us = [
        weight * (pause_us - post_us * num_posts)
        for (num_posts, pause_us), weight in zip(points, weights, strict=True)
    ]
    return max(0.0, sum(rest_us) / sum(weights)), post_us


def _slope(points: list[tuple[int, float]], weights: list[int]) -> float:
    """Of the straight line with the least weighted squares through some points."""
    total = sum(weights)
    weighted = list(zip(points, weights, strict=True))
    mean_x = sum(x * weight for (x, _), weight in weighted) / total
    mean_y = sum(y * weight for (_, y), weight in weighted) / total
    covariance = sum((x - mean_x) * (y - mean_y) * weight for (x, y), weight in weighted)
    return covariance / sum((x - mean_x) ** 2 * weight for (x, _), weight in weighted)


def _equal_messages(measured: Timeline) -> dict[Key, float]:
    """The median cost of a message, for each action."""
    wait_us = message_us(measured)
    return {_key(span.action): wait_us for span in _spans(measured)}


def _gaps_us(timeline: Timeline, messages_us: dict[Key, float]) -> dict[int, list[float]]:
    """The pauses before actions that waited for nothing, by how many messages were posted in
    them."""
    posted = posts(_order(timeline))
    found: dict[int, list[float]] = {}
    for step in _as_measured(timeline, messages_us, {}):
        if not step.waited and not step.first:
            found.setdefault(posted[step.action], []).append(step.lag_us)
    return found


def _cause(step: Step) -> str:
    """Which cause a lag is blamed on."""
    if step.first:
        return "start-up"
    return "messages" if step.waited else "runtime"


def _pauses_us(predicted: Timeline) -> dict[Action, float]:
    """The pause before each action that a prediction was made with."""
    gap_us, post_us = _line(_gaps_us(predicted, _messages(predicted)))
    posted = posts(_order(predicted))
    return {action: gap_us + post_us * num_posts for action, num_posts in posted.items()}


def _as_measured(
    measured: Timeline, messages_us: dict[Key, float], pauses_us: dict[Action, float]
) -> Iterator[Step]:
    """The schedule gone through with every action starting when it did."""
    start_us = {span.action: span.start_us for span in _spans(measured.shifted())}
    order = _order(measured)
    took_us = _durations(measured)
    return _retrace(order, took_us, messages_us, pauses_us, lambda action, _: start_us[action])


def _retraced_idle_us(
    order: Schedule,
    took_us: dict[Action, float],
    messages_us: dict[Key, float],
    pauses_us: dict[Action, float],
    lags_us: dict[Action, float],
) -> float:
    """Idle time of all ranks if actions take ``took_us`` and start ``lags_us`` after they could."""

    def start_of(action: Action, ready_us: float) -> float:
        return ready_us + lags_us.get(action, 0.0)

    steps = list(_retrace(order, took_us, messages_us, pauses_us, start_of))
    begin_us = min(step.start_us for step in steps)
    end_us = max(step.start_us + took_us[step.action] for step in steps)
    return order.num_ranks * (end_us - begin_us) - sum(took_us.values())


def _retrace(
    order: Schedule,
    took_us: dict[Action, float],
    messages_us: dict[Key, float],
    pauses_us: dict[Action, float],
    start_of: Callable[[Action, float], float],
) -> Iterator[Step]:
    """Goes through a schedule in time; ``start_of(action, ready_us)`` is when an action starts."""
    free_us = [0.0] * order.num_ranks
    done_us: dict[Key, float] = {}
    begun: set[int] = set()
    for rank, action, key, need in walk(order):
        arrived_us = 0.0
        if need is not None and order.stage_rank[need[0]] != rank:
            arrived_us = done_us[need] + messages_us.get(need, 0.0)
        able_us = free_us[rank]
        if rank in begun:
            able_us += pauses_us.get(action, 0.0)
        waited = arrived_us > able_us
        ready_us = max(able_us, arrived_us)
        start_us = start_of(action, ready_us)
        yield Step(action, ready_us, start_us, waited, rank not in begun)
        begun.add(rank)
        done_us[key] = start_us + took_us[action]
        free_us[rank] = done_us[key]


def _order(timeline: Timeline) -> Schedule:
    """The schedule that a timeline ran, read off its labels."""
    spans = sorted(_spans(timeline), key=lambda span: (span.start_us, span.rank, span.action))
    holder = {span.action.stage: span.rank for span in spans}
    if sorted(holder) != [*range(len(holder) or 1)]:
        raise ValueError(
            f"a pipeline's timeline holds actions of stages from 0 on; got stages {sorted(holder)}"
        )
    orders: list[list[Action]] = [[] for _ in range(timeline.num_ranks)]
    for span in spans:
        orders[span.rank].append(span.action)
    return Schedule(
        name="as it ran",
        num_ranks=timeline.num_ranks,
        num_stages=len(holder),
        num_microbatches=1 + max(span.action.microbatch for span in spans),
        stage_rank=tuple(holder[stage] for stage in range(len(holder))),
        orders=tuple(map(tuple, orders)),
    )


def _spans(timeline: Timeline, lane: str = COMPUTE) -> list[Span]:
    """The actions of a lane. Raises ValueError where a label is no action."""
    rows = timeline.select(timeline.lane == lane)
    columns = zip(
        rows.rank.tolist(),
        map(Action.parse, rows.label.tolist()),
        rows.start_us.tolist(),
        rows.end_us.tolist(),
        strict=True,
    )
    return [Span(*row) for row in columns]


def _key(action: Action) -> Key:
    """What others wait for: an I passes its gradient on as a B does."""
    return (action.stage, action.kind.replace("I", "B"), action.microbatch)


def _durations(timeline: Timeline) -> dict[Action, float]:
    return {span.action: span.end_us - span.start_us for span in _spans(timeline)}


def _messages(predicted: Timeline) -> dict[Key, float]:
    """How long the message after each action takes in a prediction."""
    return {_key(span.action): span.end_us - span.start_us for span in _spans(predicted, COMM)}


def _idle_us(timeline: Timeline) -> float:
    return timeline.num_ranks * timeline.span_us - float(busy_us(timeline).sum())
