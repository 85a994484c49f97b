"""Data to drawing: a Scene is boxes, rows, kinds and words, laid out once; ``svg``, ``mpl`` and
``text`` paint it.

Lengths are pixels of a picture WIDTH_PX wide; times are microseconds. A box is exactly as wide as
its time.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from labkit.pictures.style import IDLE, KINDS, style
from labkit.timeline import COMM, COMPUTE, Timeline, busy_us, hidden_comm, in_flight, step_us
from labkit.units import format_bytes, format_share, format_us
from labkit.words import speaking, titled

WIDTH_PX, LEFT_PX, RIGHT_PX = 900, 58, 112
PLOT_PX = WIDTH_PX - LEFT_PX - RIGHT_PX
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strip of boxes."""

    name: str
    """what stands left of it; "" for the thin strips of communication"""
    rank: int
    """the rank it belongs to"""
    lane: str
    """"compute" or "comm" """
    top_px: float
    """its upper edge"""
    height_px: float
    """its height"""
    side: float = 0.0
    """the length of the bar at its right, 0 to 1"""
    side_text: str = ""
    """the number of that bar"""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A line above a panel: bold words, then plain ones."""

    text: str
    """whose timeline this is"""
    detail: str
    """its numbers"""
    bottom_px: float
    """its baseline"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """A picture before anyone has painted it. The box columns have shape (num_boxes,), sorted by
    row, then start."""

    row: np.ndarray
    """int64: index into ``rows``"""
    kind: np.ndarray
    """str: F, B, I, W, send, ..., "idle" """
    chunk: np.ndarray
    """int64: 0 for a rank's first stage, 1 for its second: a lighter shade"""
    texts: np.ndarray
    """str (num_boxes, 3): what may stand in the box, the longest first"""
    x0_us: np.ndarray
    """float64: left edge"""
    x1_us: np.ndarray
    """float64: right edge"""
    num_bytes: np.ndarray
    """int64: payload of a message, 0 for anything else"""
    rows: tuple[Row, ...]
    """the strips, from top to bottom"""
    headings: tuple[Heading, ...]
    """one per panel of a comparison"""
    start_us: float
    """left end of the axis"""
    end_us: float
    """right end of the axis"""
    heading: str
    """what the picture shows"""
    numbers: tuple[tuple[str, str], ...]
    """(name, value) pairs that stand in the title"""
    badge: str
    """where it comes from: "simulated", "measured, paced, gloo" """
    summary: str
    """one sentence"""
    table: tuple[tuple[str, ...], ...]
    """the numbers per rank; the first row holds the column names"""
    side_name: str
    """what the bars at the right count"""
    marks_us: tuple[float, ...] = ()
    """times worth a dashed line: where the prediction ends"""
    language: str = "en"
    """"en" or "zh" """
    in_english: "Callable[[], Scene] | None" = field(default=None, repr=False)
    """builds the same in English, for painters without a Chinese font"""

    @property
    def title(self) -> str:
        """Heading, numbers and origin in one line, for screen readers and terminals."""
        return titled(self.heading, self.numbers, self.badge, self.language)

    @property
    def bottom_px(self) -> float:
        """Where the rows end and the axis begins."""
        return max((row.top_px + row.height_px for row in self.rows), default=100.0) + 5

    @property
    def kinds(self) -> list[str]:
        """The kinds in the picture, in the legend's order."""
        present = set(self.kind.tolist())
        return [kind for kind in KINDS if kind in present] + sorted(present - set(KINDS))

    def x_px(self, time_us: float | np.ndarray) -> float | np.ndarray:
        """Where a time lies across the picture."""
        return LEFT_PX + (time_us - self.start_us) * PLOT_PX / (self.end_us - self.start_us)


def timeline(
    tl: Timeline, *, title: str | None = None, span_us: float | None = None, language: str = "en"
) -> Scene:
    """What every rank did and when: compute, communication in thin strips under it, idle time
    hatched, a bar beside it.

    The bar counts activations held at the peak (pipelines) or the busy share (anything else).
    ``span_us`` lengthens the axis, so that several pictures share one scale.
    """

    def build(words: dict[str, str]) -> Scene:
        return _build(
            [(tl.shifted(), "")], title or words["timeline"], _numbers(tl, words), span_us, words
        )

    return speaking(language, build)


