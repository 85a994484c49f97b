"""The change of a pipeline that cuts its bubble: twice as many microbatches, each half as large."""

import re
from dataclasses import replace

import numpy as np

from labkit.profiling.graph.edit import latency_us
from labkit.profiling.graph.replay import Graph
from labkit.timeline import COLUMNS, Timeline

GONE = "gone"
"""the lane of spans that only stand for a need"""
_ACTION = re.compile(r"(\d+[FBIW])(\d+)")


def more_microbatches(graph: Graph) -> Graph:
    """Every forward, backward and message between ranks becomes two of half the size. The latency
    of a message stays."""
    halved = _actions(graph.timeline)
    twice = halved | np.isin(graph.timeline.kind, ("send", "recv"))
    latency = latency_us(graph)
    half = np.where(halved, graph.spent_us / 2, latency + (graph.spent_us - latency) / 2)
    first = np.where(twice, half, graph.spent_us)
    second = np.where(twice, half, 0.0)
    inside: list = []
    partners: list[tuple[int, ...]] = []
    for at, each in enumerate(graph.inside):
        inside += [None if each is None else (2 * each[0], each[1]), None]
        partners.append(tuple(2 * other for other in graph.partners[at]))
        partners.append(tuple(2 * other + 1 for other in graph.partners[at] if twice[at]))
    return Graph(
        timeline=_doubled(graph.timeline, twice),
        spent_us=_woven(first, second),
        least_us=_woven(*2 * [graph.least_us]),
        delay_us=_woven(graph.delay_us, np.zeros(len(halved))),
        needs=_needs(graph, twice),
        inside=tuple(inside),
        partners=tuple(partners),
    )


def _needs(graph: Graph, twice: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Of both halves: the first follows all of what was before in its lane, and the first half of
    its message."""
    lane = graph.timeline.lane
    needs: list[tuple[int, ...]] = []
    for at, before in enumerate(graph.needs):
        early = 0 if twice[at] else 1
        first = [2 * each + (early if lane[each] != lane[at] else 1) for each in before]
        late = [2 * each + 1 for each in before if lane[each] != lane[at]]
        needs.append(tuple(first))
        needs.append((2 * at, *late))
    return tuple(needs)


def _doubled(spans: Timeline, twice: np.ndarray) -> Timeline:
    """Every span two times, its microbatch renumbered; the second of what stays whole is gone."""
    columns = {name: np.repeat(getattr(spans, name), 2) for name in COLUMNS}
    label = columns["label"].astype(object)
    lane = columns["lane"].astype(object)
    for at in range(len(spans)):
        found = _ACTION.fullmatch(str(spans.label[at]))
        if found:
            label[2 * at] = f"{found[1]}{2 * int(found[2])}"
            label[2 * at + 1] = f"{found[1]}{2 * int(found[2]) + 1}"
        if not twice[at]:
            lane[2 * at + 1] = GONE
    columns |= {"label": label.astype(str), "lane": lane.astype(str)}
    columns["num_bytes"] = columns["num_bytes"] // np.where(np.repeat(twice, 2), 2, 1)
    return replace(spans, **columns)


def _actions(spans: Timeline) -> np.ndarray:
    """Which spans are of one microbatch. Bool, (num_spans,)."""
    named = [bool(_ACTION.fullmatch(each)) for each in spans.label.tolist()]
    return np.array(named, bool) & np.isin(spans.kind, ("F", "B", "I", "W"))


def _woven(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One of each in turn."""
    return np.stack([first, second], axis=1).ravel()
