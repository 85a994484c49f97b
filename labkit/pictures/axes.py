"""An axis of numbers: where values lie, round numbers along it, linear or logarithmic; and what
lies across a pair of them: the grid, marks, and series of points, also as text and as a table."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.pictures.sketch import Line, Said, Shape, Words, short, ticks

Format = Callable[[float], str]
"""makes a number text"""
_MOST_ROWS = 60
"""of a table"""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of numbers along a line of pixels."""

    low: float
    """the number at ``start_px``"""
    high: float
    """the number at ``end_px``"""
    log: bool
    """whether equal distances are equal factors"""
    start_px: float
    """where it begins"""
    end_px: float
    """where it ends; above its beginning for an upright one"""
    ticks: tuple[tuple[float, str], ...] = ()
    """(number, text) of its round numbers"""

    def px(self, values: Sequence[float]) -> list[float]:
        """Where values lie."""
        grown = np.log10 if self.log else np.asarray
        low = grown(self.low)
        share = (grown(np.asarray(values, dtype=float)) - low) / (grown(self.high) - low)
        return (self.start_px + share * (self.end_px - self.start_px)).tolist()

    def marks(self) -> list[tuple[float, str]]:
        """(place, text) of each tick."""
        places = self.px([value for value, _ in self.ticks])
        return [(at, text) for at, (_, text) in zip(places, self.ticks, strict=True)]


def axis(
    columns: Sequence[Sequence[float]], form: Format, log: bool, start_px: float, end_px: float
) -> Axis:
    """An axis with room for all numbers of some columns; of whole numbers, its ticks are whole. A
    lying logarithmic one of few numbers has its ticks at them, so that each can be read."""
    low = min(float(min(column)) for column in columns)
    high = max(float(max(column)) for column in columns)
    low, high = _widened_log(low, high) if log else _widened(low, high)
    round_values = ticks(low, high, 8 if end_px > start_px else 6, log)
    places = np.unique([float(value) for value in itertools.chain.from_iterable(columns)])
    if log and end_px > start_px and _are_few_and_apart(places):
        round_values = places
    elif np.all(places % 1 == 0):
        round_values = round_values[round_values % 1 == 0]
    told = tuple((value, short(form(value)) if value else "0") for value in round_values.tolist())
    return Axis(low=low, high=high, log=log, start_px=start_px, end_px=end_px, ticks=told)


def _are_few_and_apart(places: np.ndarray) -> bool:
    """Three to ten numbers, the ratios of neighbours the same: 1, 2, 4, 8."""
    if not 3 <= len(places) <= 10:
        return False
    steps = np.diff(np.log(places))
    return bool(np.allclose(steps, steps[0]))


def _widened_log(low: float, high: float) -> tuple[float, float]:
    """Some room at both ends."""
    room = max(1.08, (high / low) ** 0.04)
    return low / room, high * room


def _widened(low: float, high: float) -> tuple[float, float]:
    """From 0 unless all numbers are far from it; some room at the other end, or at both."""
    if 0 <= low <= 0.6 * high:
        low = 0.0
    room = 0.04 * (high - low) or abs(high) or 1.0
    return low and low - room, high + room


class Mark(NamedTuple):
    """A dashed line across a picture, with its words: a bound, a place to look at."""

    words: Said
    """what lies there"""
    value: float
    """where on its axis"""
    upright: bool = False
    """True: at an x; False: at a y"""
    low: bool = False
    """of an upright one: whether its words stand at the bottom"""


