"""A bar that says how much of something is done: bytes sent, time gone."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.pictures.sketch import Box, Line, Shape, Words
from labkit.pictures.style import KINDS

_LEFT_PX = 190.0  # where the bar begins
_LONGEST_PX = 430.0


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
        bar_px = _LONGEST_PX * self.total / most
        share = self.so_far / (self.total or 1.0)
        shapes = [
            Words(0, y + 13, self.name),
            Box(_LEFT_PX, y, bar_px, 16, KINDS["wait"].colour, fill=share),
        ]
        text = self.reading()
        if self.bound:
            x = _LEFT_PX + _LONGEST_PX * self.bound / most
            shapes.append(Line(((x, y - 4), (x, y + 20)), dash=(3, 2), width_px=1.4))
            text += f"{words['comma']}{words['bound']} {self.form(self.bound)}"
        return [*shapes, Words(_LEFT_PX + _LONGEST_PX + 12, y + 13, text)]
