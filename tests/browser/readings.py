"""What a picture claims, found again: per family a function (painting, drawn, data) -> (shown,
true) shares. Time and values stand here, bytes in ``byte_readings``.

``shown`` comes from the painting's pixels, ``true`` from the data; of ``drawn`` only where to look
is taken: the places of names ("rank 3"), of frames that stand for a whole, of an axis's ends.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from browser.painted import PAPER, Painted, rgb

from labkit.pictures import figures, style
from labkit.pictures.curves import Series
from labkit.pictures.scene import LEFT_PX, PLOT_PX, WIDTH_PX, Scene
from labkit.pictures.sketch import Line, Sketch, Words
from labkit.pipeline.simulation import in_flight
from labkit.timeline import COMM, COMPUTE, Timeline, busy_us

Pairs = Iterator[tuple[float, float]]


def timelines(
    painted: Painted, drawn: Scene, panels: Sequence[Timeline], span_us: float = 0.0
) -> Pairs:
    """Time: per panel, rank and lane the share of the axis that each kind and idleness have; the
    bars at the right; where the dashed line lies."""
    shifted = [figures.begun(each) for each in panels]
    start_us = min(0.0, *(float(each.start_us.min(initial=0.0)) for each in shifted))
    axis_us = (
        max(span_us, *(float(each.end_us.max(initial=0.0)) for each in shifted)) - start_us
        or 1000.0
    )
    looks = _kinds(painted, panels)
    rows = {}
    for row in drawn.rows:
        panel = max(0, sum(heading.bottom_px < row.top_px for heading in drawn.headings) - 1)
        high = 0.2 if row.height_px >= 13 else 0.85  # above the letters, where there are any
        found = painted.shares(
            looks,
            LEFT_PX,
            LEFT_PX + PLOT_PX,
            row.top_px + 0.06 * row.height_px,
            row.top_px + high * row.height_px,
            edged=False,
        )
        sums = rows.setdefault((panel, row.rank, row.lane), dict.fromkeys(looks, 0.0))
        for kind in looks:
            sums[kind] += found[kind]
    for (panel, rank, lane), found in rows.items():
        yield from _row(shifted[panel], rank, lane, found, axis_us)
    yield from _sides(painted, drawn, panels)
    if len(panels) > 1:
        y = drawn.headings[1].bottom_px - 14
        at = painted.upright_line(LEFT_PX + 2, LEFT_PX + PLOT_PX + 2, y - 12, y)
        yield (at - LEFT_PX) / PLOT_PX, (_span(panels[0]) - start_us) / axis_us


def _kinds(painted: Painted, panels: Sequence[Timeline]) -> dict[str, list]:
    """The colours that each kind has: a rank's later stages are lighter; idleness is faint."""
    looks = {}
    kinds = set().union(*(each.kind.tolist() for each in panels))
    for kind in sorted(kinds):
        chunks = _most_chunks(kind, panels)
        colour = style.style(kind).colour
        looks[kind] = [style.shade(colour, chunk, chunks) for chunk in range(chunks)]
    faint = [painted.faint(share) for share in (0.05, 0.17, 0.3, 0.37)]
    grey = [np.array([level] * 3, dtype=float) for level in (242.5, 229.5, 208.0, 188.0, 168.0)]
    return looks | {style.IDLE: grey if painted.renderer == "mpl" else faint}


def _most_chunks(kind: str, panels: Sequence[Timeline]) -> int:
    """How many stages of the model one rank has at most, by the labels of a kind."""
    most = 1
    if kind in "FBIW":
        for each in panels:
            for rank in range(each.num_ranks):
                labels = each.label[(each.kind == kind) & (each.rank == rank)]
                most = max(most, len({label.partition(kind)[0] for label in labels}))
    return most


def _span(each: Timeline) -> float:
    pipeline = bool(np.isin(each.kind, ("F", "B", "I")).any())
    return each.span_us if pipeline else float(each.end_us.max() - each.start_us.min())


def _row(
    shifted: Timeline, rank: int, lane: str, found: Mapping[str, float], axis_us: float
) -> Pairs:
    mine = (shifted.rank == rank) & (shifted.lane == lane)
    lasts_us = shifted.end_us - shifted.start_us
    busy = 0.0
    for kind in found:
        if kind != style.IDLE:
            share = float(lasts_us[mine & (shifted.kind == kind)].sum()) / axis_us
            busy += share
            yield found[kind], share
    if lane == COMPUTE:
        yield found[style.IDLE], _span(shifted) / axis_us - busy


