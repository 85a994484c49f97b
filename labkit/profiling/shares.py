"""Where the time of a timeline goes: shares of it, the critical path, and who is waited for."""

from typing import NamedTuple

import numpy as np

from labkit.profiling.graph.backward import work
from labkit.profiling.graph.replay import INPUT, SAVE, Graph
from labkit.profiling.graph.waits import messages
from labkit.timeline import COMM, step_us
from labkit.words import to_say

SHARES = ("compute", "input", "save", "comm", "waiting", "unrecorded")
"""What a rank does, the first that holds: it computes; loads; saves; a message is under way that
all have begun; it waits in one that another rank has not begun; nothing."""
NAMES = {
    "compute": to_say("computing"),
    "input": to_say("waiting for data"),
    "save": to_say("writing checkpoints"),
    "comm": to_say("exposed communication"),
    "waiting": to_say("waiting for other ranks"),
    "unrecorded": to_say("nothing recorded"),
}
"""share -> what it is called"""


class Part(NamedTuple):
    """A piece of the critical path."""

    rank: int
    """whose"""
    share: str
    """of SHARES"""
    label: str
    """of the span; "" where nothing was recorded"""
    start_us: float
    """when it begins"""
    end_us: float
    """when it ends"""


def shares(graph: Graph) -> np.ndarray:
    """The share of the whole time that each rank spends on each of SHARES. Shape (num_ranks, 6);
    every row adds up to 1, or is 0 where there is no time."""
    spans = graph.timeline
    found = np.zeros((spans.num_ranks, len(SHARES)))
    whole_us = step_us(spans)
    if not whole_us:
        return found
    mine = work(graph)
    middle = _all_there_us(graph)
    comm = spans.lane == COMM
    for rank in range(spans.num_ranks):
        of = spans.rank == rank
        layers = [
            (spans.start_us, spans.end_us, of & mine),
            (spans.start_us, spans.end_us, of & (spans.kind == INPUT)),
            (spans.start_us, spans.end_us, of & (spans.kind == SAVE)),
            (middle, spans.end_us, of & comm),
            (spans.start_us, middle, of & comm),
        ]
        taken_us = _first_of([(start[at], end[at]) for start, end, at in layers])
        found[rank] = [*taken_us, whole_us - sum(taken_us)]
    return np.maximum(found / whole_us, 0.0)


def _all_there_us(graph: Graph) -> np.ndarray:
    """Of each span, when the last rank that it needs has begun; at least its own start."""
    starts = graph.timeline.start_us
    there = starts.copy()
    for at, others in enumerate(graph.partners):
        if others:
            there[at] = max(starts[at], *(starts[each] for each in others))
    return np.minimum(there, graph.timeline.end_us)


def _first_of(layers: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """How long each layer is the first that covers the time, in microseconds."""
    cuts = np.unique(np.concatenate([np.concatenate(layer) for layer in layers]))
    if len(cuts) < 2:
        return [0.0] * len(layers)
    widths = np.diff(cuts)
    free = np.ones(len(widths), bool)
    found = []
    for starts, ends in layers:
        change = np.zeros(len(cuts))
        np.add.at(change, np.searchsorted(cuts, starts), 1)
        np.add.at(change, np.searchsorted(cuts, ends), -1)
        covered = (np.cumsum(change)[:-1] > 0) & free
        found.append(float(widths[covered].sum()))
        free &= ~covered
    return found


def waited_for_us(graph: Graph) -> np.ndarray:
    """How long the others waited for each rank in messages, their times added up, (num_ranks,),
    microseconds. A message that lies under compute counts as well."""
    spans = graph.timeline
    found = np.zeros(spans.num_ranks)
    for members in messages(spans):
        last = max(members, key=lambda at: spans.start_us[at])
        for at in members:
            until = min(spans.end_us[at], spans.start_us[last])
            found[spans.rank[last]] += max(0.0, until - spans.start_us[at])
    return found


def critical_path(graph: Graph) -> list[Part]:
    """The chain of spans that the whole time is made of, the first one first. Every span in it
    waited for the one before; where none did, the rank was idle."""
    if not len(graph.timeline):
        return []
    ends = graph.timeline.end_us
    parts: list[Part] = []
    at: int | None = int(ends.argmax())
    until = float(ends[at])
    while at is not None:
        at, until = _back(graph, at, until, parts)
    parts.reverse()
    return parts


def _back(graph: Graph, at: int, until: float, parts: list[Part]) -> tuple[int | None, float]:
    """Adds the span's part of the path; the span before it, and when that was left."""
    spans = graph.timeline
    begun = max(graph.partners[at], key=lambda each: spans.start_us[each], default=at)
    owner = begun if spans.start_us[begun] > spans.start_us[at] else at
    start = float(spans.start_us[owner])
    parts.append(
        Part(int(spans.rank[at]), _share_of(graph, at), str(spans.label[at]), start, until)
    )
    before = max(graph.needs[owner], key=lambda each: spans.end_us[each], default=None)
    ended = float(spans.end_us[before]) if before is not None else float(spans.start_us.min())
    if graph.inside[owner] is not None:
        under, share = graph.inside[owner]
        took_us = spans.end_us[under] - spans.start_us[under]
        if before is None or spans.start_us[under] + share * took_us >= ended:
            return under, start
    if start - ended > 0:
        parts.append(Part(int(spans.rank[owner]), "unrecorded", "", ended, start))
    return before, min(ended, start)


def _share_of(graph: Graph, at: int) -> str:
    """What of SHARES a span is."""
    if graph.timeline.lane[at] == COMM:
        return "comm"
    kind = str(graph.timeline.kind[at])
    return kind if kind in (INPUT, SAVE) else "compute"
