"""Data to drawing: a Scene is boxes, rows, kinds and words, laid out once. ``svg``, ``mpl`` and ``text`` paint the same Scene.

Lengths are pixels of a picture WIDTH_PX wide; times are microseconds. A box is exactly as wide as its time: nothing is inflated.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from labkit import simulate
from labkit.style import IDLE, KINDS, WORDS, style
from labkit.timeline import COMM, COMPUTE, Timeline, bubble, busy_us, hidden_comm
from labkit.units import format_share, format_us

WIDTH_PX, LEFT_PX, RIGHT_PX = 900, 58, 112
PLOT_PX = WIDTH_PX - LEFT_PX - RIGHT_PX
MAX_BOXES, MAX_BLOCKS = 2000, 18_000
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strip of boxes."""

    name: str
    """what stands left of it; "" for the thin strips of communication"""
    rank: int
    """the rank it belongs to"""
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
    """A picture before anyone has painted it. The box columns have shape (num_boxes,), sorted by row, then start."""

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
        return f"{self.heading}: {', '.join(f'{name} {value}' for name, value in self.numbers)} ({self.badge})"

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

    def ticks(self) -> tuple[list[tuple[float, str]], str]:
        """Round times for the axis as (microseconds, text), and their unit."""
        factor, unit = next((f, u) for f, u in ((1e6, "s"), (1e3, "ms"), (1.0, "µs"), (0, "µs")) if self.end_us >= 5 * f)
        factor = factor or 1.0
        raw = (self.end_us - self.start_us) / factor / 8
        power = 10 ** np.floor(np.log10(raw))
        step = next(s for s in (1, 2, 5, 10) if s * power >= raw * 0.999) * power
        counts = np.arange(np.ceil(self.start_us / factor / step - 1e-9), self.end_us / factor / step + 1e-9)
        return [(float(n * step * factor), f"{n * step + 0.0:g}") for n in counts], unit

    def fitted(self, advance: float = 6.7, pad: float = 3.0, unit: float = 1.0) -> list[str]:
        """The text of each box: per kind the longest form that fits a usual box of that kind, "" where it does not fit."""
        width = (self.x1_us - self.x0_us) * PLOT_PX / (self.end_us - self.start_us) / unit
        out = np.full(len(self.kind), "", dtype=object)
        tall = np.array([row.height_px >= 13 for row in self.rows], dtype=bool)[self.row]
        for kind in self.kinds:
            mine = np.flatnonzero((self.kind == kind) & tall)
            for texts in self.texts[mine].T if len(mine) else ():
                need = np.array([advance * len(text) + pad for text in texts])
                if need.max() <= np.median(width[mine]):
                    out[mine] = np.where(need <= width[mine], texts, "")
                    break
        return out.tolist()

    def legend(self) -> list[tuple[float, str, str]]:
        """What the colours mean, as (left edge in pixels, kind, words); kind "" for a remark."""
        words = [(kind, style(kind).words[self.language]) for kind in self.kinds]
        if self.chunk.any():
            words.append(("", WORDS[self.language]["chunk"]))
        out, x = [], float(LEFT_PX)
        for kind, text in words:
            out.append((x, kind, text))
            x += sum(12.5 if ord(c) > 0x2E80 else 6.6 for c in text) + (28 if kind else 0) + 20
        return out

    def merged(self) -> "Scene":
        """The same with boxes narrower than a pixel joined: one block per pixel and kind, so that every share stays.

        Up to MAX_BOXES nothing is joined. Above, the pixel widens where many rows would still make too many blocks.
        """
        if len(self.row) <= MAX_BOXES:
            return self
        pixel_us = (self.end_us - self.start_us) / PLOT_PX * max(1.0, 3 * PLOT_PX * len(self.rows) / MAX_BLOCKS)
        narrow = self.x1_us - self.x0_us < pixel_us
        _, kind = np.unique(self.kind, return_inverse=True)
        segment = np.cumsum(~narrow) * 2 + narrow  # narrow boxes between the same two wide ones, and each wide one
        pixel = np.where(narrow, (self.x0_us + self.x1_us) / 2 // pixel_us, 0)
        keys = np.stack([self.row, segment, pixel, kind, self.chunk])
        block, place = np.unique(keys[:3], axis=1, return_inverse=True)
        _, first, group = np.unique(keys, axis=1, return_index=True, return_inverse=True)
        width = np.bincount(group, self.x1_us - self.x0_us)
        left = np.full(block.shape[1], np.inf)
        np.minimum.at(left, place, self.x0_us)
        before = np.cumsum(width) - width
        start_of = place[first]
        x0_us = left[start_of] + before - before[np.searchsorted(start_of, start_of)]
        return replace(self, row=self.row[first], kind=self.kind[first], chunk=self.chunk[first], texts=self.texts[first],
                       x0_us=x0_us, x1_us=x0_us + width)


def timeline(tl: Timeline, *, title: str | None = None, span_us: float | None = None, language: str = "en") -> Scene:
    """What every rank did and when: compute, a thin strip of communication under it, idle time hatched, a bar per rank beside it.

    ``span_us`` lengthens the axis, so that several pictures share one scale.
    """
    return _both(lambda words: _build([(tl.shifted(), "")], title or words["timeline"], _numbers(tl, words), span_us, words), language)


def compare(predicted: Timeline, measured: Timeline, *, title: str | None = None, language: str = "en") -> Scene:
    """The prediction above the measurement on one axis; a dashed line carries the predicted end down."""

    def build(words: dict[str, str]) -> Scene:
        shares = bubble(predicted), bubble(measured)
        numbers = ((words["bubble"], f"{format_share(shares[0])} → {format_share(shares[1])}"),
                   (words["difference"], words["points"].format(f"{100 * (shares[1] - shares[0]):+.1f}")))
        panels = [(predicted.shifted(), words["predicted"]), (measured.shifted(), words["measured"].capitalize())]
        return replace(_build(panels, title or words["compare"], numbers, None, words), marks_us=(predicted.span_us,))

    return _both(build, language)


def _both(build: Callable[[dict[str, str]], Scene], language: str) -> Scene:
    if language not in WORDS:
        raise ValueError(f"a picture's language is one of {', '.join(WORDS)}; got {language!r}")
    scene = build(WORDS[language])
    return scene if language == "en" else replace(scene, in_english=lambda: build(WORDS["en"]))


def _numbers(tl: Timeline, words: dict[str, str]) -> tuple[tuple[str, str], ...]:
    numbers = [(words["bubble"], words["of"].format(format_share(bubble(tl)))), (words["span"], format_us(tl.span_us))]
    if _is_pipeline(tl):
        numbers.append((words["in_flight"], f"{max(simulate.in_flight(tl))}"))
    elif (tl.lane == COMM).any():
        numbers.append((words["hidden"], format_share(hidden_comm(tl))))
    return tuple(numbers)


def _build(panels: list[tuple[Timeline, str]], heading: str, numbers: tuple, span_us: float | None, words: dict) -> Scene:
    rows: list[Row] = []
    boxes, headings, tables, summaries, y_px = [], [], [], [], 62.0
    height_px = min(26.0, max(4.0, 440 / max(1, sum(tl.num_ranks for tl, _ in panels))))
    for tl, name in panels:
        badge = ", ".join(words.get(note, note) for note in (tl.origin, *tl.notes))
        if name:
            y_px += 30
            headings.append(Heading(text=name, detail=f"{format_share(bubble(tl))} {words['bubble']} · {format_us(tl.span_us)} · {badge}",
                                    bottom_px=y_px - 8))
        new_rows, y_px = _rows(tl, y_px, height_px, words)
        boxes += _boxes(tl, new_rows, len(rows))
        rows += [row for row, _ in new_rows]
        table = _table(tl, words)
        tables += [(name, *line) if name else line for line in (table[1:] if tables else table)]
        summaries.append((f"{name}: " if name else "") + _summary(tl, badge, words))
    if headings:
        tables[0] = (words["timeline"], *tables[0][1:])
    boxes.sort(key=lambda box: (box[0], box[4], -box[5]))
    row, kind, chunk, texts, x0_us, x1_us = zip(*boxes, strict=True) if boxes else ((),) * 6
    end_us = max(span_us or 0.0, *(max(tl.span_us, float(tl.end_us.max(initial=0.0))) for tl, _ in panels))
    return Scene(row=np.array(row, dtype=np.int64), kind=np.array(kind, dtype=str), chunk=np.array(chunk, dtype=np.int64),
                 texts=np.array(texts, dtype=str).reshape(-1, 3), x0_us=np.array(x0_us, dtype=float),
                 x1_us=np.array(x1_us, dtype=float), rows=tuple(rows), headings=tuple(headings),
                 start_us=min(float(tl.start_us.min(initial=0.0)) for tl, _ in panels), end_us=end_us or 1000.0,
                 heading=heading, numbers=numbers, badge="" if headings else badge, summary=" ".join(summaries),
                 table=tuple(tables), side_name=words["in_flight" if _is_pipeline(panels[0][0]) else "busy"], language=words["code"])


def _rows(tl: Timeline, y_px: float, height_px: float, words: dict) -> tuple[list[tuple[Row, list[int]]], float]:
    """The strips of a timeline, each with the spans that lie on it, and where the next panel may begin."""
    rows, sides = [], _sides(tl)
    every = int(np.ceil(12 / height_px))
    for rank in range(tl.num_ranks):
        for index, spans in enumerate(_strips(tl, rank)):
            named = index == 0 and rank % every == 0
            strip_px = height_px if index == 0 else max(2.0, 0.3 * height_px)
            rows.append((Row(name=f"rank {rank}" if named else "", rank=rank, top_px=y_px, height_px=strip_px,
                             side=sides[rank][0] if index == 0 else 0.0, side_text=sides[rank][1] if named else ""), spans))
            y_px += strip_px + min(1.0, 0.05 * height_px)
        y_px += 0.12 * height_px
    return rows, y_px


def _strips(tl: Timeline, rank: int) -> list[list[int]]:
    """Compute first; then communication on as many strips (three at most) as it takes for none to cover another."""
    on_rank = tl.rank == rank
    tracks: list[list[int]] = []
    for span in sorted(np.flatnonzero(on_rank & (tl.lane != COMPUTE)).tolist(), key=lambda i: tl.start_us[i]):
        free = next((track for track in tracks if tl.end_us[track[-1]] <= tl.start_us[span] + 1e-6), None)
        if free is None and len(tracks) < 3:
            tracks.append(free := [])
        (tracks[-1] if free is None else free).append(span)
    return [np.flatnonzero(on_rank & (tl.lane == COMPUTE)).tolist(), *tracks]


def _boxes(tl: Timeline, rows: list[tuple[Row, list[int]]], first: int) -> list[tuple]:
    """One tuple (row, kind, chunk, texts, start, end) per span, and one per idle gap of a compute strip."""
    parsed = [_ACTION.fullmatch(label) for label in tl.label.tolist()]
    stages = [sorted({int(m[1]) for m, rank in zip(parsed, tl.rank.tolist(), strict=True) if m and rank == r})
              for r in range(tl.num_ranks)]
    several = any(len(on_rank) > 1 for on_rank in stages)
    boxes: list[tuple] = []
    for index, (row, spans) in enumerate(rows, first):
        covered_us = 0.0
        for i in sorted(spans, key=lambda i: tl.start_us[i]):
            kind, label, match = str(tl.kind[i]), str(tl.label[i]), parsed[i]
            texts, chunk = (label, style(kind).letter, ""), 0
            if match and tl.lane[i] == COMPUTE:
                texts = (label, match[2] + match[3], match[3]) if several else (match[2] + match[3], match[3], "")
                chunk = stages[row.rank].index(int(match[1]))
            if tl.lane[i] == COMPUTE and tl.start_us[i] > covered_us + 1e-6:
                boxes.append((index, IDLE, 0, ("", "", ""), covered_us, tl.start_us[i]))
            covered_us = max(covered_us, tl.end_us[i])
            boxes.append((index, kind, chunk, texts, tl.start_us[i], tl.end_us[i]))
        if row.height_px >= rows[0][0].height_px and covered_us < tl.span_us - 1e-6:
            boxes.append((index, IDLE, 0, ("", "", ""), covered_us, tl.span_us))
    return boxes


def _is_pipeline(tl: Timeline) -> bool:
    return bool(np.isin(tl.kind, ("F", "B", "I")).any())


def _sides(tl: Timeline) -> list[tuple[float, str]]:
    """Per rank, the bar beside its row: activations held at the peak in a pipeline, the busy share elsewhere."""
    if _is_pipeline(tl):
        peaks = simulate.in_flight(tl)
        return [(float(peak / max(1, peaks.max())), f"{peak:g}") for peak in peaks]
    return [(share, f"{100 * share:.0f} %") for share in (busy_us(tl) / (tl.span_us or 1.0)).tolist()]


def _table(tl: Timeline, words: dict) -> list[tuple[str, ...]]:
    pipeline = _is_pipeline(tl)
    lines = [("rank", words["busy"], words["idle"], words["share"], words["comm"], *([words["in_flight"]] if pipeline else []))]
    columns = busy_us(tl), busy_us(tl, COMM), _sides(tl)
    for rank, (busy, comm, (_, text)) in enumerate(zip(*columns, strict=True)):
        idle = max(0.0, tl.span_us - busy)
        lines.append((str(rank), format_us(busy), format_us(idle), format_share(idle / (tl.span_us or 1.0)), format_us(comm),
                      *([text] if pipeline else [])))
    return lines


def _summary(tl: Timeline, badge: str, words: dict) -> str:
    if not len(tl):
        return words["nothing"]
    idle = 1 - busy_us(tl) / (tl.span_us or 1.0)
    return words["summary"].format(ranks=tl.num_ranks, span=format_us(tl.span_us), badge=badge, bubble=format_share(bubble(tl)),
                                   worst=int(idle.argmax()), most=format_share(float(idle.max())))
