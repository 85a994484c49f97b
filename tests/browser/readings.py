"""What a picture claims, found again: per family of pictures a function (painting, drawn, data) -> (shown, true) shares.

``shown`` comes from the painting's pixels, ``true`` from the data; of ``drawn`` only where to look is taken: the places
of names ("rank 3"), of frames that stand for a whole, of an axis's ends.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from browser.painted import PAPER, Painted

from labkit import style
from labkit.bill import LOOKS
from labkit.chart import Series
from labkit.collectives import Plan, holdings, lower_bound_bytes, sent_bytes
from labkit.footprint import PARTS, Footprint
from labkit.memory import Move
from labkit.network import Network, time_us
from labkit.scene import LEFT_PX, PLOT_PX, WIDTH_PX, Scene
from labkit.shards import CATEGORIES, ITEMSIZE, NO_TENSOR, Shards
from labkit.simulate import in_flight
from labkit.sketch import Box, Line, Sketch, Words, ticks
from labkit.timeline import COMM, COMPUTE, Timeline, busy_us

Pairs = Iterator[tuple[float, float]]


def timelines(painted: Painted, drawn: Scene, panels: Sequence[Timeline], span_us: float = 0.0) -> Pairs:
    """Time: per panel, rank and lane the share of the axis that each kind and idleness have; the bars at the right;
    where the dashed line lies."""
    shifted = [each.shifted() for each in panels]
    start_us = min(0.0, *(float(each.start_us.min(initial=0.0)) for each in shifted))
    axis_us = max(span_us, *(float(each.end_us.max(initial=0.0)) for each in shifted)) - start_us or 1000.0
    looks, rows = _kinds(painted, panels), {}
    for row in drawn.rows:
        panel = max(0, sum(heading.bottom_px < row.top_px for heading in drawn.headings) - 1)
        high = 0.2 if row.height_px >= 13 else 0.85  # above the letters, where there are any
        found = painted.shares(looks, LEFT_PX, LEFT_PX + PLOT_PX, row.top_px + 0.06 * row.height_px,
                               row.top_px + high * row.height_px, edged=False)
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
    for kind in sorted({kind for each in panels for kind in each.kind.tolist()}):
        chunks = max(len({label.partition(kind)[0] for label in each.label[(each.kind == kind) & (each.rank == rank)]
                          if kind in "FBIW"}) for each in panels for rank in range(each.num_ranks)) or 1
        looks[kind] = [style.shade(style.style(kind).colour, chunk, chunks) for chunk in range(chunks)]
    faint = [painted.faint(share) for share in (0.05, 0.17, 0.3, 0.37)]
    grey = [np.array([level] * 3, dtype=float) for level in (242.5, 229.5, 208.0, 188.0, 168.0)]
    return looks | {style.IDLE: grey if painted.renderer == "mpl" else faint}


def _span(each: Timeline) -> float:
    pipeline = bool(np.isin(each.kind, ("F", "B", "I")).any())
    return each.span_us if pipeline else float(each.end_us.max() - each.start_us.min())


def _row(shifted: Timeline, rank: int, lane: str, found: Mapping[str, float], axis_us: float) -> Pairs:
    mine = (shifted.rank == rank) & (shifted.lane == lane)
    lasts_us, busy = shifted.end_us - shifted.start_us, 0.0
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
        true = [peak / max(1, *(part.max() for part in peaks)) for peak in peaks]
    else:
        true = [busy_us(each, COMPUTE if COMPUTE in each.lane else COMM) / _span(each) for each in panels]
    left, seen = LEFT_PX + PLOT_PX + 10, set()
    for row in drawn.rows:
        panel = max(0, sum(heading.bottom_px < row.top_px for heading in drawn.headings) - 1)
        if (panel, row.rank) not in seen and row.height_px >= 8:
            middle = row.top_px + row.height_px / 2
            found = painted.shares({"bar": [painted.faint(0.38)]}, left, left + 60, middle - 1, middle + 1)
            yield found["bar"], float(true[panel][row.rank])
        seen.add((panel, row.rank))


def bars(painted: Painted, drawn: Sketch, rows: Sequence[tuple[str, Mapping[str, float]]],
         marks: Sequence[float] = ()) -> Pairs:
    """Values: the length of each bar, and the place of each mark, against the longest."""
    heads = list(dict.fromkeys(head for _, group in rows for head in group))
    looks = {head: [style.CYCLE[number % 8][0]] for number, head in enumerate(heads)}
    most = max([value for _, group in rows for value in group.values()] + list(marks))
    names = [words for words in drawn.only(Words) if words.anchor == "end" and words.text in dict(rows)]
    left, thick, shown = names[0].x_px + 8, 16 if len(heads) > 1 else 22, []
    for words, (_, group) in zip(names, rows, strict=True):
        top = words.y_px - 3 - thick * len(group) / 2
        for number, (head, value) in enumerate(group.items()):
            y = top + thick * (number + 0.5) - 1
            shown.append((painted.length({"bar": looks[head]}, left, WIDTH_PX, y - 5, y + 5)["bar"], value))
    top, bottom = names[0].y_px - 3 - thick * len(rows[0][1]) / 2 - 14, names[0].y_px - 3 - thick * len(rows[0][1]) / 2
    if marks:  # between the words above and the first bar
        shown.append((painted.upright_line(left + 3, WIDTH_PX, top + 10, bottom - 0.5) - left, marks[0]))
    longest = max(length for length, _ in shown)
    for length, value in shown:
        yield length / longest, value / most


def curves(painted: Painted, drawn: Sketch, series: Sequence[Series], log: tuple[bool, bool] = (False, False)) -> Pairs:
    """Values at points: where the colour of a series lies at each x, between the first and the last grid line.

    The numbers at the grid lines are read as they stand there.
    """
    places = [_grid(painted, drawn, way, log[way == "y"]) for way in "xy"]
    names = list(dict.fromkeys(each.name for each in series))
    for each in series:
        colour = style.CYCLE[names.index(each.name) % 8][0]
        for x, y in zip(each.x, each.y, strict=True):
            at = [float(np.interp(_grown(value, logged), numbers, px)) if numbers[0] < numbers[-1] else px[0]
                  for value, logged, (numbers, px) in zip((x, y), log, map(_extended, places), strict=True)]
            half = 5 if each.points else 3
            part = painted.cut(at[0] - half, at[0] + half, at[1] - 24, at[1] + 24)
            mine = np.abs(part - _rgb(colour)).sum(axis=2) < 60
            assert mine.any(), f"no {colour} near ({x}, {y})"
            rows, columns = (float(spots.mean()) + 0.5 for spots in np.nonzero(mine))
            lies = ((round(painted.left + (at[0] - half) * painted.scale) + columns - painted.left) / painted.scale,
                    (round((at[1] - 24) * painted.high) + rows) / painted.high)
            shown = [(place - px[0]) / (px[-1] - px[0]) for place, (_, px) in zip(lies, places, strict=True)]
            value = [_grown(number, logged) for number, logged in zip((x, y), log, strict=True)]
            if not each.points:  # a line has no point of its own, and may have a gap here
                numbers = places[0][0]
                value[0] = numbers[0] + shown[0] * (numbers[-1] - numbers[0])
                grown = [[_grown(number, logged) for number in column]
                         for column, logged in zip((each.x, each.y), log, strict=True)]
                value[1] = float(np.interp(value[0], *grown))
            for found, number, (numbers, _) in zip(shown, value, places, strict=True):
                yield found, (number - numbers[0]) / (numbers[-1] - numbers[0])


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=float)


def _grown(value: float, log: bool) -> float:
    return float(np.log10(value)) if log else float(value)


def _extended(place: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A scale that goes on beyond its grid lines."""
    numbers, px = place
    slope = (px[-1] - px[0]) / (numbers[-1] - numbers[0])
    far = numbers[-1] - numbers[0]
    return np.array([numbers[0] - far, numbers[-1] + far]), np.array([px[0] - far * slope, px[-1] + far * slope])


