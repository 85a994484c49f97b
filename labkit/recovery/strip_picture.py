"""What happened when, as boxes on lanes under one another: a save beside training, and what an
interval between two checkpoints pays for."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Said, Shape, Sketch, Words, said, short, ticks
from labkit.pictures.style import CYCLE, text_px
from labkit.shown import Shown
from labkit.units import check_real, format_us
from labkit.words import both, sentence, speaking

__all__ = ["Strip", "interval"]

Span = tuple[Said, float, float]
"""what it is, when it begins and when it ends"""
_TOP_PX, _LANE_PX, _BOX_PX, _LEFT_PX, _ROOM_PX = 58.0, 38.0, 28.0, 120.0, 40.0
_MARK_PX = 20.0
"""for the words of marks, above the lanes"""


@dataclass(frozen=True, kw_only=True)
class Strip(Shown):
    """Spans of time as boxes on lanes, over an axis of time. Shows itself in a notebook; a lane
    whose boxes are too narrow for their words has them beside it, with their times."""

    title: Said
    """above the picture"""
    badge: Said
    """where it comes from: measured, say"""
    lanes: Sequence[tuple[Said, Sequence[Span]]]
    """each lane's name and its spans, from left to right; one without a name has no colours"""
    marks: Sequence[tuple[Said, float]] = ()
    """moments with a dashed line through all lanes"""
    seconds: bool = True
    """whether its times are seconds; False where lengths mean nothing: not told, and no axis"""

    def __post_init__(self) -> None:
        spans = self.spans()
        if not spans:
            raise ValueError("a Strip draws one span or more; got none")
        for name, start, end in spans:
            check_real(0.0, start=start, end=end)
            if start > end:
                raise ValueError(f"a span ends after it begins; {name!r} is {start} to {end}")

    def spans(self) -> list[Span]:
        """Those of all lanes."""
        return list(chain.from_iterable(lane for _, lane in self.lanes))

    def __repr__(self) -> str:
        return f"Strip({len(self.lanes)} lanes, {said(self.badge, 'en')})"

    def _picture(self, language: str) -> Sketch:
        return speaking(language, lambda words: _drawn(self, words))


def interval() -> Strip:
    """An interval that a failure does not touch, and one that it does. T, C and R are those of
    ``how_often``; lengths are no scale."""
    kinds = ("train", "save", "lost", "come back", "again", "train", "save")
    letters = ("T", "C", "", "R", "T/2 on average", "", "C")
    lengths = (8.0, 2.0, 4.0, 3.0, 4.0, 4.0, 2.0)
    time: list[Span] = []
    paid: list[Span] = []
    at = 0.0
    for kind, letter, length in zip(kinds, letters, lengths, strict=True):
        time.append((_SAID[kind], at, at + length))
        if letter:
            paid.append((_SAID.get(letter, letter), at, at + length))
        at += length
    return Strip(
        title=both("One interval without a failure, and one with (not to scale)"),
        badge=both("a sketch"),
        lanes=[(both("lane|training"), time), ("", paid)],
        marks=[(both("failure"), 14.0)],
        seconds=False,
    )


_SAID = {
    "train": both("train"),
    "save": both("save"),
    "lost": both("train, lost"),
    "come back": both("come back"),
    "again": both("again"),
    "T/2 on average": both("T/2 on average"),
}


def _drawn(strip: Strip, words: dict[str, str]) -> Sketch:
    code = words["code"]
    ends = [end for *_, end in strip.spans()]
    scale = (WIDTH_PX - _LEFT_PX - _ROOM_PX) / max(*ends, 1e-9)
    top_px = _TOP_PX + _MARK_PX * bool(strip.marks)
    shapes: list[Shape] = []
    rows = [("", said(both("takes"), code)) if strip.seconds else ("",)]
    colours: dict[str, str] = {}
    for index, (name, spans) in enumerate(strip.lanes):
        y_px = top_px + _LANE_PX * index
        shapes.append(Words(0, y_px + 19, said(name, code)))
        shapes += _lane(spans, y_px, scale, colours if name else None, strip.seconds, code)
        for each, start, end in spans:
            took = (format_us(1e6 * (end - start)),) if strip.seconds else ()
            rows.append((said(each, code), *took))
    low_px = top_px + _LANE_PX * len(strip.lanes)
    for name, at in strip.marks:
        x = _LEFT_PX + at * scale
        shapes.append(Line(((x, top_px - 6), (x, low_px - 8)), dash=(4, 3)))
        shapes.append(Words(x, top_px - 10, said(name, code), "middle"))
    if strip.seconds:
        shapes += _axis(max(ends), scale, low_px)
        low_px += _MARK_PX
    heading = said(strip.title, code)
    badge = said(strip.badge, code)
    told = tuple(": ".join(row) for row in rows[1:])
    return Sketch(
        shapes=tuple(shapes),
        height_px=low_px + 6,
        badge=badge,
        heading=heading,
        table=tuple(rows),
        summary=sentence(heading, [(", ".join(told),)], badge, code),
        language=code,
    )


def _axis(longest_s: float, scale: float, y_px: float) -> list[Shape]:
    """Round times under the lanes, with a short line up from each."""
    shapes: list[Shape] = []
    for at_s in ticks(0.0, max(longest_s, 1e-9), 6).tolist():
        x = _LEFT_PX + at_s * scale
        shapes.append(Line(((x, y_px - 8), (x, y_px - 3))))
        text = short(format_us(1e6 * at_s)) if at_s else "0"
        shapes.append(Words(x, y_px + 10, text, "middle"))
    return shapes


def _lane(
    spans: Sequence[Span],
    y_px: float,
    scale: float,
    colours: dict[str, str] | None,
    seconds: bool,
    code: str,
) -> list[Shape]:
    """A lane's boxes, each kind in its colour; words beside it where a box has no room."""
    texts = [said(name, code) for name, _, _ in spans]
    narrow = [
        text_px(text) + 4 > (end - start) * scale
        for text, (_, start, end) in zip(texts, spans, strict=True)
    ]
    shapes: list[Shape] = []
    for text, (_, start, end) in zip(texts, spans, strict=True):
        key = "" if text.isdigit() else text
        colour = ""
        if colours is not None:
            colour = colours.setdefault(key, CYCLE[len(colours) % len(CYCLE)][0])
        inside = () if any(narrow) else (text,)
        width = max(1.0, (end - start) * scale)
        shapes.append(Box(_LEFT_PX + start * scale, y_px, width, _BOX_PX, colour, "", inside))
    if any(narrow):
        left, right = (_LEFT_PX + at * scale for at in (spans[0][1], spans[-1][2]))
        beside = ", ".join(
            _timed(*span, code) if seconds else said(span[0], code) for span in spans
        )
        fits = right + 8 + text_px(beside) <= WIDTH_PX
        place = (right + 8, "start") if fits else (left - 8, "end")
        shapes.append(Words(place[0], y_px + 19, beside, place[1]))
    return shapes


def _timed(name: Said, start: float, end: float, code: str) -> str:
    """A span in words: what it is, and how long it takes."""
    return f"{said(name, code)} {short(format_us(1e6 * (end - start)))}"
