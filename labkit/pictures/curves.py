"""Curves and bars as sketches: dots were measured (or recorded), lines predicted; axes name units,
bars values.

Not matplotlib's own SVG: its colours and outlined letters neither follow a dark page nor can be
read aloud or searched, and a chart has to become text and a table as every other picture does.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from labkit.pictures import bar_groups
from labkit.pictures.axes import (
    Axis,
    Format,
    Mark,
    Series,
    across,
    axis,
    check_series,
    grid,
    series_table,
    spoken_series,
)
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import (
    Line,
    Numbers,
    Said,
    Shape,
    Sketch,
    Words,
    legend,
    moved,
    origin,
    said,
)
from labkit.pictures.style import CYCLE, text_px
from labkit.words import sentence, speaking, spoken_in

Key = tuple[tuple[Shape, ...], str]
"""a sample and its words"""
_MARKS = "os^Dv><p"
_DASHES = (
    (),
    (7.0, 3.0),
    (2.0, 2.5),
    (9.0, 3.0, 2.0, 3.0),
    (16.0, 4.0),
    (5.0, 7.0),
    (1.0, 6.0),
    (9.0, 3.0, 2.0, 3.0, 2.0, 3.0),
)
_TOP_PX = 84.0
_MOST_DOTS = 40
"""more of them would hide the line that joins them"""
_MANY_DOTS = 200
"""more of them lie on each other"""
_WIDEST_NAME_PX = 240
_LINE_PX = 13
"""names closer than this would collide"""


def plain(number: float) -> str:
    """A number as an axis has it where no unit is given."""
    return f"{number + 0.0:.5g}"


def curves(
    series: Sequence[Series],
    *,
    title: Said,
    badge: str,
    x_name: Said = "",
    y_name: Said = "",
    x_format: Format = plain,
    y_format: Format = plain,
    log_x: bool = False,
    log_y: bool = False,
    numbers: Numbers = (),
    marks: Sequence[Mark] = (),
    height_px: float = 280,
    language: str | None = None,
) -> Sketch:
    """Lines and dots over one pair of axes; each is named at its right end, or in a legend where
    names would collide.

    ``x_format`` and ``y_format`` make a number text, e.g. ``units.format_bytes``; ``badge`` says
    where the numbers come from ("measured, gloo / simulated"). A linear axis begins at 0 unless its
    numbers are far from it; ``marks`` lie within the axes. Raises ValueError for no points, x and y
    of unlike lengths, numbers that are not finite, or not above 0 on a logarithmic axis.
    """
    if not series:
        raise ValueError(f"curves are one series or more; got {series}")
    for each in (*series, *map(_as_series, marks)):
        check_series(each, log_x, log_y)
    bottom = _TOP_PX + height_px

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        names = [said(each.name, code) for each in series]
        columns = [(mark.value,) for mark in marks if not mark.upright]
        y_axis = axis([*columns, *(each.y for each in series)], y_format, log_y, bottom, _TOP_PX)
        bounds = [mark._replace(words=said(mark.words, code)) for mark in marks]
        shapes, keys = _plot(series, names, bounds, y_axis, x_format, log_x)
        keys += _kinds(series, names, badge, words)
        shapes += _axis_names(said(x_name, code), said(y_name, code), bottom)
        more, end_px = legend(keys, 60, bottom + 44)
        spoken = [*spoken_series(series, names, y_format), *_told(bounds, x_format, y_format)]
        table = series_table(series, names, x_format, y_format, said(x_name, code))
        return _sketch(shapes + more, end_px, title, badge, numbers, spoken, table, words)

    return speaking(spoken_in(language), build)


def _axis_names(x_name: str, y_name: str, bottom: float) -> list[Words]:
    return [
        Words(0, _TOP_PX - 14, y_name, opacity=0.8),
        Words(WIDTH_PX / 2, bottom + 36, x_name, "middle", opacity=0.8),
    ]


def _told(marks: Sequence[Mark], x_format: Format, y_format: Format) -> list[str]:
    """Where each mark lies."""
    formats = [x_format if mark.upright else y_format for mark in marks]
    pairs = zip(marks, formats, strict=True)
    return [f"{mark.words} {write(mark.value)}" for mark, write in pairs]


def _kinds(
    series: Sequence[Series], names: list[str], badge: str, words: dict[str, str]
) -> list[Key]:
    """What dots and lines mean, where there are both and dots are not predicted as well: dots by
    the first mark that they have."""
    if len({each.points for each in series}) < 2 or badge == "predicted":
        return []
    begun = badge.partition(" ")[0]
    dots = begun if begun in ("recorded", "published") else "measured"
    first = next(name for each, name in zip(series, names, strict=True) if each.points)
    mark = _MARKS[list(dict.fromkeys(names)).index(first) % 8]
    found = [((_sample(mark=mark),), words[dots]), ((_sample(),), words["predicted"].lower())]
    if any(each.hollow for each in series):
        found.append(((_sample(mark=mark)._replace(hollow=True),), words["fitted"]))
    return found


def _as_series(mark: Mark) -> Series:
    """A mark as the point that ``_check`` looks at; 1 has a place on every axis."""
    x, y = (mark.value, 1.0) if mark.upright else (1.0, mark.value)
    return Series(mark.words, [x], [y])


def _sketch(
    shapes: list[Shape],
    end_px: float,
    title: Said,
    badge: str,
    numbers: Numbers,
    spoken: Iterable[str],
    table: Iterable[tuple[str, ...]],
    words: dict[str, str],
) -> Sketch:
    """What curves and bars have in common; without numbers in the title all moves up."""
    up = 0 if numbers else -20
    badges = origin(badge, {**words, "predicted": words["predicted"].lower()})
    return Sketch(
        shapes=tuple(moved(shape, 0, up) for shape in shapes),
        height_px=end_px + up,
        badge=badges,
        heading=said(title, words["code"]),
        numbers=tuple(numbers),
        table=tuple(table),
        summary=sentence("", [("; ".join(spoken),)], badges, words["code"]),
        language=words["code"],
    )


def _plot(
    series: Sequence[Series],
    names: list[str],
    marks: Sequence[Mark],
    y_axis: Axis,
    x_format: Format,
    log_x: bool,
) -> tuple[list[Shape], list[Key]]:
    """Axes, lines and their names; and the legend's entries, where the names have no room."""
    columns = [each.x for each in series]
    columns += [(mark.value,) for mark in marks if mark.upright]
    left = 12 + max(28, *(text_px(text, 11) for _, text in y_axis.ticks))
    wide = 36 + max(map(text_px, names))
    beside = axis(columns, x_format, log_x, left, WIDTH_PX - wide)
    lines = _lines(series, names, beside, y_axis)
    ends = _ends(names, lines)
    if wide < _WIDEST_NAME_PX and _have_room(ends, beside, y_axis):
        drawn = [*grid(beside, y_axis), *across(marks, beside, y_axis)]
        return [*drawn, *_joined(series, lines), *lines, *_names(ends, y_axis)], []
    whole = axis(columns, x_format, log_x, left, WIDTH_PX - 30.0)
    lines = _lines(series, names, whole, y_axis)
    drawn = [*grid(whole, y_axis), *across(marks, whole, y_axis)]
    return [*drawn, *_joined(series, lines), *lines], _keys(names, lines)


