"""A timeline as a graph: what each span waited for, so that it can be played again with a part
changed. ``waits`` finds the graph of a timeline."""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from labkit.timeline import COMM, COMPUTE, Timeline

INPUT = "input"
SAVE = "save"
"""kinds of what is loaded and saved"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """The spans of a timeline in order of their start, and what each waits for. Arrays and tuples
    have one entry per span."""

    timeline: Timeline
    """compute and comm lanes alone, in order of start"""
    spent_us: np.ndarray
    """what a span takes once all that it needs is there, in microseconds"""
    least_us: np.ndarray
    """what a message takes on this rank even if all others began long before, in microseconds"""
    delay_us: np.ndarray
    """between the end of what it needs and its start, unexplained, in microseconds"""
    needs: tuple[tuple[int, ...], ...]
    """spans that end before it starts"""
    inside: tuple[tuple[int, float] | None, ...]
    """a span under way when it starts, and how far that was (0 to 1)"""
    partners: tuple[tuple[int, ...], ...]
    """spans of other ranks that must have begun before it ends"""


def replayed(graph: Graph) -> Timeline:
    """The timeline of a graph, its times anew. What was measured and then changed is simulated."""
    starts, ends = played(graph)
    made = replace(graph.timeline, start_us=starts, end_us=ends, origin="simulated")
    return made.select(np.isin(made.lane, (COMPUTE, COMM)))


def played(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """When each span starts and ends, in microseconds."""
    count = len(graph.timeline)
    # node 2i: span i starts; 2i + 1: it ends
    after: list[list[int]] = [[] for _ in range(2 * count)]
    missing = [0] * (2 * count)
    for at in range(count):
        sources = [2 * each + 1 for each in graph.needs[at]]
        if graph.inside[at] is not None:
            sources.append(2 * graph.inside[at][0])
        _join(after, missing, sources, 2 * at)
        begun = [2 * each for each in graph.partners[at]]
        _join(after, missing, [2 * at, *begun], 2 * at + 1)
    starts = np.zeros(count)
    ends = np.zeros(count)
    ready = deque(node for node in range(2 * count) if not missing[node])
    done = 0
    while ready:
        node = ready.popleft()
        done += 1
        _place(graph, node, starts, ends)
        for each in after[node]:
            missing[each] -= 1
            if not missing[each]:
                ready.append(each)
    assert done == 2 * count, "spans wait for one another in a circle"
    return starts, ends


def _join(after: list[list[int]], missing: list[int], sources: list[int], node: int) -> None:
    for each in sources:
        after[each].append(node)
    missing[node] += len(sources)


def _place(graph: Graph, node: int, starts: np.ndarray, ends: np.ndarray) -> None:
    """Says when a span starts, or ends."""
    at, is_end = divmod(node, 2)
    if is_end:
        ends[at] = _end_us(graph, at, starts)
        return
    ready = [ends[each] for each in graph.needs[at]]
    if graph.inside[at] is not None:
        under, share = graph.inside[at]
        ready.append(starts[under] + share * graph.spent_us[under])
    starts[at] = max(ready, default=0.0) + graph.delay_us[at]


def _end_us(graph: Graph, at: int, starts: np.ndarray) -> float:
    """When a span ends that starts at ``starts[at]``."""
    begun = max((starts[each] for each in graph.partners[at]), default=-np.inf)
    if graph.timeline.kind[at] == "recv" and graph.partners[at]:
        return max(starts[at] + graph.least_us[at], begun + graph.spent_us[at])
    return max(starts[at], begun) + graph.spent_us[at]
