"""Horizontal bars from 0 in groups, each with its value, and dashed lines for bounds; a bar of
parts against a limit; and a bar that says how much of something is done."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.pictures.axes import Format
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Said, Shape, Words, legend
from labkit.pictures.style import CYCLE, KINDS, clipped, text_px

_HATCHES = ("", "/", "x", "-", "\\", "|", "+", ".")
_METER_LEFT_PX = 190.0  # where a meter begins
_METER_LONGEST_PX = 430.0
Bill = Mapping[str, float]
"""part -> how much"""
BAR_PX = 24.0
_TEXT_PX = 32.0  # half of the widest number in a bar of parts


class Bar(NamedTuple):
    """Parts in a row, against a limit."""

    label: str
    """what stands left of it"""
    parts: Bill
    """part -> how much"""
    told: tuple[str, ...]
    """what stands right of it: a line, or two"""
    limit: float = 0.0
    """where the line across it lies; 0: none"""
    limit_name: str = ""
    """what stands above that line; "" where the bar above says it"""
    thick_px: float = BAR_PX
    """how thick"""
    spare: float = 0.0
    """how much of the limit should be left; a dashed line stands there. 0: none does"""


def check(groups: Sequence[Mapping[str, float]], marks: Sequence[tuple[Said, float]]) -> None:
    """Raises ValueError where there is no bar, or a bar or mark has no length."""
    values = list(itertools.chain.from_iterable(group.values() for group in groups))
    lengths = [*values, *(value for _, value in marks)]
    if not values or not all(0 <= value <= 1e300 for value in lengths):
        raise ValueError(
            f"bars and marks lie at finite values of 0 or more, and there is a bar; got {values}, "
            f"{marks}"
        )


def in_words(
    groups: Sequence[Mapping[str, float]], words: Mapping[str, str]
) -> list[dict[str, float]]:
    """The groups, their series "predicted" and "measured" named in a picture's own words."""
    own = {"predicted": words["predicted"].lower(), "measured": words["measured"]}
    renamed = []
    for group in groups:
        renamed.append({own.get(head, head): value for head, value in group.items()})
    return renamed


def written(group: Mapping[str, float], unit_format: Format) -> dict[str, str]:
    """A group's values as texts."""
    return {head: unit_format(value) for head, value in group.items()}


def _room_px(name: str) -> float:
    """What a name needs: an m or a w is wider than ``text_px`` says, and "momentum" has three."""
    return text_px(name) + 4 * sum(letter in "mwMW" for letter in name)


def drawn(
    names: list[str],
    groups: Sequence[Mapping[str, float]],
    texts: Sequence[Mapping[str, str]],
    bounds: Sequence[tuple[str, float]],
) -> tuple[list[Shape], float]:
    """A group of bars per name, then dashed lines at ``bounds``; and where all ends."""
    looks = _looks(groups)
    every = itertools.chain.from_iterable(line.values() for line in texts)
    left = 16 + min(280.0, max(map(_room_px, names)))
    room_px = WIDTH_PX - left - 14 - max(map(text_px, every))
    scale = room_px / _longest(groups, bounds)
    lines_px = [left + bound * scale for _, bound in bounds]
    thick = 16.0 if len(looks) > 1 else 22.0
    top = 60.0 + 14 * len(bounds)
    shapes: list[Shape] = []
    y = top + 4
    for name, group, line in zip(names, groups, texts, strict=True):
        middle = y + thick * len(group) / 2
        shapes.append(Words(left - 8, middle + 3, clipped(name, left - 9), "end"))
        for head, value in group.items():
            shapes.append(Box(left, y, value * scale, thick - 2, *looks[head]))
            if not value:  # its colour still says whose it is
                ends = ((left + 1.5, y), (left + 1.5, y + thick - 2))
                shapes.append(Line(ends, looks[head][0], width_px=3.0))
            x = _beyond(left + value * scale + 6, line[head], lines_px)
            shapes.append(Words(x, y + thick / 2 + 3, line[head]))
            y += thick
        y += 8
    return _framed(shapes, (left, top, y), scale, bounds, looks)