def across(marks: Sequence[Mark], x_axis: Axis, y_axis: Axis) -> list[Shape]:
    """Dashed lines through marks, in one language, with their words."""
    left, right = x_axis.start_px, x_axis.end_px
    bottom, top = y_axis.start_px, y_axis.end_px
    shapes: list[Shape] = []
    for mark in marks:
        height = bottom - 6 if mark.low else top + 10
        at = (x_axis if mark.upright else y_axis).px([mark.value])[0]
        way = ((at, bottom), (at, top)) if mark.upright else ((left, at), (right, at))
        shapes.append(Line(way, dash=(4, 3), width_px=1.2, opacity=0.8))
        if not mark.upright:
            shapes.append(Words(left + 6, at - 5, mark.words, "start", 11.5))
        elif at > (left + right) / 2:  # words go where there is room
            shapes.append(Words(at - 5, height, mark.words, "end", 11.5))
        else:
            shapes.append(Words(at + 5, height, mark.words, "start", 11.5))
    return shapes


def grid(x_axis: Axis, y_axis: Axis) -> list[Shape]:
    """Pale lines at round numbers, with their texts, and the lower axis."""
    left, right = x_axis.start_px, x_axis.end_px
    bottom, top = y_axis.start_px, y_axis.end_px
    shapes: list[Shape] = []
    for at, text in x_axis.marks():
        shapes.append(Line(((at, bottom), (at, top)), width_px=1, opacity=0.13))
        shapes.append(Words(at, bottom + 16, text, "middle", 11))
    for at, text in y_axis.marks():
        shapes.append(Line(((left, at), (right, at)), width_px=1, opacity=0.13))
        shapes.append(Words(left - 7, at + 4, text, "end", 11))
    return [*shapes, Line(((left, bottom), (right, bottom)), width_px=1, opacity=0.5)]


class Series(NamedTuple):
    """Points (x, y) of one thing. Series of one name share a colour: its line and its dots."""

    name: Said
    """what stands at its right end, or in the legend"""
    x: Sequence[float]
    """where"""
    y: Sequence[float]
    """what; as many as x"""
    points: bool = False
    """True: dots (measured); False: a line (predicted, where the picture has dots as well)"""
    joined: bool = False
    """whether a pale line leads from dot to dot; of very many the line alone is drawn"""
    hollow: bool = False
    """whether the dots are hollow: a fit saw these"""


def check_series(each: Series, log_x: bool = False, log_y: bool = False) -> None:
    """Raises ValueError for a series that has no place on the axes: no points, x and y of unlike
    lengths, numbers that are not finite, or not above 0 on a logarithmic axis."""
    fine = len(each.x) == len(each.y) > 0
    for values, log in ((each.x, log_x), (each.y, log_y)):
        if fine:
            column = np.array(values, dtype=float)
            fine = np.isfinite(column).all() and not (log and column.min() <= 0)
    if not fine:
        raise ValueError(
            "a series has points, as many x as y, all finite, above 0 where the axis is "
            f"logarithmic; {each.name!r} has x {each.x} and y {each.y}"
        )


def spoken_series(series: Sequence[Series], names: list[str], y_format: Format) -> list[str]:
    """Where each series begins and ends, as one text for each."""
    ends = [f"{y_format(each.y[0])} → {y_format(each.y[-1])}" for each in series]
    return [f"{name} {end}" for name, end in zip(names, ends, strict=True)]


def series_table(
    series: Sequence[Series], names: list[str], x_format: Format, y_format: Format, x_name: str
) -> list[tuple[str, ...]]:
    """A row per x, or every so many: the heads, then texts."""
    columns = [_by_x(each, y_format) for each in series]
    places = sorted(set().union(*columns))
    heads = [f"{name} {_sign(each)}" for name, each in zip(names, series, strict=True)]
    rows = [(x_name, *heads)]
    for x in places[:: -(-len(places) // _MOST_ROWS)]:
        rows.append((x_format(x), *(" / ".join(column.get(x, ())) for column in columns)))
    return rows


def _sign(each: Series) -> str:
    """How a series is drawn, as a letter."""
    if each.hollow:
        return "○"
    return "●" if each.points else "—"


def _by_x(each: Series, y_format: Format) -> dict[float, list[str]]:
    """The texts of a series' values, by their x."""
    texts: dict[float, list[str]] = {}
    for x, y in zip(each.x, each.y, strict=True):
        texts.setdefault(float(x), []).append(y_format(y))
    return texts
