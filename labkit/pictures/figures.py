"""The figures of a timeline, computed once per picture, and what the picture says with them: the
numbers in its title, the bars beside its rows, its table and its summary."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.timeline import COMM, COMPUTE, Timeline, busy_us, hidden_comm, in_flight, step_us
from labkit.units import format_bytes, format_share, format_us

_BESIDE = 0.1
"""the share of a message's time in which its rank may compute, if it is to count as waited for"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Figures:
    """What a picture says of a timeline. The columns have shape (num_ranks,)."""

    timeline: Timeline
    """what they were computed of"""
    is_pipeline: bool
    """whether there are forward and backward actions; where all messages count, also messages from
    stage to stage"""
    span_us: float
    """a pipeline's bubble counts from the first to the last compute, unless asked otherwise;
    anything else to the end of its last message"""
    compute_us: np.ndarray
    """float64: time in which a rank computes"""
    comm_us: np.ndarray
    """float64: time in which a rank communicates"""
    busy: np.ndarray
    """float64: share of the span spent computing, or communicating where nobody computes"""
    sent_bytes: np.ndarray
    """float64: what a rank sends; where nothing is called a send, the payload of what it takes part
    in"""
    peaks: np.ndarray
    """int64: activations held at the peak; zeros where none of the picture's timelines is a
    pipeline"""

    @property
    def idle(self) -> float:
        """The share of all ranks' time in which they are not busy."""
        return 1 - float(self.busy.mean()) if len(self.timeline) else 0.0

    @property
    def talks_only(self) -> bool:
        """Whether there is nothing but communication."""
        return set(self.timeline.lane.tolist()) == {COMM}


def begun(tl: Timeline, *, messages: bool = False) -> Timeline:
    """The same from 0 on, where its span is counted from: a pipeline's first compute, anything
    else's first span, a message too; with ``messages`` a pipeline's as well."""
    if (not messages and is_pipeline(tl)) or not len(tl):
        return tl.shifted()
    zero_us = tl.start_us.min()
    return replace(tl, start_us=tl.start_us - zero_us, end_us=tl.end_us - zero_us)


def of_timelines(timelines: Sequence[Timeline], *, messages: bool = False) -> list[Figures]:
    """The figures of all timelines of one picture; with ``messages`` a pipeline's span has those
    before its first compute and behind its last one too."""
    counts_peaks = any(is_pipeline(tl, messages=messages) for tl in timelines)
    return [_of_one(tl, counts_peaks, messages) for tl in timelines]


def is_pipeline(tl: Timeline, *, messages: bool = False) -> bool:
    """Whether there are forward and backward actions; with ``messages``, which has those of every
    axis on it, also whether stages send one another some."""
    acts = bool(np.isin(tl.kind, ("F", "B", "I")).any())
    return acts and (not messages or bool(np.isin(tl.kind, ("send", "recv")).any()))


def _of_one(tl: Timeline, counts_peaks: bool, messages: bool) -> Figures:
    pipeline = is_pipeline(tl, messages=messages)
    span_us = tl.span_us if pipeline and not messages else step_us(tl)
    compute_us = busy_us(tl, COMPUTE)
    comm_us = busy_us(tl, COMM)
    work_us = compute_us if COMPUTE in tl.lane else comm_us
    counted = tl.kind == "send" if "send" in tl.kind else tl.lane == COMM
    return Figures(
        timeline=tl,
        is_pipeline=pipeline,
        span_us=span_us,
        compute_us=compute_us,
        comm_us=comm_us,
        busy=work_us / (span_us or 1.0),
        sent_bytes=np.bincount(tl.rank[counted], tl.num_bytes[counted], tl.num_ranks),
        peaks=in_flight(tl) if counts_peaks else np.zeros(tl.num_ranks, dtype=np.int64),
    )


def waited(figures: Figures) -> Figures:
    """The same with the messages only that ranks stood waiting for, where a pipeline was measured.

    What goes on beside its rank's computing lasts until the rank next looks whether it is done, so
    a box as long as that would tell a lie.
    """
    tl = figures.timeline
    if not figures.is_pipeline or tl.origin == "simulated":
        return figures
    keep = np.ones(len(tl), dtype=bool)
    for rank in range(tl.num_ranks):
        of_rank = tl.rank == rank
        work = tl.select(of_rank & (tl.lane == COMPUTE))
        sent = np.flatnonzero(of_rank & np.isin(tl.kind, ("send", "recv")))
        beside_us = _worked_us(work, tl.end_us[sent]) - _worked_us(work, tl.start_us[sent])
        keep[sent] = beside_us <= _BESIDE * (tl.end_us[sent] - tl.start_us[sent])
    return replace(figures, timeline=tl.select(keep))