def stacked(
    names: list[str],
    groups: Sequence[Mapping[str, float]],
    texts: Sequence[Mapping[str, str]],
    bounds: Sequence[tuple[str, float]],
    sums: list[str],
) -> tuple[list[Shape], float]:
    """A bar per name whose parts lie behind one another, with its sum; and where all ends. A part's
    number is left out where it is the sum, and left to the table where a bound would cross it. A
    part that is 0 in all bars keeps its colour, as other pictures may show it: no key says it."""
    looks = _looks(groups)
    left = 10 + min(280.0, max(map(_room_px, names)))
    room_px = WIDTH_PX - left - 14 - max(map(text_px, sums))
    scale = room_px / _longest([{"": sum(group.values())} for group in groups], bounds)
    lines_px = [left + bound * scale for _, bound in bounds]
    top = 60.0 + 14 * len(bounds)
    shapes: list[Shape] = []
    not_zero: set[str] = set()
    y = top + 4
    for name, group, line, whole in zip(names, groups, texts, sums, strict=True):
        shapes.append(Words(left - 8, y + 14, clipped(name, left - 9), "end"))
        x = left
        for head, value in group.items():
            middle = x + value * scale / 2
            reach = text_px(line[head]) / 2 + 2
            is_free = all(abs(each - middle) > reach for each in lines_px)
            number = (line[head],) if is_free and line[head] != whole else ()
            shapes.append(Box(x, y, value * scale, 20, *looks[head], number))
            x += value * scale
            if value:
                not_zero.add(head)
        shapes.append(Words(_beyond(x + 6, whole, lines_px), y + 14, whole))
        y += 30
    shown = {head: look for head, look in looks.items() if head in not_zero}
    return _framed(shapes, (left, top, y), scale, bounds, shown or looks)


def _beyond(x: float, text: str, lines_px: Sequence[float]) -> float:
    """Where a number begins that would stand at x: behind the upright lines that would cross it."""
    for line in sorted(lines_px):
        if x - 2 < line < x + text_px(text) + 2:
            x = line + 5
    return x


def _looks(groups: Sequence[Mapping[str, float]]) -> dict[str, tuple[str, str]]:
    """Series -> its colour and hatch."""
    heads = dict.fromkeys(itertools.chain.from_iterable(groups))
    return {head: (CYCLE[i % 8][0], _HATCHES[i % 8]) for i, head in enumerate(heads)}


def _framed(
    shapes: list[Shape],
    edges_px: tuple[float, float, float],
    scale: float,
    bounds: Sequence[tuple[str, float]],
    looks: Mapping[str, tuple[str, str]],
) -> tuple[list[Shape], float]:
    """Bars with the line where they begin, dashed lines and a legend; and where all ends.
    ``edges_px``: left, top and bottom."""
    left, top, bottom = edges_px
    framed = [*shapes, Line(((left, top), (left, bottom)), width_px=1, opacity=0.6)]
    for number, (text, value) in enumerate(bounds):
        framed += _bound(text, left + value * scale, 62 + 14 * number, bottom)
    if "" in looks:
        return framed, bottom + 4
    keys = [((Box(0, -7, 22, 14, *look),), head) for head, look in looks.items()]
    more, end_px = legend(keys, left, bottom)
    return framed + more, end_px


def _longest(groups: Sequence[Mapping[str, float]], bounds: Sequence[tuple[str, float]]) -> float:
    """The largest of all values; 1 where all are 0."""
    values = itertools.chain.from_iterable(group.values() for group in groups)
    return max(*values, *(value for _, value in bounds), 0.0) or 1.0


def _bound(text: str, x: float, top: float, bottom: float) -> list[Shape]:
    """A dashed line with its words, on the side where there is room."""
    line = Line(((x, top), (x, bottom)), dash=(4, 3), width_px=1.2, opacity=0.8)
    if x > WIDTH_PX / 2:
        return [line, Words(x - 4, top + 8, text, "end", 11.5)]
    return [line, Words(x + 4, top + 8, text, "start", 11.5)]