def _sides(painted: Painted, drawn: Scene, panels: Sequence[Timeline]) -> Pairs:
    """The bars beside the rows: activations at the peak, or the share of the span that is busy."""
    pipeline = any(np.isin(each.kind, ("F", "B", "I")).any() for each in panels)
    if pipeline:
        peaks = [in_flight(each) for each in panels]
        highest = max(1, *(peak.max() for peak in peaks))
        true = [peak / highest for peak in peaks]
    else:
        true = [
            busy_us(each, COMPUTE if COMPUTE in each.lane else COMM) / _span(each)
            for each in panels
        ]
    left = LEFT_PX + PLOT_PX + 10
    seen = set()
    for row in drawn.rows:
        panel = max(0, sum(heading.bottom_px < row.top_px for heading in drawn.headings) - 1)
        if (panel, row.rank) not in seen and row.height_px >= 8:
            middle = row.top_px + row.height_px / 2
            found = painted.shares(
                {"bar": [painted.faint(0.38)]}, left, left + 60, middle - 1, middle + 1
            )
            yield found["bar"], float(true[panel][row.rank])
        seen.add((panel, row.rank))


def bars(
    painted: Painted,
    drawn: Sketch,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    marks: Sequence[float] = (),
) -> Pairs:
    """Values: the length of each bar, and the place of each mark, against the longest."""
    groups = [group for _, group in rows]
    heads = list(dict.fromkeys(itertools.chain.from_iterable(groups)))
    looks = {head: [style.CYCLE[number % 8][0]] for number, head in enumerate(heads)}
    most = max([*marks, *(max(group.values()) for group in groups)])
    names = [
        words for words in drawn.only(Words) if words.anchor == "end" and words.text in dict(rows)
    ]
    left = names[0].x_px + 8
    thick = 16 if len(heads) > 1 else 22
    shown = []
    for words, (_, group) in zip(names, rows, strict=True):
        top = words.y_px - 3 - thick * len(group) / 2
        for number, (head, value) in enumerate(group.items()):
            y = top + thick * (number + 0.5) - 1
            shown.append(
                (painted.length({"bar": looks[head]}, left, WIDTH_PX, y - 5, y + 5)["bar"], value)
            )
    top = names[0].y_px - 3 - thick * len(rows[0][1]) / 2 - 14
    bottom = names[0].y_px - 3 - thick * len(rows[0][1]) / 2
    if marks:  # between the words above and the first bar
        shown.append(
            (painted.upright_line(left + 3, WIDTH_PX, top + 10, bottom - 0.5) - left, marks[0])
        )
    longest = max(length for length, _ in shown)
    for length, value in shown:
        yield length / longest, value / most


def curves(
    painted: Painted,
    drawn: Sketch,
    series: Sequence[Series],
    log: tuple[bool, bool] = (False, False),
) -> Pairs:
    """Values at points: where the colour of a series lies at each x, between the first and the last
    grid line.

    The numbers at the grid lines are read as they stand there.
    """
    places = [_grid(painted, drawn, way, log[way == "y"]) for way in "xy"]
    names = list(dict.fromkeys(each.name for each in series))
    for each in series:
        colour = style.CYCLE[names.index(each.name) % 8][0]
        for point in zip(each.x, each.y, strict=True):
            lies = _found(painted, places, point, log, colour, 5 if each.points else 3)
            shown = [
                (place - px[0]) / (px[-1] - px[0])
                for place, (_, px) in zip(lies, places, strict=True)
            ]
            value = _all_grown(point, log)
            if not each.points:  # a line has no point of its own, and may have a gap here
                numbers = places[0][0]
                value[0] = numbers[0] + shown[0] * (numbers[-1] - numbers[0])
                xs = [_grown(x, log[0]) for x in each.x]
                ys = [_grown(y, log[1]) for y in each.y]
                value[1] = float(np.interp(value[0], xs, ys))
            for found, number, (numbers, _) in zip(shown, value, places, strict=True):
                yield found, (number - numbers[0]) / (numbers[-1] - numbers[0])


