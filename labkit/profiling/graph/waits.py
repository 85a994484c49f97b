"""What each span of a timeline waited for.

A rank's spans follow one another in their lane. A message begins when this rank has got so far, and
ends some time after the last rank began its own. What a rank computes next waits for it, if the
rank stood still until then; a message under compute is waited for with the next one that makes it
stand still, at the latest by the optimizer. Time before a span that none of this explains stays as
it was: its delay.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from labkit.profiling.graph.backward import queued
from labkit.profiling.graph.replay import INPUT, SAVE, Graph
from labkit.timeline import COMM, COMPUTE, Timeline

UPDATE = "optimizer"
MOST_SPANS = 50_000
"""that are played again; it takes seconds beyond"""
SLACK_US = 1.0
"""two spans of one lane that overlap by less follow one another"""
_INPUT = re.compile(r"(?i)\b(data ?loader\w*|loading|load|input|batch|fetch)\b")
_UPDATE = re.compile(r"Optimizer\.step#.*")
_SAVE = re.compile(r"(?i)\b(save|saving|checkpoint\w*)\b")


def prepared(timeline: Timeline) -> Timeline:
    """What is played: compute and communication in order of start. Marks that name a data loader, a
    checkpoint or an optimizer's step become spans of "input", "save" and "optimizer", in the place
    of what was computed in them; so does what is read alone in a lane of its own. Raises ValueError
    beyond ``MOST_SPANS`` spans."""
    lane = timeline.lane.astype(object)
    kind = timeline.kind.astype(object)
    lane[_read_alone(timeline)] = COMPUTE
    for name, pattern in ((UPDATE, _UPDATE), (INPUT, _INPUT), (SAVE, _SAVE)):
        told = np.array([bool(pattern.search(each)) for each in timeline.label.tolist()], bool)
        plain = np.isin(kind, (COMPUTE, "mark"))
        found = told & plain & (timeline.lane != COMM)
        covered = _covered(timeline, found & (timeline.lane == "mark"))
        lane[covered] = "covered"
        lane[found] = COMPUTE
        kind[found] = name
    whole = replace(timeline, lane=lane.astype(str), kind=kind.astype(str))
    kept = whole.select(np.isin(whole.lane, (COMPUTE, COMM)))
    if len(kept) > MOST_SPANS:
        raise ValueError(
            f"advice takes at most {MOST_SPANS:,} spans; got {len(kept):,}. Take some steps of it: "
            "timeline.select(...)"
        )
    return kept.select(np.lexsort((kept.end_us, kept.start_us)))


def _read_alone(timeline: Timeline) -> np.ndarray:
    """What is read in a lane of its own while its rank neither computes nor reads anything else."""
    work = np.isin(timeline.lane, (INPUT, COMPUTE))
    found = (timeline.lane == INPUT) & (timeline.kind == INPUT)
    for at in np.flatnonzero(found).tolist():
        meets = work & (timeline.rank == timeline.rank[at])
        meets &= timeline.start_us < timeline.end_us[at] - SLACK_US
        meets &= timeline.end_us > timeline.start_us[at] + SLACK_US
        found[at] = meets.sum() == 1
    return found


def _covered(timeline: Timeline, over: np.ndarray) -> np.ndarray:
    """The compute spans that lie in one of the spans ``over`` (a mask), on its rank."""
    under = np.zeros(len(timeline), bool)
    for at in np.flatnonzero(over).tolist():
        same = (timeline.rank == timeline.rank[at]) & (timeline.lane == COMPUTE)
        inside = (timeline.start_us >= timeline.start_us[at]) & (
            timeline.end_us <= timeline.end_us[at]
        )
        under |= same & inside
    return under & ~over


def graph(timeline: Timeline) -> Graph:
    """The graph of a timeline; ``replayed`` of it is the timeline itself."""
    spans = prepared(timeline)
    needs: list[tuple[int, ...]] = [()] * len(spans)
    inside: list[tuple[int, float] | None] = [None] * len(spans)
    for rank in range(spans.num_ranks):
        _Rank(spans, rank).fill(needs, inside)
    made = Graph(
        timeline=spans,
        spent_us=spans.end_us - spans.start_us,
        least_us=np.zeros(len(spans)),
        delay_us=np.zeros(len(spans)),
        needs=tuple(needs),
        inside=tuple(inside),
        partners=_partners(spans),
    )
    return _timed(queued(made))


def _timed(made: Graph) -> Graph:
    """The same with spent, least and delay read from its timeline."""
    starts = made.timeline.start_us
    ends = made.timeline.end_us
    spent = ends - starts
    delay = starts - (starts.min() if len(starts) else 0.0)
    for at in range(len(starts)):
        begun = max((starts[each] for each in made.partners[at]), default=-np.inf)
        spent[at] = ends[at] - max(starts[at], begun)
        ready = [ends[each] for each in made.needs[at]]
        if made.inside[at] is not None:
            under, share = made.inside[at]
            ready.append(starts[under] + share * (ends[under] - starts[under]))
        if ready:
            delay[at] = max(0.0, starts[at] - max(ready))
    least, arrival = _received(made)
    spent = np.where(least > 0, arrival, np.maximum(spent, 0.0))
    return replace(made, spent_us=spent, least_us=least, delay_us=delay)


def _received(made: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Of receives that found their message there: how long they took, and how long after its
    sending it may have come, as long as the others of that way; 0 elsewhere."""
    spans = made.timeline
    least = np.zeros(len(spans))
    arrival = np.zeros(len(spans))
    took: dict[str, list[float]] = defaultdict(list)
    there = []
    for at in np.flatnonzero(spans.kind == "recv").tolist():
        sent = max((spans.start_us[each] for each in made.partners[at]), default=None)
        if sent is None:
            continue
        if sent >= spans.start_us[at]:
            took[str(spans.label[at])].append(spans.end_us[at] - sent)
        else:
            there.append((at, sent))
    for at, sent in there:
        usual = float(np.median(took[str(spans.label[at])] or [0.0]))
        least[at] = max(spans.end_us[at] - spans.start_us[at], 1e-6)
        arrival[at] = min(usual, spans.end_us[at] - sent)
    return least, arrival


