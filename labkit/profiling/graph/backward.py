"""The backward of a step, and the reductions that belong to it."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from labkit.profiling.graph.replay import INPUT, SAVE, Graph
from labkit.timeline import COMM, COMPUTE

BACKWARD = ("backward", "B", "I", "W")
REDUCING = ("all_reduce", "allreduce", "reduce_scatter", "_reduce_scatter_base")
QUEUED_US = 500.0
"""a message that begins so soon after another one stood behind it"""


def work(graph: Graph) -> np.ndarray:
    """Which spans are computed: neither messages nor loading nor saving. Bool, (num_spans,)."""
    spans = graph.timeline
    return (spans.lane == COMPUTE) & ~np.isin(spans.kind, (INPUT, SAVE))


def runs(graph: Graph) -> list[list[int]]:
    """Of each rank, collectives of one kind that one span waits for together."""
    spans = graph.timeline
    waiter: dict[int, int] = {}
    for at, needed in enumerate(graph.needs):
        if spans.lane[at] == COMPUTE:
            waiter.update(dict.fromkeys(needed, at))
    runs: dict[tuple, list[int]] = defaultdict(list)
    for at in np.flatnonzero(spans.lane == COMM).tolist():
        kind = str(spans.kind[at])
        if kind not in ("send", "recv"):
            runs[int(spans.rank[at]), kind, waiter.get(at, -1)].append(at)
    return list(runs.values())


def queued(graph: Graph) -> Graph:
    """The same where reductions that stood behind one another on a busy link are taken to have been
    ready as buckets are: the k-th of m when k/m of the backward was done. All that is known of
    them is that they were ready when the link was free."""
    spans = graph.timeline
    waiting = []
    for run in runs(graph):
        behind = [each for each in graph.needs[run[-1]] if spans.lane[each] == COMPUTE]
        if graph.inside[run[-1]] is not None:
            behind = [graph.inside[run[-1]][0]]
        if behind and len(run) > 1 and spans.start_us[run[0]] < spans.end_us[behind[-1]]:
            waiting.append((run, behind[-1]))
    return spread(graph, waiting, queued_only=True)


def spread(
    graph: Graph, late: Iterable[tuple[list[int], int]], *, queued_only: bool = False
) -> Graph:
    """Reductions begin during the backward that ends with a span, evenly. ``late`` has them and the
    span. With ``queued_only``, those alone that began as another ended, and not later than they
    did."""
    needs = list(graph.needs)
    inside = list(graph.inside)
    delay = graph.delay_us.copy()
    chain = _chains(graph)
    spans = graph.timeline
    for run, last in late:
        if str(spans.kind[run[0]]) not in REDUCING:
            continue
        backward = _backward(graph, chain, last)
        for number, at in enumerate(run[:-1], start=1):
            under, share = _moment(graph, backward, number / len(run))
            kept = [each for each in graph.needs[at] if spans.lane[each] == COMM]
            if queued_only and not _stood(graph, at, kept, under, share):
                continue
            inside[at] = (under, share)
            needs[at] = tuple(kept)
            delay[at] = 0.0
    return replace(graph, needs=tuple(needs), inside=tuple(inside), delay_us=delay)


def _stood(graph: Graph, at: int, before: list[int], under: int, share: float) -> bool:
    """Whether a message began as the one before ended, and after a moment of the backward."""
    spans = graph.timeline
    moment_us = spans.start_us[under] + share * graph.spent_us[under]
    free_us = max((spans.end_us[each] for each in before), default=-np.inf)
    return spans.start_us[at] >= moment_us and spans.start_us[at] - free_us <= QUEUED_US


def _chains(graph: Graph) -> dict[int, int]:
    """Span of work -> the one before it on its rank, where it did not have to wait between."""
    mine = work(graph)
    spans = graph.timeline
    found = {}
    for at in np.flatnonzero(mine).tolist():
        before = [each for each in graph.needs[at] if mine[each]]
        waited = [each for each in graph.needs[at] if not mine[each]]
        latest = max((spans.end_us[each] for each in waited), default=-np.inf)
        if before and spans.end_us[before[-1]] >= latest:
            found[at] = before[-1]
    return found


def _backward(graph: Graph, chain: dict[int, int], last: int) -> list[int]:
    """The spans of the backward that ends with ``last``, in order."""
    spans = graph.timeline
    block = [last]
    while block[-1] in chain:
        block.append(chain[block[-1]])
    block.reverse()
    named = [at for at in block if spans.kind[at] in BACKWARD]
    if named:
        return named
    took = np.cumsum([graph.spent_us[at] for at in block])
    return [at for at, until in zip(block, took, strict=True) if until > took[-1] / 3]


def _moment(graph: Graph, block: list[int], share: float) -> tuple[int, float]:
    """The span that is under way when a share of the block is done, and how far it is then."""
    left = share * sum(graph.spent_us[at] for at in block)
    for at in block:
        if left <= graph.spent_us[at]:
            return at, left / max(graph.spent_us[at], 1e-9)
        left -= graph.spent_us[at]
    return block[-1], 1.0