def _found(
    painted: Painted,
    places: Sequence[tuple],
    point: tuple[float, float],
    log: tuple[bool, bool],
    colour: str,
    half: float,
) -> tuple[float, float]:
    """Where the middle of a colour lies near a point, in pixels of the picture."""
    at = []
    for value, (numbers, px) in zip(_all_grown(point, log), map(_extended, places), strict=True):
        rises = numbers[0] < numbers[-1]
        at.append(float(np.interp(value, numbers, px)) if rises else px[0])
    part = painted.cut(at[0] - half, at[0] + half, at[1] - 24, at[1] + 24)
    mine = np.abs(part - rgb(colour)).sum(axis=2) < 60
    assert mine.any(), f"no {colour} near {point}"
    rows, columns = (float(spots.mean()) + 0.5 for spots in np.nonzero(mine))
    first_column = round(painted.left + (at[0] - half) * painted.scale)
    first_row = round((at[1] - 24) * painted.high)
    x = (first_column + columns - painted.left) / painted.scale
    return x, (first_row + rows) / painted.high


def _all_grown(point: tuple[float, float], log: tuple[bool, bool]) -> list[float]:
    return [_grown(value, logged) for value, logged in zip(point, log, strict=True)]


def _grown(value: float, log: bool) -> float:
    return float(np.log10(value)) if log else float(value)


def _extended(place: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A scale that goes on beyond its grid lines."""
    numbers, px = place
    slope = (px[-1] - px[0]) / (numbers[-1] - numbers[0])
    far = numbers[-1] - numbers[0]
    return np.array([numbers[0] - far, numbers[-1] + far]), np.array(
        [px[0] - far * slope, px[-1] + far * slope]
    )


def _grid(painted: Painted, drawn: Sketch, way: str, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """The numbers at the grid lines, and where these lie in the pixels."""
    lines = [line for line in drawn.only(Line) if line.opacity == 0.13]
    words = {
        (round(w.x_px, 3), round(w.y_px, 3)): w.text for w in drawn.only(Words) if w.size_px == 11
    }
    found = []
    y0 = next(
        line.points_px[1][1] for line in lines if line.points_px[0][0] == line.points_px[1][0]
    )
    x1 = max(max(line.points_px)[0] for line in lines)
    for line in lines:
        (a, b), (c, _) = line.points_px
        if (a == c) != (way == "x"):
            continue
        text = (
            words[(round(a, 3), round(b + 16, 3))]
            if way == "x"
            else words[(round(a - 7, 3), round(b + 4, 3))]
        )
        if way == "x":
            at = painted.upright_line(a - 4, a + 4, y0 + 2, y0 + 8)
        else:
            part = np.abs(painted.cut(x1 - 8, x1 - 1, b - 4, b + 4) - painted.paper).sum(
                axis=(1, 2)
            )
            middle = float((np.arange(len(part)) * part).sum() / part.sum()) + 0.5
            at = (round((b - 4) * painted.high) + middle) / painted.high
        found.append((_grown(float(text), log), at))
    numbers, px = zip(*sorted(found), strict=True)
    return np.array(numbers), np.array(px)


def usage(painted: Painted, times: Mapping[str, float]) -> Pairs:
    """A rank's bar of compute and communication beside its idle time; the painting is the bar
    alone."""
    looks = {"compute": [style.KINDS["compute"].colour], "exposed": [style.KINDS["send"].colour]}
    found = painted.shares(looks, 0, 300, 3, 9)
    whole = sum(times.values())
    for name in looks:
        yield found[name], times[name] / whole
    yield found[PAPER], times["idle"] / whole


def traces(painted: Painted, rows: Sequence[Mapping], panels: Sequence[Timeline]) -> Pairs:
    """The viewer's canvas, 900 pixels wide: per row, the share of the axis that each kind has.
    ``rows`` are those of ``viewer.about``."""
    shifted = [figures.begun(each) for each in panels]
    axis_us = max(float(each.end_us.max()) for each in shifted) - min(
        0.0, *(float(e.start_us.min()) for e in shifted)
    )
    looks = _kinds(painted, panels)
    sums = {}
    del looks[style.IDLE]
    dense = (
        sum(map(len, panels)) > 2000
    )  # boxes under a pixel share its height; letters stand in large ones
    for row in rows:
        top = 6 + row["top_px"]
        high = row["height_px"]
        end = top + high * (1 if dense else 0.2)
        found = painted.shares(looks, 64, WIDTH_PX - 8, top, end, edged=False, area=dense)
        mine = sums.setdefault((row["panel"], row["rank"], row["lane"]), dict.fromkeys(looks, 0.0))
        for kind in looks:
            mine[kind] += found[kind]
    for (panel, rank, lane), found in sums.items():
        yield from list(_row(shifted[panel], rank, lane, found | {style.IDLE: 0.0}, axis_us))[
            : len(looks)
        ]
