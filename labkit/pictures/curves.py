"""Curves and bars as sketches: dots were measured (or recorded), lines predicted; axes name units,
bars values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import (
    Box,
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
    short,
    ticks,
)
from labkit.pictures.style import CYCLE, clipped, text_px
from labkit.words import sentence, speaking

Format = Callable[[float], str]
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
_HATCHES = ("", "/", "x", "-", "\\", "|", "+", ".")
_TOP_PX, _MOST_ROWS = 84.0, 60


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
    height_px: float = 280,
    language: str = "en",
) -> Sketch:
    """Lines and dots over one pair of axes; each is named at its right end, or in a legend where
    names would collide.

    ``x_format`` and ``y_format`` make a number text, e.g. ``units.format_bytes``; ``badge`` says
    where the numbers come from ("measured, gloo / simulated"). A linear axis begins at 0 unless its
    numbers are far from it. Raises ValueError for no points, x and y of unlike lengths, numbers
    that are not finite, or not above 0 on a logarithmic axis.
    """
    if not series:
        raise ValueError(f"curves are one series or more; got {series}")
    for each in series:
        table = (
            np.array([each.x, each.y], dtype=float)
            if len(each.x) == len(each.y)
            else np.array([np.nan])
        )
        if not (
            table.size
            and np.isfinite(table).all()
            and (table[[bool(log_x), bool(log_y)]] > 0).all()
        ):
            raise ValueError(
                "a series has points, as many x as y, all finite, above 0 where the axis is "
                "logarithmic; "
                f"{each.name!r} has x {each.x} and y {each.y}"
            )

    def build(words: dict[str, str]) -> Sketch:
        names, bottom = [said(each.name, words["code"]) for each in series], _TOP_PX + height_px
        x_words, y_words = said(x_name, words["code"]), said(y_name, words["code"])
        shapes, entries = _plot(series, names, (x_format, y_format), (log_x, log_y), bottom)
        if len({each.points for each in series}) > 1:
            entries += [
                (
                    _sample(mark="o"),
                    words["recorded" if badge.startswith("recorded") else "measured"],
                ),
                (_sample(), words["predicted"].lower()),
            ]
        shapes += [
            Words(0, _TOP_PX - 14, y_words, opacity=0.8),
            Words(WIDTH_PX / 2, bottom + 36, x_words, "middle", opacity=0.8),
        ]
        more, end_px = legend(entries, 60, bottom + 44)
        spoken = (
            f"{name} {y_format(each.y[0])} → {y_format(each.y[-1])}"
            for name, each in zip(names, series, strict=True)
        )
        return _sketch(
            shapes + more,
            end_px,
            title,
            badge,
            numbers,
            spoken,
            _table(series, names, x_format, y_format, x_words),
            words,
        )

    return speaking(language, build)


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
    up, badges = 0 if numbers else -20, origin(badge, words)
    summary = sentence("", [("; ".join(spoken),)], badges, words["code"])
    return Sketch(
        shapes=tuple(moved(shape, 0, up) for shape in shapes),
        height_px=end_px + up,
        badge=badges,
        heading=said(title, words["code"]),
        numbers=tuple(numbers),
        table=tuple(table),
        summary=summary,
        language=words["code"],
    )


def _plot(
    series: Sequence[Series],
    names: list[str],
    formats: tuple[Format, Format],
    logs: tuple[bool, bool],
    bottom: float,
) -> tuple[list[Shape], list]:
    """Axes, lines and their names; and the legend's entries, where the names have no room."""
    y_px, y_ticks = _axis([each.y for each in series], formats[1], logs[1], bottom, _TOP_PX)
    left, wide = (
        12 + max(28, *(text_px(text, 11) for _, text in y_ticks)),
        36 + max(map(text_px, names)),
    )
    for right in (WIDTH_PX - wide, WIDTH_PX - 30.0):
        x_px, x_ticks = _axis([each.x for each in series], formats[0], logs[0], left, right)
        lines = [
            _look(names, name, each.points)._replace(
                points_px=tuple(zip(x_px(each.x), y_px(each.y), strict=True))
            )
            for each, name in zip(series, names, strict=True)
        ]
        ends = {
            name: max(
                max(line.points_px)
                for other, line in zip(names, lines, strict=True)
                if other == name
            )
            for name in names
        }
        apart = np.diff(sorted(min(y, bottom - 8) for _, y in ends.values())).min(initial=99)
        if wide < 240 and apart > 13 and min(ends.values())[0] > 0.9 * right:
            break
    grid = [
        *(
            (((at, bottom), (at, _TOP_PX)), Words(at, bottom + 16, text, "middle", 11))
            for at, text in x_ticks
        ),
        *(
            (((left, at), (right, at)), Words(left - 7, at + 4, text, "end", 11))
            for at, text in y_ticks
        ),
    ]
    shapes = [
        shape for points, text in grid for shape in (Line(points, width_px=1, opacity=0.13), text)
    ]
    shapes += [Line(((left, bottom), (right, bottom)), width_px=1, opacity=0.5), *lines]
    if right == WIDTH_PX - wide:
        return shapes + [
            Words(x + 9, min(y, bottom - 8) + 4, name) for name, (x, y) in ends.items()
        ], []
    samples = {name: () for name in names}
    for name, line in zip(names, lines, strict=True):
        samples[name] += _sample(line.colour, line.dash, line.mark)
    return shapes, [(sample, name) for name, sample in samples.items()]