def compare(
    predicted: Timeline, measured: Timeline, *, title: str | None = None, language: str = "en"
) -> Scene:
    """The prediction above the measurement on one axis; a dashed line carries the predicted end
    down."""

    def build(words: dict[str, str]) -> Scene:
        (before, after), spans = (
            map(_idle, (predicted, measured)),
            tuple(map(_span_us, (predicted, measured))),
        )
        numbers = (
            (words["bubble"], f"{format_share(before)} → {format_share(after)}"),
            (words["difference"], words["points"].format(f"{100 * (after - before):+.1f}")),
        )
        if not _is_pipeline(predicted):
            numbers = (
                (words["span"], " → ".join(map(format_us, spans))),
                (words["difference"], f"{100 * (spans[1] / (spans[0] or 1.0) - 1):+.1f} %"),
            )
        panels = [
            (predicted.shifted(), words["predicted"]),
            (measured.shifted(), words["measured"].capitalize()),
        ]
        return replace(
            _build(panels, title or words["compare"], numbers, None, words), marks_us=spans[:1]
        )

    return speaking(language, build)


def _numbers(tl: Timeline, words: dict[str, str]) -> tuple[tuple[str, str], ...]:
    pipeline, lanes, numbers = (
        _is_pipeline(tl),
        set(tl.lane.tolist()),
        [(words["span"], format_us(_span_us(tl)))],
    )
    if lanes == {COMM}:
        return *numbers, (words["busiest"], format_bytes(_rank_bytes(tl).max()))
    idle = words["bubble" if pipeline else "idle"], words["of"].format(format_share(_idle(tl)))
    if pipeline:
        numbers.append((words["in_flight"], str(max(in_flight(tl)))))
    elif COMM in lanes:
        numbers.append((words["hidden"], format_share(hidden_comm(tl))))
    return idle, *numbers


def _build(
    panels: list[tuple[Timeline, str]],
    heading: str,
    numbers: tuple,
    span_us: float | None,
    words: dict,
) -> Scene:
    rows, boxes, headings, tables, summaries, badges, y_px = [], [], [], [], [], [], 62.0
    height_px = min(26.0, max(4.0, 440 / max(1, sum(tl.num_ranks for tl, _ in panels))))
    for (tl, name), side in zip(panels, _sides([tl for tl, _ in panels]), strict=True):
        badges.append(words["comma"].join(words.get(note, note) for note in (tl.origin, *tl.notes)))
        if name:
            y_px += 28 if rows else 14
            detail = " · ".join([*map(" ".join, _numbers(tl, words)), badges[-1]])
            headings.append(Heading(text=name, detail=detail, bottom_px=y_px - 8))
        new_rows, y_px = _rows(tl, side, y_px, height_px)
        boxes += _boxes(tl, new_rows, len(rows))
        rows += [row for row, _ in new_rows]
        tables += [
            (name, *line) if name else line for line in _table(tl, side, words)[bool(tables) :]
        ]
        summaries.append((name and name + words["colon"]) + _summary(tl, badges[-1], words))
    if headings:
        tables[0] = (words["timeline"], *tables[0][1:])
    boxes.sort(key=lambda box: (box[0], box[4], -box[5]))
    row, kind, chunk, texts, x0_us, x1_us, num_bytes = (
        zip(*boxes, strict=True) if boxes else ((),) * 7
    )
    start_us = min(float(tl.start_us.min(initial=0.0)) for tl, _ in panels)
    end_us = max(
        span_us or 0.0, *(max(_span_us(tl), float(tl.end_us.max(initial=0.0))) for tl, _ in panels)
    )
    return Scene(
        row=np.array(row, dtype=np.int64),
        kind=np.array(kind, dtype=str),
        chunk=np.array(chunk, dtype=np.int64),
        texts=np.array(texts, dtype=str).reshape(-1, 3),
        x0_us=np.array(x0_us, dtype=float),
        x1_us=np.array(x1_us, dtype=float),
        num_bytes=np.array(num_bytes, dtype=np.int64),
        rows=tuple(rows),
        headings=tuple(headings),
        start_us=start_us,
        end_us=end_us or 1000.0,
        heading=heading,
        numbers=numbers,
        badge=" / ".join(badges),
        summary=" ".join(summaries),
        table=tuple(tables),
        language=words["code"],
        side_name=words["in_flight" if _is_pipeline(panels[0][0]) else "busy"],
    )