def _grid(painted: Painted, drawn: Sketch, way: str, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """The numbers at the grid lines, and where these lie in the pixels."""
    lines = [line for line in drawn.only(Line) if line.opacity == 0.13]
    words = {(round(w.x_px, 3), round(w.y_px, 3)): w.text for w in drawn.only(Words) if w.size_px == 11}
    found = []
    y0 = next(line.points_px[1][1] for line in lines if line.points_px[0][0] == line.points_px[1][0])
    x1 = max(max(line.points_px)[0] for line in lines)
    for line in lines:
        (a, b), (c, _) = line.points_px
        if (a == c) != (way == "x"):
            continue
        text = words[(round(a, 3), round(b + 16, 3))] if way == "x" else words[(round(a - 7, 3), round(b + 4, 3))]
        if way == "x":
            at = painted.upright_line(a - 4, a + 4, y0 + 2, y0 + 8)
        else:
            part = np.abs(painted.cut(x1 - 8, x1 - 1, b - 4, b + 4) - painted.paper).sum(axis=(1, 2))
            middle = float((np.arange(len(part)) * part).sum() / part.sum()) + 0.5
            at = (round((b - 4) * painted.high) + middle) / painted.high
        found.append((_grown(float(text), log), at))
    numbers, px = zip(*sorted(found), strict=True)
    return np.array(numbers), np.array(px)


def shards(painted: Painted, drawn: Sketch, both: Sequence[Shards]) -> Pairs:
    """Bytes: how much of a column (the whole model in its type) each rank holds; the same of all columns together."""
    columns, spares = _columns(both)
    starts = [words.x_px for words in drawn.only(Words) if words.anchor == "start" and 50 < words.y_px < 80]
    totals = [words.y_px - 3 for words in drawn.only(Words) if words.x_px == WIDTH_PX - 100 and words.size_px == 11]
    room = WIDTH_PX - 108 - starts[0] - 5 * len(columns)
    scale = room / sum(columns.values())
    padded = {kind for kind, num_bytes in spares.items() if num_bytes}
    assert len(starts) == len(columns) and len(totals) == both[0].num_ranks * len(both)
    for number, y in enumerate(totals):
        rank, place = divmod(number, len(both))
        for (kind, width), x in zip(columns.items(), starts, strict=True):
            found = painted.shares({kind: [LOOKS[CATEGORIES[kind]][0]]}, x, x + width * scale, y - 1.5, y + 1.5)
            if kind in padded:  # it lies behind the model
                at = x + (width - spares[kind]) * scale
                rest = painted.shares({"spare": ["#a3a8b0"]}, at, x + width * scale, y - 1.5, y + 1.5)["spare"]
                found["spare"] = rest * spares[kind] / width
            mine = both[place].select((both[place].rank == rank) & (both[place].kind == kind))
            spare = np.isin(mine.tensor, NO_TENSOR)
            for name, num_bytes in ((kind, mine.num_bytes[~spare].sum()), ("spare", mine.num_bytes[spare].sum())):
                part = 1.0 if width * scale >= 60 else width * scale / room  # a narrow column: of the whole row
                if name in found:
                    yield found[name] * part, float(num_bytes) / width * part


def _columns(both: Sequence[Shards]) -> tuple[dict[str, float], dict[str, int]]:
    """Bytes of each kind's column: every tensor of the model in the kind's type, and the padding; and that alone."""
    ends: dict[str, int] = {}
    rows = [row for each in both for row in each.rows()]
    for _, kind, tensor, _, stop, _, _ in rows:
        if tensor not in NO_TENSOR and kind in CATEGORIES and kind not in ("step", "buffer"):
            ends[tensor] = max(ends.get(tensor, 0), stop)
    widths, spares = {}, {}
    for kind in (kind for kind in CATEGORIES if kind != "step" and any(row[1] == kind for row in rows)):
        mine = [row for row in rows if row[1] == kind]
        size = max(ITEMSIZE[row[5]] for row in mine)
        spares[kind] = max((ITEMSIZE[row[5]] * (row[4] - row[3]) for row in mine if row[2] in NO_TENSOR), default=0)
        widths[kind] = float(sum(ends.values()) * size + spares[kind])
        if kind == "buffer":
            widths[kind] = float(max(each.bytes_by()[kind].max() for each in both if (each.kind == kind).any()))
    return widths, spares


def footprints(painted: Painted, drawn: Sketch, both: Sequence[Footprint]) -> Pairs:
    """Bytes: how high each part stands at each moment, against the axis's last tick."""
    most = max(each.peak_bytes for each in both)
    axis = [words for words in drawn.only(Words) if words.anchor == "end" and words.size_px == 11]
    values = ticks(0, most, 5)
    zero, top = axis[0].y_px - 4, axis[len(values) - 1].y_px - 4
    labels = [label for label in both[0].labels if all(label in each.labels for each in both)]
    left = axis[0].x_px + 6
    pitch = (WIDTH_PX - left) / len(labels)
    looks = {part: [LOOKS[part][0]] for part in PARTS}
    for number, label in enumerate(labels):
        for place, each in enumerate(both):
            x = left + pitch * (number + 0.1 + 0.8 * (place + 0.5) / len(both))
            reach = 0.2 * pitch / len(both)
            found = painted.shares(looks, x - reach, x + reach, 84, zero, upright=True)
            mine = each.num_bytes[each.labels.index(label)]
            for part, num_bytes in zip(PARTS, mine.tolist(), strict=True):
                yield found[part] * (zero - 84) / (zero - top), num_bytes / values[-1]


def stacked(painted: Painted, drawn: Sketch, rows: Sequence[Mapping[str, float]], mark: float | None = None) -> Pairs:
    """Bytes: each part of each bar, and the mark, against the longest."""
    names = [words for words in drawn.only(Words) if words.anchor == "end" and not words.bold and words.y_px > 72][
        : len(rows)]
    left, most = names[0].x_px + 8, max([sum(row.values()) for row in rows] + [mark or 0.0])
    looks = {part: [LOOKS[part][0]] for part in dict.fromkeys(part for row in rows for part in row)}
    shown = []
    for words, row in zip(names, rows, strict=True):
        found = painted.length(looks, left, WIDTH_PX - 72, words.y_px - 14, words.y_px + 6)
        shown += [(found[part], num_bytes) for part, num_bytes in row.items()]
        shown.append((sum(found[part] for part in row), sum(row.values())))
    if mark:
        y = names[0].y_px - 16
        shown.append((painted.upright_line(left + 1, WIDTH_PX - 60, y - 7, y - 1) - left, mark))
    longest = max(length for length, _ in shown)
    for length, num_bytes in shown:
        yield length / longest, num_bytes / most


def layers(painted: Painted, drawn: Sketch, unit_bytes: Mapping[str, int], num_ranks: int, size: int,
           whole: Sequence[str]) -> Pairs:
    """Bytes: a rank's own part of each layer and what it has gathered, against the whole model. ``size``: into how many
    parts a layer is cut, ``whole``: the layers that are gathered."""
    frames = [box for box in drawn.only(Box) if not box.colour and box.height_px != 14]
    looks = {part: [LOOKS[part][0]] for part in ("parameters", "gathered")}
    room, total = sum(frame.width_px for frame in frames) / num_ranks, sum(unit_bytes.values())
    for number, frame in enumerate(frames):
        name, y = list(unit_bytes)[number // num_ranks], frame.y_px + frame.height_px / 2
        found = painted.length(looks, frame.x_px - 2, frame.x_px + frame.width_px + 2, y - 2, y + 2)
        own = unit_bytes[name] / size
        yield found["parameters"] / room, own / total
        yield found["gathered"] / room, (unit_bytes[name] - own) * (name in whole) / total


def flows(painted: Painted, drawn: Sketch, moves: Sequence[Move], marked: str = "") -> Pairs:
    """Bytes: how thick each arrow is, against the thickest."""
    arrows = [line for line in drawn.only(Line) if line.arrow]
    shown = []
    for arrow, move in zip(arrows, moves, strict=True):
        (x0, y), (x1, _) = arrow.points_px
        ends = (x0 + 0.05 * (x1 - x0), y), (x0 + 0.8 * (x1 - x0), y)
        opacity = 1.0 if move.phase == marked or not marked else 0.3
        shown.append(painted.thickness(LOOKS[move.what][0], *ends, opacity=opacity))
    for length, move in zip(shown, moves, strict=True):
        yield length / max(shown), move.num_bytes / max(each.num_bytes for each in moves)


def links(painted: Painted, drawn: Sketch, plans: Sequence[Plan]) -> Pairs:
    """Bytes: how thick each link is, against the thickest of all panels."""
    ranks, shown, true = [box for box in drawn.only(Box) if box.texts], [], []
    for plan in plans:
        places = {int(box.texts[0]): (box.x_px + box.width_px / 2, box.y_px + box.height_px / 2)
                  for box in ranks[: plan.num_ranks]}
        ranks = ranks[plan.num_ranks :]
        carried: dict[tuple[int, int], float] = {}
        for move in (move for step in plan.steps for move in step):
            pair = min(move.src, move.dst), max(move.src, move.dst)
            carried[pair] = carried.get(pair, 0.0) + len(move.chunks) * plan.chunk_bytes(1.0)
        colours = {line.points_px: line.colour for line in drawn.only(Line)}
        for (a, b), size in carried.items():
            colour = min((_off(line, places[a], places[b]), colour) for line, colour in colours.items())[1]
            shown.append(painted.thickness(colour, *_shorter(places[a], places[b]), reach=8))
            true.append(size)
    for length, size in zip(shown, true, strict=True):
        yield length / max(shown), size / max(true)


def _off(line: Sequence, a: tuple[float, float], b: tuple[float, float]) -> float:
    ways = [(line[0], line[-1]), (line[-1], line[0])]
    return min(float(np.hypot(*np.subtract(p, a)) + np.hypot(*np.subtract(q, b))) for p, q in ways)


def _shorter(a: tuple[float, float], b: tuple[float, float]) -> tuple:
    """The way between two ranks without what their boxes cover."""
    share = 18 / float(np.hypot(*np.subtract(b, a)))
    point = np.array(a), np.array(b)
    return tuple(point[0] + share * (point[1] - point[0])), tuple(point[1] + share * (point[0] - point[1]))


def chunks(painted: Painted, drawn: Sketch, plan: Plan, step: int, num_bytes: float | None = None,
           network: Network | None = None) -> Pairs:
    """Contributions: how far each chunk's box is filled; the meters of volume and time, and the bound's place."""
    held, parts = holdings(plan, step), max(len(chunk) for rank in holdings(plan) for chunk in rank)
    grid = [box for box in drawn.only(Box) if box.y_px >= 160]
    rows = plan.num_chunks
    if plan.primitive != "all_to_all":
        for number, box in enumerate(grid[: plan.num_ranks * rows]):
            rank, chunk = divmod(number, rows)
            colour = style.CYCLE[chunk % 16][0]
            looks = {"full": [colour], "pale": [_rgb(style.shade(colour, 3, 3))]}
            top, bottom = box.y_px + 1.5, box.y_px + (3.2 if box.height_px >= 13 else box.height_px - 1.5)
            found = painted.length(looks, box.x_px - 3, min(WIDTH_PX, box.x_px + box.width_px + 3),
                                   top, bottom)
            yield found["full"] / box.width_px, len(held[rank][chunk]) / parts
            yield (found["full"] + found["pale"]) / box.width_px, float(bool(held[rank][chunk]))
    begun, size = Plan(**{**vars(plan), "steps": plan.steps[:step]}), num_bytes or 1.0
    told = [(*(float(sent_bytes(each, size).max()) for each in (begun, plan)),
             lower_bound_bytes(plan.primitive, plan.num_ranks, size))]
    if network and num_bytes:
        told.append((time_us(begun, network, num_bytes), time_us(plan, network, num_bytes), 0.0))
    names = [words for words in drawn.only(Words) if words.x_px == 0 and words.y_px > 160][: len(told)]
    grey = style.KINDS["wait"].colour
    for words, (so_far, total, bound) in zip(names, told, strict=True):
        found = painted.length({"full": [grey], "pale": [_rgb(style.shade(grey, 3, 3))]}, 188, 626, words.y_px - 10,
                               words.y_px)
        most = max(total, bound) or 1.0
        yield found["full"] / 430, so_far / most
        yield (found["full"] + found["pale"]) / 430, total / most
        if bound:
            at = painted.upright_line(192, 626, words.y_px - 17, words.y_px - 14)
            yield (at - 190) / 430, bound / most


def holders(painted: Painted, drawn: Sketch, num_ranks: int, held: Sequence[float], batch: Sequence[float]) -> Pairs:
    """Layers and sequences: the part of all frames of a rank's row that is coloured."""
    frames = [box for box in drawn.only(Box) if not box.colour]
    for rank in range(num_ranks):
        y = drawn.only(Words)[2 + rank].y_px - 5
        mine = [frame for frame in frames if frame.y_px <= y <= frame.y_px + frame.height_px]
        for colour, true, own in (("#4f9fe3", held, mine[:-1]), ("#f2954b", batch, mine[-1:])):
            x0, x1 = own[0].x_px, own[-1].x_px + own[-1].width_px
            found = painted.length({colour: [colour]}, x0 - 2, min(WIDTH_PX, x1 + 2), y - 4, y + 4)
            gaps = (x1 - x0) / sum(frame.width_px for frame in own)
            yield found[colour] * gaps / (x1 - x0), true[rank]


def usage(painted: Painted, times: Mapping[str, float]) -> Pairs:
    """A rank's bar of compute and communication beside its idle time; the painting is the bar alone."""
    looks = {"compute": [style.KINDS["compute"].colour], "exposed": [style.KINDS["send"].colour]}
    found, whole = painted.shares(looks, 0, 300, 3, 9), sum(times.values())
    for name in looks:
        yield found[name], times[name] / whole
    yield found[PAPER], times["idle"] / whole


def traces(painted: Painted, rows: Sequence[Mapping], panels: Sequence[Timeline], plot: tuple[float, float]) -> Pairs:
    """The viewer's canvas: per row, the share of the axis that each kind has. ``rows`` as ``viewer.about`` has them."""
    shifted = [each.shifted() for each in panels]
    axis_us = max(float(each.end_us.max()) for each in shifted) - min(0.0, *(float(e.start_us.min()) for e in shifted))
    looks, sums = _kinds(painted, panels), {}
    del looks[style.IDLE]
    for row in rows:
        top, high = 6 + row["top_px"], row["height_px"]
        found = painted.shares(looks, *plot, top + 0.1 * high, top + 0.8 * high, edged=False)
        mine = sums.setdefault((row["panel"], row["rank"], row["lane"]), dict.fromkeys(looks, 0.0))
        for kind in looks:
            mine[kind] += found[kind]
    for (panel, rank, lane), found in sums.items():
        yield from _row(shifted[panel], rank, COMM if lane == COMM else "", found, axis_us) if lane == COMM else \
            list(_row(shifted[panel], rank, lane, found | {style.IDLE: 0.0}, axis_us))[:-1]
