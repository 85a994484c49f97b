"""``curves`` and ``bars``: numbers that a cell has gathered, as a picture that shows itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from reprlib import repr as brief
from typing import Any

from labkit.pictures import curves as drawing
from labkit.pictures.axes import Mark
from labkit.pictures.sketch import Sketch
from labkit.shown import Said, Shown
from labkit.units import UNITS, check_word, format_number

Line = Mapping[float, float]
"""x -> y"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plot(Shown):
    """Curves or bars. At the end of a cell it is drawn there."""

    draw: Any
    """what makes the drawing, in the language it is given"""
    title: Said = ""
    """its heading"""
    numbers: dict[str, Any] = field(default_factory=dict)
    """what is drawn, by name"""

    def _picture(self, language: str) -> Sketch:
        return self.draw(language=language)

    def __repr__(self) -> str:
        return f"Plot({brief(self.title)}, {', '.join(map(str, self.numbers))})"


def curves(
    *,
    measured: Mapping[str, Line] | None = None,
    fitted: Mapping[str, Line] | None = None,
    predicted: Mapping[str, Line] | None = None,
    x: Said = "",
    y: Said = "",
    unit: str = "",
    x_unit: str = "",
    title: Said = "",
    badge: str = "",
    log_x: bool = False,
    log_y: bool = False,
    joined: bool = False,
    marks: Mapping[str, float] | None = None,
    at: Mapping[str, float] | None = None,
) -> Plot:
    """Dots that were measured and lines that were predicted: {name: {x: y}}, a colour per name.
    ``fitted`` are measured too; the prediction was fitted to them, so their dots are hollow.

    ``x`` and ``y`` name the axes; their units ``x_unit`` and ``unit`` are keys of ``units.UNITS``
    ("bytes", "ms"). ``badge`` says where the numbers come from, if not just "measured" or
    "predicted". ``joined`` leads a pale line from dot to dot. Dashed lines: ``marks`` across,
    {words: y}, a bound; ``at`` upright, {words: x}. Raises ValueError where nothing can be drawn.
    """
    series = _series(predicted) + _series(measured, points=True, joined=joined)
    series += _series(fitted, points=True, joined=joined, hollow=True)
    kinds = (("measured", measured or fitted), ("predicted", predicted))
    both = [word for word, given in kinds if given]
    drawn = partial(
        drawing.curves,
        series,
        title=title,
        badge=badge or " / ".join(both),
        x_name=x,
        y_name=y,
        x_format=_format(x_unit),
        y_format=_format(unit),
        log_x=log_x,
        log_y=log_y,
        marks=_marks(marks, False) + _marks(at, True),
    )
    drawn()  # what is wrong is said here, not when it is shown
    numbers = (predicted or {}) | (fitted or {}) | (measured or {})
    return Plot(draw=drawn, title=title, numbers=numbers)


def bars(
    rows: Mapping[str, float | Mapping[str, float]],
    *,
    unit: str = "",
    title: Said = "",
    badge: str = "measured",
    marks: Mapping[str, float] | None = None,
    stacked: bool = False,
) -> Plot:
    """Horizontal bars from 0, each with its value: {name: value} or {name: {series: value}}.

    ``stacked`` puts a row's series behind one another, and writes their sum. ``marks`` are dashed
    lines: {words: value}, a bound or a formula. ``unit`` is a key of ``units.UNITS``; without
    one a value has three digits. ``badge`` says where the numbers come from. Raises ValueError for
    no rows, or a value that is not finite or below 0.
    """
    named = _named(rows, "bars")
    drawn = partial(
        drawing.bars,
        list(named.items()),
        title=title,
        badge=badge,
        unit_format=_format(unit) if unit else format_number,
        marks=list(_named(marks, "marks").items()),
        stacked=stacked,
    )
    drawn()
    return Plot(draw=drawn, title=title, numbers=dict(named))


def _named(given: Mapping | Sequence | None, what: str) -> Mapping:
    """Names and what they stand for; raises ValueError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{what} are a dict from names to numbers; got {brief(given)}")
    return given


def _series(given: Mapping[str, Line] | None, **look: bool) -> list[drawing.Series]:
    """What is to be drawn, by its name, with one look. Raises ValueError for what is no {x: y}."""
    found = []
    for name, line in _named(given, "curves").items():
        if not isinstance(line, Mapping):
            raise ValueError(f"a curve is a dict from x to y; {name!r} is {brief(line)}")
        found.append(drawing.Series(name, list(line.keys()), list(line.values()), **look))
    return found


def _marks(given: Mapping[str, float] | None, upright: bool) -> list[Mark]:
    """Dashed lines, by their words."""
    return [Mark(words, value, upright) for words, value in _named(given, "marks").items()]


def _format(unit: str) -> drawing.Format:
    """How a value is written."""
    if unit:
        check_word(unit, UNITS, "a unit")
        return partial(format_number, unit=unit)
    return drawing.plain