def _joined(series: Sequence[Series], lines: Sequence[Line]) -> list[Line]:
    """What leads from dot to dot."""
    pairs = zip(series, lines, strict=True)
    dotted = [line for each, line in pairs if each.joined and line.mark]
    return [line._replace(mark="", width_px=1.2, opacity=0.5) for line in dotted]


def _lines(series: Sequence[Series], names: list[str], x_axis: Axis, y_axis: Axis) -> list[Line]:
    """Each series; those of one name share colour, dash and mark."""
    order = list(dict.fromkeys(names))
    crowded = any(each.points and len(each.x) > _MOST_DOTS for each in series)
    lines = []
    for each, name in zip(series, names, strict=True):
        number = order.index(name) % 8
        points = tuple(zip(x_axis.px(each.x), y_axis.px(each.y), strict=True))
        dotted = each.points and not (each.joined and len(each.x) > _MOST_DOTS)
        mark = _MARKS[number] if dotted else ""
        dash = () if dotted else _DASHES[number]
        line = Line(points, CYCLE[number][0], dash=dash, mark=mark)
        lines.append(_seen(line, crowded)._replace(hollow=each.hollow and bool(mark)))
    return lines


def _seen(line: Line, crowded: bool) -> Line:
    """Beside a cloud of dots: its own dots small and pale, what is alone large."""
    if not crowded or not line.mark:
        return line
    if len(line.points_px) > _MANY_DOTS:
        return line._replace(width_px=0.9, opacity=0.7)
    if len(line.points_px) > _MOST_DOTS:
        return line._replace(width_px=1.2, opacity=0.6)
    return line._replace(width_px=2.6) if len(line.points_px) == 1 else line