def _axis(
    columns: list[Sequence[float]], form: Format, log: bool, start_px: float, end_px: float
) -> tuple[Callable[[Sequence[float]], list[float]], list[tuple[float, str]]]:
    """Where values lie, and the (place, text) of each tick."""
    low, high = (pick(float(pick(column)) for column in columns) for pick in (min, max))
    if log:
        room = max(1.08, (high / low) ** 0.04)
        low, high = low / room, high * room
    else:
        low = 0.0 if 0 <= low <= 0.6 * high else low
        room = 0.04 * (high - low) or abs(high) or 1.0
        low, high = low and low - room, high + room
    grown = np.log10 if log else np.asarray

    def px(values: Sequence[float]) -> list[float]:
        share = (grown(np.asarray(values, dtype=float)) - grown(low)) / (grown(high) - grown(low))
        return (start_px + share * (end_px - start_px)).tolist()

    round_values = ticks(low, high, 8 if end_px > start_px else 6, log)
    if all(float(value).is_integer() for column in columns for value in column):
        round_values = round_values[round_values % 1 == 0]
    round_values = round_values.tolist()
    return px, [
        (at, short(form(value))) for at, value in zip(px(round_values), round_values, strict=True)
    ]


def _look(names: list[str], name: str, points: bool) -> Line:
    number = list(dict.fromkeys(names)).index(name)
    return Line(
        (),
        CYCLE[number % 8][0],
        **({"mark": _MARKS[number % 8]} if points else {"dash": _DASHES[number % 8]}),
    )


def _sample(colour: str = "", dash: tuple[float, ...] = (), mark: str = "") -> tuple[Line, ...]:
    return (Line(((11, 0),) if mark else ((0, 0), (22, 0)), colour, dash=dash, mark=mark),)


