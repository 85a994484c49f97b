"""The one noun of the project: what every rank did, and when. Theory predicts a Timeline, real
ranks produce a Timeline.

A Timeline is columns of equal length, one row per span. Times are microseconds on one clock shared
by all ranks.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING

import numpy as np

from labkit.shown import Said, Shown
from labkit.units import MOST_RANKS, check_whole, format_us

if TYPE_CHECKING:
    from labkit.pictures.drawing import Scene

ORIGINS = ("simulated", "measured", "recorded")
COMPUTE = "compute"
COMM = "comm"
MOST_DRAWN = 10_000
"""Spans in a picture of a timeline; drawing takes seconds beyond."""
COLUMNS = ("rank", "lane", "kind", "label", "start_us", "end_us", "num_bytes")


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline(Shown):
    """Spans of work on ranks. Every column has shape (num_spans,)."""

    rank: np.ndarray
    """int64: the rank that did it"""
    lane: np.ndarray
    """str: "compute" (what the rank works on) or "comm" (messages, which may overlap compute)"""
    kind: np.ndarray
    """str: F, B, I, W for pipeline actions; "compute" for other work; send, recv, all_reduce, ...
    on the comm lane"""
    label: np.ndarray
    """str: what stands in the box, e.g. "2F0" = stage 2, forward, microbatch 0"""
    start_us: np.ndarray
    """float64: when it began, in microseconds"""
    end_us: np.ndarray
    """float64: when it ended, in microseconds"""
    num_bytes: np.ndarray
    """int64: payload of a message, 0 for compute"""
    num_ranks: int
    """how many ranks took part, idle ones included"""
    origin: str
    """"simulated", "measured" or "recorded" (measured on another day or machine)"""
    notes: tuple[str, ...] = field(default=())
    """what must be said with it: "paced", "gloo", "nccl", a machine's name"""
    nodes: tuple[str, ...] = field(default=())
    """each rank's host, where there are several: pictures show them one by one"""

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise ValueError(
                f"a Timeline's origin is one of {', '.join(ORIGINS)}; got {self.origin!r}"
            )
        check_whole(0, MOST_RANKS, num_ranks=self.num_ranks)
        if not all(isinstance(note, str) for note in self.notes):
            raise ValueError(f"a Timeline's notes are words; got {self.notes}")
        lengths = {len(getattr(self, name)) for name in COLUMNS}
        if len(lengths) != 1:
            raise ValueError(f"a Timeline's columns have one length; got {sorted(lengths)}")
        fine = (self.start_us <= self.end_us) & np.isfinite(self.end_us - self.start_us)
        if not fine.all():
            bad = int(np.argmin(fine))
            raise ValueError(
                f"a span has finite times and ends after it starts; {str(self.label[bad])!r} on "
                f"rank {self.rank[bad]} starts at {self.start_us[bad]} us and ends at "
                f"{self.end_us[bad]} us"
            )
        if len(self.rank) and not 0 <= self.rank.min() <= self.rank.max() < self.num_ranks:
            raise ValueError(
                f"ranks are 0 to {self.num_ranks - 1}; got {self.rank.min()} to {self.rank.max()}"
            )

    def __len__(self) -> int:
        return len(self.rank)

    def __repr__(self) -> str:
        took = format_us(step_us(self))
        return f"Timeline({self.num_ranks} ranks, {len(self)} spans, {took}, {self.badge})"

    def _picture(self, language: str) -> "Scene":
        from labkit.pictures import scene

        if len(self) > MOST_DRAWN:
            raise ValueError(
                f"a picture shows at most {MOST_DRAWN:,} spans; got {len(self):,}. Draw a part "
                "(timeline.select), or open all of it: labkit.widgets.trace(timeline)"
            )
        return scene.timeline(self, language=language)

    def bundle(self, *, title: Said = "", language: str | None = None) -> dict[str, str]:
        """The drawing by mime type; one line of text beyond ``MOST_DRAWN`` spans."""
        if len(self) > MOST_DRAWN:
            return {"text/plain": f"{self!r}; labkit.widgets.trace(...) opens it"}
        return super().bundle(title=title, language=language)

    @property
    def badge(self) -> str:
        """Where it comes from, in one line for every picture: e.g. "measured, paced, gloo"."""
        return ", ".join((self.origin, *self.notes))

    @property
    def span_us(self) -> float:
        """From the first compute span's start to the last compute span's end, over all ranks, in
        microseconds.

        Where nobody computes: from the first span's start to the last span's end.
        """
        spans = self.select(self.lane == COMPUTE) if (self.lane == COMPUTE).any() else self
        return float(spans.end_us.max() - spans.start_us.min()) if len(spans) else 0.0

    def select(self, mask: np.ndarray) -> "Timeline":
        """The rows where ``mask`` (bool, shape (num_spans,)) is true."""
        check_mask(mask, len(self))
        return replace(self, **{name: getattr(self, name)[mask] for name in COLUMNS})

    def shifted(self) -> "Timeline":
        """The same with the earliest compute span starting at 0, so that two timelines share an
        axis."""
        compute = self.lane == COMPUTE
        if not len(self):
            return self
        zero_us = self.start_us[compute].min() if compute.any() else self.start_us.min()
        return replace(self, start_us=self.start_us - zero_us, end_us=self.end_us - zero_us)

    def to_chrome(self) -> dict:
        """Chrome trace events (``ts`` and ``dur`` in microseconds), one process per rank: opens in
        Perfetto."""
        events = [
            {"name": "process_name", "ph": "M", "pid": r, "args": {"name": f"rank {r}"}}
            for r in range(self.num_ranks)
        ]
        for rank, lane, kind, label, start_us, end_us, num_bytes in self._rows():
            events.append(
                {
                    "name": label,
                    "cat": kind,
                    "ph": "X",
                    "pid": rank,
                    "tid": lane,
                    "ts": start_us,
                    "dur": end_us - start_us,
                    "args": {"bytes": num_bytes},
                }
            )
        labkit = {"num_ranks": self.num_ranks, "origin": self.origin, "notes": list(self.notes)}
        return {"traceEvents": events, "displayTimeUnit": "ms", "labkit": labkit}

    def save(self, path: str | Path) -> Path:
        """Writes ``to_chrome`` as JSON; ``Timeline.load`` reads it back."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_chrome()))
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Timeline":
        """Reads what ``save`` wrote. Raises ValueError for another kind of file."""
        try:
            trace = json.loads(Path(path).read_bytes())
            rows = [_row(event) for event in trace["traceEvents"] if event["ph"] == "X"]
            about = {name: trace["labkit"][name] for name in ("num_ranks", "origin", "notes")}
            return from_rows(rows, **about)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{str(path)!r} was not written by Timeline.save ({type(error).__name__}: "
                f"{error}); a Kineto trace is read by labkit.measure.trace.read"
            ) from error

    def _rows(self) -> Iterable[tuple]:
        return zip(*(getattr(self, name).tolist() for name in COLUMNS), strict=True)


def _row(event: dict) -> tuple:
    """A Chrome trace event of ``to_chrome`` as a row of ``from_rows``."""
    start_us = event["ts"]
    end_us = start_us + event["dur"]
    named = event["pid"], event["tid"], event["cat"], event["name"]
    return (*named, start_us, end_us, event["args"]["bytes"])


def check_mask(mask: np.ndarray, num_rows: int) -> None:
    """Raises ValueError for what does not choose among so many rows."""
    if np.shape(mask) != (num_rows,) or np.asarray(mask).dtype.kind not in "bi":
        raise ValueError(
            f"a mask is an array with a bool for each of {num_rows} rows; got {brief(mask)}"
        )


def column(name: str, values: Sequence, kind: type) -> np.ndarray:
    """Values as an array of one type. Raises ValueError for what is not of it, or does not fit into
    64 bits."""
    try:
        array = np.array(values, dtype=kind)
        if array.shape != (len(values),):
            raise ValueError("one value per row")
        return array
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name} holds what fits into {kind.__name__} ({error}); got {brief(values)}"
        ) from error


def from_rows(
    rows: Iterable[tuple], *, num_ranks: int, origin: str, notes: Iterable[str] = ()
) -> Timeline:
    """A Timeline from rows (rank, lane, kind, label, start_us, end_us, num_bytes)."""
    columns = list(zip(*rows, strict=True)) or [()] * 7
    return from_columns(columns, num_ranks=num_ranks, origin=origin, notes=notes)


def from_columns(
    columns: Sequence, *, num_ranks: int, origin: str, notes: Iterable[str] = ()
) -> Timeline:
    """A Timeline from seven columns of equal length, in the order of ``from_rows``."""
    named = zip(COLUMNS, columns, (np.int64, str, str, str, float, float, np.int64), strict=True)
    arrays = {name: column(name, values, kind) for name, values, kind in named}
    return Timeline(**arrays, num_ranks=num_ranks, origin=origin, notes=tuple(notes))


def busy_us(timeline: Timeline, lane: str | tuple[str, ...] = COMPUTE) -> np.ndarray:
    """Time each rank spends in a lane (or in several), overlapping spans counted once. Shape
    (num_ranks,), microseconds."""
    spans = timeline.select(np.isin(timeline.lane, lane))
    unions = [_union(spans, rank) for rank in range(timeline.num_ranks)]
    return np.array([_total_us(union) for union in unions], dtype=float)


def bubble(timeline: Timeline, over: str = "total") -> float:
    """The share of time that ranks do not compute, between the first and the last compute span.

    ``over="total"``: idle / (ranks x span), which is (p-1)/(m+p-1) for GPipe. ``over="ideal"``:
    idle / busy, which is (p-1)/m: the number in Megatron's papers (Narayanan et al. 2021, section
    2.2.1); infinite where nobody computes. Raises ValueError for another word.
    """
    if over not in ("total", "ideal"):
        raise ValueError(f'a bubble is taken over "total" or "ideal" time; got {over!r}')
    busy = float(busy_us(timeline).sum())
    total = timeline.num_ranks * timeline.span_us
    if total == 0:
        return 0.0
    denominator = total if over == "total" else busy
    return (total - busy) / denominator if denominator else float("inf")


def hidden_comm(timeline: Timeline) -> float:
    """Hidden time / all communication time, over all ranks: the share that lies under compute of
    the same rank.

    Communication time of a rank is the time in which at least one of its messages or collectives is
    under way.
    """
    total_us = float(busy_us(timeline, COMM).sum())
    return 1.0 - float(exposed_comm_us(timeline).sum()) / total_us if total_us else 0.0


def exposed_comm_us(timeline: Timeline) -> np.ndarray:
    """Communication time of each rank under which it computes nothing. Shape (num_ranks,),
    microseconds.

    Divided by ``busy_us(timeline, "comm")`` it is the exposed share: 1 - hidden share.
    """
    return np.maximum(0.0, busy_us(timeline, (COMPUTE, COMM)) - busy_us(timeline))


def straggler(timeline: Timeline) -> tuple[int, float]:
    """The rank that the others wait for most, and how long they did, their times added up, in
    microseconds.

    In each collective (the k-th of its kind on every rank) the others wait for the rank that enters
    last: each from its own start until then, or to its own end if it leaves before that (the root
    of a broadcast, say). Messages between two ranks are left out, and collectives of a part of the
    ranks would be paired wrongly. A collective under compute waits while its rank does not. 0.0:
    nobody waited, and the rank means nothing.
    """
    rows = timeline.select(timeline.lane == COMM)
    calls: dict[tuple[str, int], list[tuple]] = defaultdict(list)
    seen: Counter[tuple[str, int]] = Counter()
    columns = (column.tolist() for column in (rows.start_us, rows.rank, rows.kind, rows.end_us))
    for start, rank, kind, end in sorted(zip(*columns, strict=True)):
        if not kind.startswith(("send", "recv")):
            calls[kind, seen[kind, rank]].append((start, rank, end))
            seen[kind, rank] += 1
    waited_us = np.zeros(timeline.num_ranks)
    for spans in calls.values():
        entered_us, last, _ = spans[-1]
        waited_us[last] += sum(min(end, entered_us) - start for start, _, end in spans)
    return int(waited_us.argmax()), float(waited_us.max())


def _union(timeline: Timeline, rank: int) -> list[tuple[float, float]]:
    """When a rank does anything: stretches (start, end) that do not touch, in order."""
    mine = timeline.rank == rank
    starts, ends = timeline.start_us[mine], timeline.end_us[mine]
    merged: list[tuple[float, float]] = []
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _total_us(stretches: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in stretches)


def step_us(timeline: Timeline) -> float:
    """How long a step takes: from the first span's start to the last one's end, communication
    included."""
    return float(timeline.end_us.max() - timeline.start_us.min()) if len(timeline) else 0.0


def in_flight(timeline: Timeline) -> np.ndarray:
    """The most activations each rank keeps at once, shape (num_ranks,), in microbatches of one
    stage.

    One is kept from its F to its B, or to its W where the backward is split; spans are read in
    order of start. Pieces of one action, under one label one after another, count once.
    """
    chronological = timeline.select(np.argsort(timeline.start_us, kind="stable"))
    compute = chronological.select(chronological.lane == COMPUTE)
    peaks = []
    for rank in range(timeline.num_ranks):
        mine = compute.select(compute.rank == rank)
        again = (mine.kind[1:] == mine.kind[:-1]) & (mine.label[1:] == mine.label[:-1])
        begins = np.append(True, ~again | (mine.label[1:] == ""))[: len(mine)]
        peaks.append(peak_kept(mine.kind[begins]))
    return np.array(peaks, dtype=np.int64)


def peak_kept(kinds: Iterable[str]) -> int:
    """The most activations that a rank keeps at once while it does actions of these kinds, in this
    order."""
    change = {"F": 1, "B": -1, "W": -1}
    kept = most = 0
    for kind in kinds:
        kept += change.get(kind, 0)
        most = max(most, kept)
    return most