def _rows(
    tl: Timeline, sides: list[tuple[float, str]], y_px: float, height_px: float
) -> tuple[list, float]:
    """The strips of a timeline as (row, indices of its spans), and where the next panel may
    begin."""
    rows, every, computes = [], int(np.ceil(12 / height_px)), COMPUTE in tl.lane or not len(tl)
    for rank in range(tl.num_ranks):
        strips = _strips(tl, rank) if computes else _strips(tl, rank)[1:] or [[]]
        for index, spans in enumerate(strips):
            named, (side, text) = (
                index == 0 and rank % every == 0,
                sides[rank] if index == 0 else (0.0, ""),
            )
            strip_px = height_px if index == 0 else max(2.0, 0.3 * height_px)
            strip_px = strip_px if computes else 2 * height_px / (1 + len(strips))
            row = Row(
                name=f"rank {rank}" if named else "",
                rank=rank,
                lane=COMPUTE if computes and not index else COMM,
                top_px=y_px,
                height_px=strip_px,
                side=side,
                side_text=text if named else "",
            )
            rows.append((row, spans))
            y_px += strip_px + min(1.0, 0.05 * height_px)
        y_px += 0.12 * height_px
    return rows, y_px


def _strips(tl: Timeline, rank: int) -> list[list[int]]:
    """Compute; then communication on as many strips (three at most) as it takes for none to cover
    another."""
    compute, order, tracks = (
        (tl.rank == rank) & (tl.lane == COMPUTE),
        np.argsort(tl.start_us, kind="stable"),
        [],
    )
    spans = order[((tl.rank == rank) & ~compute)[order]]
    both = [spans[tl.kind[spans] == kind] for kind in ("send", "recv")]
    for split in ([spans], both):  # sends and receives that overlap have a strip each
        gaps = (tl.start_us[mine[1:]] - tl.end_us[mine[:-1]] for mine in split)
        if sum(map(len, split)) == len(spans) and min(gap.min(initial=0) for gap in gaps) >= -1e-6:
            return [
                np.flatnonzero(compute).tolist(),
                *(mine.tolist() for mine in split if len(mine)),
            ]
    for span in spans.tolist():
        free = next(
            (track for track in tracks if tl.end_us[track[-1]] <= tl.start_us[span] + 1e-6), None
        )
        if free is None and len(tracks) < 3:
            tracks.append([span])
        else:
            (tracks[-1] if free is None else free).append(span)
    return [np.flatnonzero(compute).tolist(), *tracks]


def _boxes(tl: Timeline, rows: list[tuple[Row, list[int]]], first: int) -> list[tuple]:
    """One tuple (row, kind, chunk, texts, start, end) per span, and one per idle gap of a compute
    strip."""
    start_us, end_us, kinds, labels, sizes = (
        column.tolist() for column in (tl.start_us, tl.end_us, tl.kind, tl.label, tl.num_bytes)
    )
    boxes, span_us = [], _span_us(tl)
    for index, (row, spans) in enumerate(rows, first):
        parsed = {
            i: match
            for i in spans
            if row.lane == COMPUTE and (match := _ACTION.fullmatch(labels[i]))
        }
        stages = sorted({int(match[1]) for match in parsed.values()})
        idle_us = 0.0
        for i in sorted(spans, key=start_us.__getitem__):
            texts, chunk = (labels[i], style(kinds[i]).letter, ""), 0
            if match := parsed.get(i):
                short = (match[2] + match[3], match[3])
                texts, chunk = (
                    ((labels[i], *short) if len(stages) > 1 else (*short, "")),
                    stages.index(int(match[1])),
                )
            if row.lane == COMPUTE and start_us[i] > idle_us + 1e-6:
                boxes.append((index, IDLE, 0, ("", "", ""), idle_us, start_us[i], 0))
            idle_us = max(idle_us, end_us[i])
            boxes.append((index, kinds[i], chunk, texts, start_us[i], end_us[i], sizes[i]))
        if row.lane == COMPUTE and idle_us < span_us - 1e-6:
            boxes.append((index, IDLE, 0, ("", "", ""), idle_us, span_us, 0))
    return boxes