def _ends(names: list[str], lines: list[Line]) -> dict[str, tuple[float, float]]:
    """Name -> the rightmost of its points."""
    ends: dict[str, tuple[float, float]] = {}
    for name, line in zip(names, lines, strict=True):
        last = max(line.points_px)
        ends[name] = max(ends.get(name, last), last)
    return ends


def _have_room(ends: dict[str, tuple[float, float]], x_axis: Axis, y_axis: Axis) -> bool:
    """Whether names can stand at the ends of their lines: all far right, and apart."""
    heights = sorted(_above(y, y_axis) for _, y in ends.values())
    apart = np.diff(heights).min(initial=99)
    return apart > _LINE_PX and min(x for x, _ in ends.values()) > 0.9 * x_axis.end_px


def _names(ends: dict[str, tuple[float, float]], y_axis: Axis) -> list[Words]:
    return [Words(x + 9, _above(y, y_axis) + 4, name) for name, (x, y) in ends.items()]


def _above(y: float, y_axis: Axis) -> float:
    """A name stands above the axis, not on it."""
    return min(y, y_axis.start_px - 8)


def _keys(names: list[str], lines: list[Line]) -> list[Key]:
    """Each name with its line, its dots, or both."""
    samples: dict[str, tuple[Line, ...]] = {name: () for name in names}
    for name, line in zip(names, lines, strict=True):
        if not (line.hollow and samples[name]):
            samples[name] += (_sample(line.colour, line.dash, line.mark),)
    return [(sample, name) for name, sample in samples.items()]


def _sample(colour: str = "", dash: tuple[float, ...] = (), mark: str = "") -> Line:
    points = ((11, 0),) if mark else ((0, 0), (22, 0))
    return Line(points, colour, dash=dash, mark=mark)


def bars(
    rows: Sequence[tuple[Said, float | Mapping[str, float]]],
    *,
    title: Said,
    badge: str,
    unit_format: Format = plain,
    numbers: Numbers = (),
    marks: Sequence[tuple[Said, float]] = (),
    stacked: bool = False,
    language: str | None = None,
) -> Sketch:
    """Horizontal bars from 0, each with its value: rows of (name, value), or of (name, {series:
    value}).

    ``stacked`` puts the series of a row behind one another; what is written is their sum, and in a
    part what fits. Series called "predicted" and "measured" are named in the picture's language.
    ``marks`` are dashed lines at (words, value): a bound, a formula. Raises ValueError for no rows,
    or a value that is not finite or below 0.
    """
    given = [value if isinstance(value, Mapping) else {"": value} for _, value in rows]
    bar_groups.check(given, marks)
    sums = [unit_format(sum(group.values())) for group in given]

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        groups = bar_groups.in_words(given, words)
        heads = list(dict.fromkeys(itertools.chain.from_iterable(groups)))
        written = [bar_groups.written(group, unit_format) for group in groups]
        names = [said(name, code) for name, _ in rows]
        bounds = [(f"{said(text, code)} {unit_format(value)}", value) for text, value in marks]
        drawn = partial(bar_groups.stacked, sums=sums) if stacked else bar_groups.drawn
        shapes, end_px = drawn(names, groups, written, bounds)
        table = [("", *heads)]
        for name, texts in zip(names, written, strict=True):
            table.append((name, *(texts.get(head, "") for head in heads)))
        spoken = [
            f"{name} {' / '.join(texts.values())}"
            for name, texts in zip(names, written, strict=True)
        ]
        return _sketch(shapes, end_px, title, badge, numbers, spoken, table, words)

    return speaking(spoken_in(language), build)