def _worked_us(work: Timeline, until_us: np.ndarray) -> np.ndarray:
    """How long a rank has computed by each of some times."""
    lasts_us = work.end_us - work.start_us
    return np.clip(until_us[:, None] - work.start_us, 0, lasts_us).sum(axis=1)


def numbers(figures: Figures, words: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The (name, value) pairs that stand in the title."""
    span = words["span"], format_us(figures.span_us)
    if figures.talks_only:
        return span, (words["busiest"], format_bytes(figures.sent_bytes.max()))
    idle = words["of"].format(format_share(figures.idle))
    if figures.is_pipeline:
        peak = words["in_flight"], str(max(figures.peaks))
        return (words["bubble"], idle), span, peak
    if COMM in figures.timeline.lane:
        hidden = words["hidden"], format_share(hidden_comm(figures.timeline))
        return (words["idle"], idle), span, hidden
    return (words["idle"], idle), span


def differences(
    before: Figures, after: Figures, words: dict[str, str]
) -> tuple[tuple[str, str], ...]:
    """The pairs of a comparison: what both have, and how far they are apart."""
    if before.is_pipeline:
        both = f"{format_share(before.idle)} → {format_share(after.idle)}"
        points = f"{100 * (after.idle - before.idle):+.1f}"
        return (words["bubble"], both), (words["difference"], words["points"].format(points))
    both = f"{format_us(before.span_us)} → {format_us(after.span_us)}"
    ratio = after.span_us / (before.span_us or 1.0)
    return (words["span"], both), (words["difference"], f"{100 * (ratio - 1):+.1f} %")


def sides(every: Sequence[Figures]) -> list[list[tuple[float, str]]]:
    """Per timeline and rank, the bar beside its row as (length, text); one scale for all of
    them."""
    if not any(figures.is_pipeline for figures in every):
        return [_busy_sides(figures) for figures in every]
    most = max(1, *(int(figures.peaks.max(initial=0)) for figures in every))
    return [_peak_sides(figures, most) for figures in every]


def _busy_sides(figures: Figures) -> list[tuple[float, str]]:
    shares = figures.busy.tolist()
    return [(share, f"{100 * share:.0f} %" if share else "") for share in shares]


def _peak_sides(figures: Figures, most: int) -> list[tuple[float, str]]:
    return [(peak / most, f"{peak:g}") for peak in figures.peaks.tolist()]


def table_head(figures: Figures, words: dict[str, str]) -> tuple[str, ...]:
    """The names of the table's columns."""
    names = ("compute", "idle", "share", "comm", "bytes")
    last = "in_flight" if figures.is_pipeline else "busy"
    return ("rank", *(words[name] for name in (*names, last)))


def table_rows(figures: Figures, side: Sequence[tuple[float, str]]) -> list[tuple[str, ...]]:
    """A row per rank; the last cell is what the bar beside its row says."""
    idle = 1 - figures.busy
    return [
        (
            str(rank),
            format_us(figures.compute_us[rank]),
            format_us(idle[rank] * figures.span_us),
            format_share(idle[rank]),
            format_us(figures.comm_us[rank]),
            format_bytes(figures.sent_bytes[rank]),
            text,
        )
        for rank, (_, text) in enumerate(side)
    ]


def summary(figures: Figures, badge: str, words: dict[str, str]) -> str:
    """The timeline in one sentence."""
    tl = figures.timeline
    if not len(tl):
        return words["nothing"]
    told = words["summary"] if COMPUTE in tl.lane else words["summary_comm"]
    return told.format(
        ranks=tl.num_ranks,
        span=format_us(figures.span_us),
        badge=badge,
        bubble=format_share(1 - figures.busy.mean()),
        worst=figures.busy.argmin(),
        most=format_share(1 - figures.busy.min()),
        sender=figures.sent_bytes.argmax(),
        bytes=format_bytes(figures.sent_bytes.max()),
    )