def _is_pipeline(tl: Timeline) -> bool:
    return bool(np.isin(tl.kind, ("F", "B", "I")).any())


def _span_us(tl: Timeline) -> float:
    """A pipeline's bubble counts from the first to the last compute; anything else to the end of
    its last message."""
    return tl.span_us if _is_pipeline(tl) else step_us(tl)


def _busy(tl: Timeline) -> np.ndarray:
    """Each rank's share of the span: of computing, or of communicating where nobody computes."""
    return busy_us(tl, COMPUTE if COMPUTE in tl.lane else COMM) / (_span_us(tl) or 1.0)


def _idle(tl: Timeline) -> float:
    return 1 - float(_busy(tl).mean()) if len(tl) else 0.0


def _rank_bytes(tl: Timeline) -> np.ndarray:
    """What each rank sends; where nothing is called a send, the payload of what it takes part
    in."""
    counted = tl.kind == "send" if "send" in tl.kind else tl.lane == COMM
    return np.bincount(tl.rank[counted], tl.num_bytes[counted], tl.num_ranks)


def _sides(timelines: list[Timeline]) -> list[list[tuple[float, str]]]:
    """Per timeline and rank, the bar beside its row as (length, text); one scale for all of
    them."""
    if any(_is_pipeline(tl) for tl in timelines):
        peaks = [in_flight(tl).tolist() for tl in timelines]
        most = max(1, *(peak for of_one in peaks for peak in of_one))
        return [[(peak / most, f"{peak:g}") for peak in of_one] for of_one in peaks]
    shares = [_busy(tl).tolist() for tl in timelines]
    return [
        [(share, f"{100 * share:.0f} %" if share else "") for share in of_one] for of_one in shares
    ]


def _table(tl: Timeline, sides: list[tuple[float, str]], words: dict) -> list[tuple[str, ...]]:
    last = words["in_flight"] if _is_pipeline(tl) else words["busy"]
    lines = [
        (
            "rank",
            words["compute"],
            words["idle"],
            words["share"],
            words["comm"],
            words["bytes"],
            last,
        )
    ]
    span_us, columns = (
        _span_us(tl),
        (busy_us(tl, COMPUTE), busy_us(tl, COMM), 1 - _busy(tl), _rank_bytes(tl), sides),
    )
    for rank, (compute_us, comm_us, idle, num_bytes, (_, text)) in enumerate(
        zip(*columns, strict=True)
    ):
        lines.append(
            (
                str(rank),
                format_us(compute_us),
                format_us(idle * span_us),
                format_share(idle),
                format_us(comm_us),
                format_bytes(num_bytes),
                text,
            )
        )
    return lines


def _summary(tl: Timeline, badge: str, words: dict) -> str:
    if not len(tl):
        return words["nothing"]
    busy, sent_bytes, key = _busy(tl), _rank_bytes(tl), "" if COMPUTE in tl.lane else "_comm"
    return words["summary" + key].format(
        ranks=tl.num_ranks,
        span=format_us(_span_us(tl)),
        badge=badge,
        bubble=format_share(1 - busy.mean()),
        worst=busy.argmin(),
        most=format_share(1 - busy.min()),
        sender=sent_bytes.argmax(),
        bytes=format_bytes(sent_bytes.max()),
    )
