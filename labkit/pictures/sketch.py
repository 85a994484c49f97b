"""A drawing that is not a timeline: boxes, lines and words at places of a picture WIDTH_PX wide.
``svg``, ``mpl`` and ``text`` paint it as they paint a Scene.

Boxes lie lowest, then lines, then words; among themselves in the order given. Lengths are pixels, y
grows downwards.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from reprlib import repr as brief
from typing import NamedTuple

import numpy as np

from labkit.pictures.drawing import WIDTH_PX, Picture
from labkit.pictures.style import CYCLE, text_px
from labkit.units import check_real, check_whole

_NOTE = re.compile(r"[^,/\s]+( [^,/\s]+)*")
"""one part of a badge: words between commas and slashes"""


class Box(NamedTuple):
    """A rectangle with a thin edge, and words in its middle where they fit."""

    x_px: float
    """its left edge"""
    y_px: float
    """its upper edge"""
    width_px: float
    """how wide"""
    height_px: float
    """how high"""
    colour: str = ""
    """"#rrggbb" that bears dark ink; "" is an edge only, in the text's colour"""
    hatch: str = ""
    """a hatch of ``style``, or "" for plain"""
    texts: tuple[str, ...] = ()
    """what may stand in it, the longest first"""
    fill: float = 1.0
    """how much of it, from the left, has the full colour; the rest is pale"""
    marked: bool = False
    """has a thick edge"""

    def says_at(self, x_px: float) -> bool:
        """Whether its words, in its middle, lie at x: an upright line there would cross them."""
        middle = self.x_px + self.width_px / 2
        return any(abs(x_px - middle) <= text_px(text, 11) / 2 + 3 for text in self.texts)


class Line(NamedTuple):
    """A line through points, or a mark at each of them."""

    points_px: Sequence[tuple[float, float]]
    """(x, y) of each"""
    colour: str = ""
    """"#rrggbb", or "" for the text's colour"""
    width_px: float = 1.8
    """how thick"""
    dash: tuple[float, ...] = ()
    """lengths of strokes and gaps; () is solid"""
    arrow: bool = False
    """ends in an arrow head"""
    mark: str = ""
    """"o", "s", "^", "D", "v", ">", "<" or "p": marks at the points, and no line"""
    hollow: bool = False
    """whether marks are outlines"""
    opacity: float = 1.0
    """1 is solid"""


class Words(NamedTuple):
    """One line of text."""

    x_px: float
    """where ``anchor`` says"""
    y_px: float
    """its baseline"""
    text: str
    """what it says"""
    anchor: str = "start"
    """"start", "middle" or "end": which part of it lies at x_px"""
    size_px: float = 12.0
    """height of its letters, 11 or more"""
    bold: bool = False
    """stands out"""
    opacity: float = 1.0
    """1 is solid"""


Shape = Box | Line | Words
Numbers = Sequence[tuple[str, str]]
Said = str | dict[str, str]
"""words, or {"en": words, "zh": the same in Chinese}"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sketch(Picture):
    """A picture of shapes."""

    shapes: tuple[Shape, ...]
    """what is drawn, below y = 48"""
    height_px: float
    """the height of the whole picture"""

    def only(self, kind: type) -> list:
        """Its boxes, lines or words."""
        return [shape for shape in self.shapes if isinstance(shape, kind)]


def moved(shape: Shape, x_px: float, y_px: float) -> Shape:
    """The same shape further to the right and further down."""
    if isinstance(shape, Line):
        return shape._replace(points_px=tuple((x + x_px, y + y_px) for x, y in shape.points_px))
    return shape._replace(x_px=shape.x_px + x_px, y_px=shape.y_px + y_px)


def legend(
    samples: Iterable[tuple[Sequence[Shape], str]], x_px: float, y_px: float
) -> tuple[list[Shape], float]:
    """What looks mean: samples (drawn 22 pixels wide around y = 0) and their words, in lines from
    (x_px, y_px) on.

    Also returns where the next thing may begin.
    """
    shapes: list[Shape] = []
    x = x_px
    y = y_px + 8
    for sample, words in samples:
        indent = 28 if sample else 0
        room = text_px(words) + indent
        if x > x_px and x + room > WIDTH_PX:
            x = x_px
            y += 22
        shapes += [moved(shape, x, y) for shape in sample]
        shapes.append(Words(x + indent, y + 4, words))
        x += room + 20
    return shapes, y + 14


def said(words: Said, language: str) -> str:
    """The words of a language."""
    if isinstance(words, str):
        return words
    if language not in words:
        raise ValueError(
            f"words are a text, or one for each language, {language!r} among them; got "
            f"{brief(words)}"
        )
    return words[language]


def origin(badge: str, words: dict[str, str]) -> str:
    """A badge ("measured, paced / simulated") in the language of ``words``."""
    known = dict(words)
    spoken = _NOTE.sub(lambda note: known.get(note[0], note[0]), badge)
    return spoken.replace(", ", known.get("comma", ", "))


def striped(
    x_px: float, y_px: float, width_px: float, height_px: float, ranks: Sequence[int]
) -> list[Box]:
    """A box in upright stripes, one in the colour of each rank, from left to right. Raises
    ValueError for no ranks, and for a place or size that can't be."""
    check_whole(1, 100, **{"number of ranks": len(ranks)})
    check_real(-1e6, 1e6, x_px=x_px, y_px=y_px)
    check_real(0.0, 1e6, width_px=width_px, height_px=height_px)
    stripe_px = width_px / len(ranks)
    return [
        Box(x_px + stripe_px * place, y_px, stripe_px, height_px, CYCLE[rank % len(CYCLE)][0])
        for place, rank in enumerate(ranks)
    ]


def ticks(low: float, high: float, most: int = 8, log: bool = False) -> np.ndarray:
    """Round numbers from low to high, at most ``most``: 1, 2 or 5 times powers of ten; powers of
    ten where ``log``."""
    check_whole(1, 100, most=most)
    check_real(1e-300 if log else -1e300, 1e300, low=low, high=high)
    if not low < high:
        raise ValueError(
            f"an axis goes from a low number to a higher one; got {float(low)} and {float(high)}"
        )
    found = _decades(float(low), float(high), most) if log else None
    return _round_numbers(float(low), float(high), most) if found is None else found


def _decades(low: float, high: float, most: int) -> np.ndarray | None:
    """1, 2 and 5 times powers of ten, or fewer of those; more of them where there are under four;
    None where there is hardly one."""
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)

    def times(*digits: int) -> np.ndarray:
        found = np.outer(powers, digits).ravel()
        return found[(found >= 0.999 * low) & (found <= 1.001 * high)]

    kinds = [(1, 2, 5), (1,)]
    if 2 <= len(times(1, 2, 5)) < 4:
        kinds = [(1, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), *kinds]
    for digits in kinds:
        found = times(*digits)
        if 2 <= len(found) <= most:
            return found
    return found[:: -(-len(found) // most)] if len(found) > most else None


def _round_numbers(low: float, high: float, most: int) -> np.ndarray:
    """Multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / most
    power = 10.0 ** np.floor(np.log10(raw))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= 0.999 * raw)
    first = np.ceil(low / step - 1e-9)
    last = np.floor(high / step + 1e-9)
    return step * np.arange(first, last + 1) + 0.0  # no -0


def short(text: str) -> str:
    """A number with its unit as an axis has it: "1.50 kB" is "1.5 kB", "10.0 ms" is "10 ms"."""
    return re.sub(r"\.0+(?=\D|$)|(\.\d*?[1-9])0+(?=\D|$)", r"\1", text)