def _table(
    series: Sequence[Series], names: list[str], x_format: Format, y_format: Format, x_name: str
) -> tuple:
    """A row per x, or every so many."""
    columns = [{} for _ in series]
    for column, each in zip(columns, series, strict=True):
        for x, y in zip(map(float, each.x), each.y, strict=True):
            column.setdefault(x, []).append(y_format(y))
    places = sorted(set().union(*columns))
    heads = [
        f"{name} {'●' if each.points else '—'}" for name, each in zip(names, series, strict=True)
    ]
    return (
        (x_name, *heads),
        *(
            (x_format(x), *(" / ".join(column.get(x, ())) for column in columns))
            for x in places[:: -(-len(places) // _MOST_ROWS)]
        ),
    )


def bars(
    rows: Sequence[tuple[Said, float | Mapping[str, float]]],
    *,
    title: Said,
    badge: str,
    unit_format: Format = plain,
    numbers: Numbers = (),
    marks: Sequence[tuple[Said, float]] = (),
    language: str = "en",
) -> Sketch:
    """Horizontal bars from 0, each with its value: rows of (name, value), or of (name, {series:
    value}).

    ``marks`` are dashed lines at (words, value): a bound, a formula. Raises ValueError for no rows,
    or a value that is not finite or below 0.
    """
    groups = [value if isinstance(value, Mapping) else {"": value} for _, value in rows]
    values = [value for group in groups for value in group.values()]
    if not values or not all(
        0 <= value <= 1e300 for value in (*values, *(value for _, value in marks))
    ):
        raise ValueError(
            f"bars and marks lie at finite values of 0 or more, and there is a bar; got {values}, "
            f"{marks}"
        )

    def build(words: dict[str, str]) -> Sketch:
        names = [said(name, words["code"]) for name, _ in rows]
        heads = list(dict.fromkeys(head for group in groups for head in group))
        cells = [[unit_format(value) for value in group.values()] for group in groups]
        lines = [
            (f"{said(text, words['code'])} {unit_format(value)}", value) for text, value in marks
        ]
        table = (
            (name, *(dict(zip(group, line, strict=True)).get(head, "") for head in heads))
            for name, group, line in zip(names, groups, cells, strict=True)
        )
        spoken = (f"{name} {' / '.join(line)}" for name, line in zip(names, cells, strict=True))
        return _sketch(
            *_bars(names, groups, cells, lines),
            title,
            badge,
            numbers,
            spoken,
            (("", *heads), *table),
            words,
        )

    return speaking(language, build)


def _bars(
    names: list[str],
    groups: list[Mapping[str, float]],
    cells: list[list[str]],
    marks: list[tuple[str, float]],
) -> tuple[list[Shape], float]:
    heads = dict.fromkeys(name for group in groups for name in group)
    looks = {
        name: (CYCLE[number % 8][0], _HATCHES[number % 8]) for number, name in enumerate(heads)
    }
    left = 10 + min(280.0, max(map(text_px, names)))
    most = (
        max(
            value
            for value in [*(v for group in groups for v in group.values()), *(v for _, v in marks)]
        )
        or 1.0
    )
    scale = (WIDTH_PX - left - 14 - max(text_px(text) for line in cells for text in line)) / most
    thick, top = (16.0 if len(looks) > 1 else 22.0), 60.0 + 14 * len(marks)
    shapes, y = [], top + 4
    for name, group, line in zip(names, groups, cells, strict=True):
        shapes.append(
            Words(left - 8, y + thick * len(group) / 2 + 3, clipped(name, left - 9), "end")
        )
        for (head, value), text in zip(group.items(), line, strict=True):
            shapes += [
                Box(left, y, value * scale, thick - 2, *looks[head]),
                Words(left + value * scale + 6, y + thick / 2 + 3, text),
            ]
            y += thick
        y += 8
    shapes.append(Line(((left, top), (left, y)), width_px=1, opacity=0.6))
    for number, (text, value) in enumerate(marks):
        at, anchor = left + value * scale, "end" if left + value * scale > WIDTH_PX / 2 else "start"
        shapes += [
            Line(((at, 62 + 14 * number), (at, y)), dash=(4, 3), width_px=1.2, opacity=0.8),
            Words(at + (4 if anchor == "start" else -4), 70 + 14 * number, text, anchor, 11.5),
        ]
    if "" in looks:
        return shapes, y + 4
    more, end_px = legend(
        [((Box(0, -7, 22, 14, *look),), name) for name, look in looks.items()], left, y
    )
    return shapes + more, end_px