@dataclass(frozen=True, kw_only=True)
class Meter:
    """How much has been sent, or how much time is gone, as a bar."""

    name: str
    """what it shows"""
    so_far: float
    """after the steps done"""
    total: float
    """after all of them"""
    bound: float
    """the least that any algorithm needs; 0 where none is known"""
    form: Callable[[float], str]
    """a number as text"""

    def reading(self) -> str:
        """So far, and in all."""
        return f"{self.form(self.so_far)} / {self.form(self.total)}"

    def shapes(self, y: float, words: dict[str, str]) -> list[Shape]:
        """Its name, its bar, the mark of the bound, and its reading."""
        most = max(self.total, self.bound) or 1.0
        bar_px = _METER_LONGEST_PX * self.total / most
        share = self.so_far / (self.total or 1.0)
        shapes = [
            Words(0, y + 13, self.name),
            Box(_METER_LEFT_PX, y, bar_px, 16, KINDS["wait"].colour, fill=share),
        ]
        text = self.reading()
        if self.bound:
            x = _METER_LEFT_PX + _METER_LONGEST_PX * self.bound / most
            shapes.append(Line(((x, y - 4), (x, y + 20)), dash=(3, 2), width_px=1.4))
            text += f"{words['comma']}{words['bound']} {self.form(self.bound)}"
        return [*shapes, Words(_METER_LEFT_PX + _METER_LONGEST_PX + 12, y + 13, text)]


def has(bars: Sequence[Bar], part: str) -> bool:
    """Whether some bar has some of a part."""
    return any(bar.parts.get(part) for bar in bars)


def dashed(x: float, top: float, end: float) -> Line:
    """An upright dashed line."""
    return Line(((x, top), (x, end)), width_px=1.4, dash=(3, 3))


def pieces(
    bar: Bar,
    looks: Mapping[str, tuple[str, str]],
    form: Callable[[float], str],
    left: float,
    y: float,
    scale: float,
) -> list[Shape]:
    """The parts of a bar; a frame around what is over its limit, and the line there."""
    shapes: list[Shape] = []
    is_thick = bar.thick_px == BAR_PX
    line = left + bar.limit * scale
    x = left
    for part, look in looks.items():
        if amount := bar.parts.get(part):
            wide = amount * scale
            main = line - x if x < line < x + wide else wide
            is_free = abs(x + main / 2 - line) > _TEXT_PX
            texts = (form(amount),) if is_thick and is_free else ()
            shapes.append(Box(x, y, main, bar.thick_px, *look, texts))
            if main < wide:  # cut by the line, or the number would seem to be what is too much
                shapes.append(Box(line, y, wide - main, bar.thick_px, *look))
            x += wide
    if not bar.limit:
        return shapes
    if x > line:
        shapes.append(Box(line, y, x - line, bar.thick_px, marked=True))
    for top, end in _beside(y, bar.thick_px, x > line):
        shapes.append(Line(((line, top), (line, end)), width_px=1.6, opacity=0.9))
    at = line - bar.spare * scale
    is_said = any(box.says_at(at) for box in shapes if isinstance(box, Box))
    for top, end in _beside(y, bar.thick_px, is_said) if bar.spare else ():
        shapes.append(dashed(at, top, end))
    return shapes


def _beside(y: float, thick_px: float, is_covered: bool) -> list[tuple[float, float]]:
    """From where to where an upright line goes beside a bar; through numbers it does not."""
    if thick_px != BAR_PX:
        return [(y - 2, y + thick_px + 2)]
    return [(y - 6, y + 5), (y + 19, y + 30)] if is_covered else [(y - 6, y + 30)]


def told(bar: Bar, y: float) -> list[Shape]:
    """What stands right of a bar."""
    if len(bar.told) == 1:
        return [Words(WIDTH_PX - 2, y + bar.thick_px / 2 + 4, bar.told[0], "end", 11)]
    first, second = bar.told
    return [
        Words(WIDTH_PX - 2, y + 9, first, "end", bold=True),
        Words(WIDTH_PX - 2, y + 23, second, "end", 11, opacity=0.85),
    ]