class _Rank:
    """One rank's spans, by lane."""

    def __init__(self, spans: Timeline, rank: int) -> None:
        mine = spans.rank == rank
        self._spans = spans
        self._starts = spans.start_us.tolist()
        self._ends = spans.end_us.tolist()
        self._compute = np.flatnonzero(mine & (spans.lane == COMPUTE)).tolist()
        self._comm = np.flatnonzero(mine & (spans.lane == COMM)).tolist()
        self._begins = [self._starts[at] for at in self._compute]
        self._before = _ended_before(self._compute, self._starts, self._ends, SLACK_US)
        self._busy = _Busy(self._compute, self._starts, self._ends)

    def fill(self, needs: list, inside: list) -> None:
        """Says of every span what it needs."""
        needed: dict[int, list[int]] = defaultdict(list)
        for at, before in self._before.items():
            needed[at].append(before)
        for line in self._lines():
            for at, before in _ended_before(line, self._starts, self._ends, 0.0).items():
                needed[at].append(before)
        for at in self._comm:
            under = self._busy.at(self._starts[at])
            if under is not None:
                took = self._ends[under] - self._starts[under]
                inside[at] = (under, (self._starts[at] - self._starts[under]) / took)
            elif (last := self._busy.last_before(self._starts[at])) is not None:
                needed[at].append(last)
        for at, message in self._waits():
            needed[at].append(message)
        for at, found in needed.items():
            needs[at] = tuple(sorted(set(found)))

    def _lines(self) -> Iterable[list[int]]:
        """Messages that follow one another: all collectives, and those of one way."""
        lines: dict[str, list[int]] = defaultdict(list)
        for at in self._comm:
            kind = str(self._spans.kind[at])
            passed = kind in ("send", "recv")
            lines[f"{kind} {self._spans.label[at]}" if passed else ""].append(at)
        return lines.values()

    def _waits(self) -> Iterable[tuple[int, int]]:
        """(span, message that it waits for)."""
        hidden: list[int] = []
        for message in sorted(self._comm, key=self._ends.__getitem__):
            hidden.append(message)
            after = self._next(self._ends[message])
            if after is None or self._busy.at(self._ends[message]) is not None:
                continue
            for each in hidden:
                updated = self._next_update(self._ends[each], after)
                if self._spans.kind[each] != "send" or each == message:
                    yield updated, each
            hidden = []

    def _next(self, time_us: float) -> int | None:
        """The first span of compute that starts then or later."""
        at = bisect_left(self._begins, time_us)
        return self._compute[at] if at < len(self._compute) else None

    def _next_update(self, time_us: float, least: int) -> int:
        """The first optimizer's step that starts then or later, if it is before ``least``; else
        that."""
        at = bisect_left(self._begins, time_us)
        while at < len(self._compute) and self._compute[at] < least:
            if self._spans.kind[self._compute[at]] == UPDATE:
                return self._compute[at]
            at += 1
        return least


