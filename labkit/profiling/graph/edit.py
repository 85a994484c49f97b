"""One change of a timeline: the graph of what waits for what, with a part of it made shorter, moved
or shared out. ``replay.replayed`` says what comes of it."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from labkit.profiling.graph.backward import runs, spread, work
from labkit.profiling.graph.replay import INPUT, SAVE, Graph
from labkit.timeline import COMM, COMPUTE, busy_us

SMALL_BYTES = 65_536
"""A smaller message is all latency: half of the bandwidth is reached at latency x bandwidth
(Hockney 1994), here 70 us x 0.95 GB/s."""
_DIGITS = re.compile(r"\d+")
MERGED = 8
"""messages that become one"""


def is_pipeline(graph: Graph) -> bool:
    """Whether ranks hand on microbatches: labelled forwards and backwards, and messages from one
    rank to the next."""
    kinds = set(graph.timeline.kind.tolist())
    return "recv" in kinds and bool({"F", "B"} & kinds)


def prefetch(graph: Graph) -> Graph:
    """Each batch is loaded while the step before is computed, beginning when that step takes its
    own. The first stays where it is."""
    spans = graph.timeline
    loads = np.flatnonzero(spans.kind == INPUT).tolist()
    needs = list(graph.needs)
    delay = graph.delay_us.copy()
    loaded = set(loads)
    for at, before in enumerate(graph.needs):
        if at in loaded:
            continue
        more: set[int] = set()
        waiting = [each for each in before if each in loaded]
        while waiting:
            found = graph.needs[waiting.pop()]
            more.update(found)
            waiting += [each for each in found if each in loaded]
        needs[at] = tuple(sorted({*before, *more}))
    for at, previous in _one_before(spans.rank[loads].tolist(), loads):
        takers = [each for each in range(len(spans)) if previous in graph.needs[each]]
        needs[at] = needs[takers[0]] if takers else (previous,)
        delay[at] = 0.0
    return replace(graph, needs=tuple(needs), delay_us=delay)


def _one_before(ranks: list[int], spans: list[int]) -> Iterator[tuple[int, int]]:
    """(span, the one before it on the same rank)."""
    last: dict[int, int] = {}
    for rank, at in zip(ranks, spans, strict=True):
        if rank in last:
            yield at, last[rank]
        last[rank] = at


def halve_bytes(graph: Graph) -> Graph:
    """Every message carries half as many bytes; its latency stays."""
    spans = graph.timeline
    latency = latency_us(graph)
    comm = spans.lane == COMM
    spent = np.where(comm, latency + (graph.spent_us - latency) / 2, graph.spent_us)
    num_bytes = np.where(comm, spans.num_bytes // 2, spans.num_bytes)
    return replace(graph, spent_us=spent, timeline=replace(spans, num_bytes=num_bytes))


def latency_us(graph: Graph) -> np.ndarray:
    """What of each message its bytes don't explain, in microseconds, (num_spans,). From a line
    through times and sizes where a kind has sizes that differ; else all of a small message
    (``SMALL_BYTES``), nothing of a large one."""
    spans = graph.timeline
    latency = np.zeros(len(spans))
    for kind in sorted(set(spans.kind[spans.lane == COMM].tolist())):
        mine = (spans.lane == COMM) & (spans.kind == kind)
        sizes = spans.num_bytes[mine].astype(float)
        times = graph.spent_us[mine]
        if sizes.max() >= 2 * max(1.0, sizes.min()):
            slope, start = np.polyfit(sizes, times, 1)
            if slope > 0 and start >= 0:
                latency[mine] = np.minimum(start, times)
                continue
        latency[mine] = np.where(sizes < SMALL_BYTES, times, 0.0)
    return latency


def merge(graph: Graph) -> Graph:
    """Collectives of one kind that follow one another become one of eight: the last of them, with
    the bytes of all and the latency of one."""
    spans = graph.timeline
    latency = latency_us(graph)
    spent = graph.spent_us.copy()
    num_bytes = spans.num_bytes.copy()
    for run in runs(graph):
        for first in range(0, len(run), MERGED):
            together = run[first : first + MERGED]
            last = together[-1]
            over_us = sum(spent[each] - latency[each] for each in together)
            num_bytes[last] = sum(num_bytes[each] for each in together)
            for each in together[:-1]:
                spent[each] = 0.0
                num_bytes[each] = 0
            spent[last] = latency[last] + over_us
    return replace(graph, spent_us=spent, timeline=replace(spans, num_bytes=num_bytes))


def overlap(graph: Graph) -> Graph:
    """Reductions that wait for the end of the backward begin in it: the k-th of m when k/m of it is
    done."""
    spans = graph.timeline
    late = []
    for run in runs(graph):
        behind = [each for each in graph.needs[run[0]] if spans.lane[each] == COMPUTE]
        begun = any(graph.inside[at] for at in run)
        if behind and not begun and not any(spans.start_us[run] < spans.end_us[behind[-1]]):
            late.append((run, behind[-1]))
    return spread(graph, late)


def even_rank(graph: Graph) -> Graph:
    """The rank that computes longest computes as long as the median of the others."""
    mine = work(graph) & ~alone(graph)
    took = np.zeros(graph.timeline.num_ranks)
    np.add.at(took, graph.timeline.rank[mine], graph.spent_us[mine])
    if len(took) < 2 or took.max() <= 0:
        return graph
    worst = int(took.argmax())
    usual = float(np.median(np.delete(took, worst)))
    scaled = mine & (graph.timeline.rank == worst)
    factor = min(1.0, usual / took[worst])
    return replace(graph, spent_us=np.where(scaled, factor, 1.0) * graph.spent_us)


def balance(graph: Graph) -> Graph:
    """All ranks compute equally long, together as long as before."""
    mine = work(graph)
    took = busy_us(graph.timeline.select(mine))
    if not took.all():
        return graph
    factor = (took.mean() / took)[graph.timeline.rank]
    return replace(graph, spent_us=np.where(mine, factor, 1.0) * graph.spent_us)


def alone(graph: Graph) -> np.ndarray:
    """What one rank computes and no other has at all, by kind and label. Bool, (num_spans,)."""
    spans = graph.timeline
    mine = work(graph)
    names = [(kind, called(label)) for kind, label in _names(graph)]
    who: dict[tuple, set[int]] = defaultdict(set)
    for at in np.flatnonzero(mine).tolist():
        who[names[at]].add(int(spans.rank[at]))
    return np.array([mine[at] and len(who[names[at]]) == 1 for at in range(len(spans))], bool)


def share_out(graph: Graph) -> Graph:
    """What one rank alone computes is shared out evenly among all."""
    factor = np.where(alone(graph), 1 / graph.timeline.num_ranks, 1.0)
    return replace(graph, spent_us=factor * graph.spent_us)


def no_gaps(graph: Graph) -> Graph:
    """Nobody stands still for no reason: unexplained delays are gone, but for each rank's first."""
    first = np.array([not (needs or inside) for needs, inside in _waits(graph)], bool)
    return replace(graph, delay_us=np.where(first, graph.delay_us, 0.0))


def save_behind(graph: Graph) -> Graph:
    """What is saved is written while the next step computes."""
    saving = graph.timeline.kind == SAVE
    return replace(graph, spent_us=np.where(saving, 0.0, graph.spent_us))


def called(label: str) -> str:
    """A label without its numbers: "B#" of "B3"."""
    return _DIGITS.sub("#", label)


def _names(graph: Graph) -> Iterator[tuple[str, str]]:
    return zip(graph.timeline.kind.tolist(), graph.timeline.label.tolist(), strict=True)


def _waits(graph: Graph) -> Iterator[tuple]:
    return zip(graph.needs, graph.inside, strict=True)
