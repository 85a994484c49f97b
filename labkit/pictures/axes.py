"""An axis of numbers: where values lie, round numbers along it, linear or logarithmic."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.pictures.sketch import short, ticks

Format = Callable[[float], str]
"""makes a number text"""


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
    told = tuple((value, short(form(value))) for value in round_values.tolist())
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