class _Busy:
    """What one lane of a rank was at, at any time."""

    def __init__(self, order: list[int], starts: list[float], ends: list[float]) -> None:
        self._starts = [starts[at] for at in order]
        self._latest: list[int] = []  # of the spans so far, the one that ends last
        self._ends = ends
        for at in order:
            longest = self._latest[-1] if self._latest and ends[self._latest[-1]] > ends[at] else at
            self._latest.append(longest)
        self._by_end = sorted(order, key=ends.__getitem__)
        self._sorted_ends = [ends[at] for at in self._by_end]

    def at(self, time_us: float) -> int | None:
        """A span that began before and ends after."""
        before = bisect_left(self._starts, time_us)
        if not before:
            return None
        last = self._latest[before - 1]
        return last if self._ends[last] > time_us else None

    def last_before(self, time_us: float) -> int | None:
        """The span that ended last until then."""
        count = bisect_right(self._sorted_ends, time_us)
        return self._by_end[count - 1] if count else None


def _ended_before(
    order: list[int], starts: list[float], ends: list[float], slack_us: float
) -> dict[int, int]:
    """Span -> the span of the same lane that ended last before it starts."""
    found = {}
    open_ones: list[int] = []
    last: int | None = None
    for at in order:
        still = []
        for each in open_ones:
            if ends[each] > starts[at] + slack_us:
                still.append(each)
            elif last is None or ends[each] >= ends[last]:
                last = each
        open_ones = [*still, at]
        if last is not None:
            found[at] = last
    return found


def _partners(spans: Timeline) -> tuple[tuple[int, ...], ...]:
    """Of each message, the spans of other ranks that it can't end before: the others' part in a
    collective, the send of a receive."""
    found: list[tuple[int, ...]] = [()] * len(spans)
    for members in messages(spans):
        kinds = {at: spans.kind[at] for at in members}
        for at in members:
            if kinds[at] == "send":
                continue
            for each in members:
                sent = kinds[each] == "send" and spans.start_us[each] <= spans.end_us[at]
                if each != at and (sent or spans.start_us[each] < spans.end_us[at]):
                    found[at] = (*found[at], each)
    return tuple(found)


def messages(spans: Timeline) -> list[tuple[int, ...]]:
    """The spans that are one message: the k-th collective of a kind and label on every rank, the
    k-th send and receive of one way. Those that would not meet in time are no message."""
    seen: dict[tuple, int] = defaultdict(int)
    groups: dict[tuple, list[int]] = defaultdict(list)
    for at in np.flatnonzero(spans.lane == COMM).tolist():
        kind = str(spans.kind[at])
        label = str(spans.label[at])
        one_way = kind in ("send", "recv")
        if one_way and ">" not in label:
            continue
        name = label if one_way else (kind, label)
        mine = (name, kind, int(spans.rank[at]))
        groups[name, seen[mine]].append(at)
        seen[mine] += 1
    return [tuple(group) for group in groups.values() if _meets(spans, group)]


def _meets(spans: Timeline, group: list[int]) -> bool:
    """Whether it was under way on all its ranks at once; a send may end before it is received."""
    if len(group) < 2:
        return False
    kinds = set(spans.kind[group].tolist())
    if kinds & {"send", "recv"}:
        sent = [spans.start_us[at] for at in group if spans.kind[at] == "send"]
        received = [spans.end_us[at] for at in group if spans.kind[at] == "recv"]
        return bool(sent and received) and min(sent) <= max(received)
    if kinds & {"broadcast", "scatter"}:
        return True
    return spans.start_us[group].max() <= spans.end_us[group].min() + SLACK_US
