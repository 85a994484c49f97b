"""Readings of the pictures of bytes: areas, heights, thicknesses, contributions; see
``readings``."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from browser.painted import Painted, rgb
from browser.readings import Pairs

from labkit.collectives.algorithms import lower_bound_bytes
from labkit.collectives.network import Network, time_us
from labkit.collectives.plans import Plan, holdings, sent_bytes
from labkit.footprint import PARTS, Footprint
from labkit.pictures import style
from labkit.pictures.bytes_held import LOOKS
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Sketch, Words, ticks
from labkit.sharding.states import Transfer
from labkit.shards import CATEGORIES, ITEMSIZE, NO_TENSOR, Shards
from labkit.tensor_parallel import picture
from labkit.tensor_parallel.layer import Layer


def shards(painted: Painted, drawn: Sketch, both: Sequence[Shards]) -> Pairs:
    """Bytes: how much of a column (the whole model in its type) each rank holds; the same of all
    columns together."""
    columns, spares = _columns(both)
    height = next(box.height_px for box in drawn.only(Box) if not box.colour)
    starts = [
        words.x_px
        for words in drawn.only(Words)
        if words.anchor == "start" and 50 < words.y_px < 80
    ]
    totals = [
        words.y_px - 3
        for words in drawn.only(Words)
        if words.x_px == WIDTH_PX - 100 and words.size_px == 11
    ]
    room = WIDTH_PX - 108 - starts[0] - 5 * len(columns)
    scale = room / sum(columns.values())
    assert len(starts) == len(columns) and len(totals) == both[0].num_ranks * len(both)
    for number, y in enumerate(totals):
        rank, place = divmod(number, len(both))
        band = y - 0.42 * height, y - 0.3 * height  # above the letters
        for (kind, width), x in zip(columns.items(), starts, strict=True):
            end = x + width * scale
            model = width - spares[kind]  # padding lies behind the model
            found = painted.shares(
                {kind: [LOOKS[CATEGORIES[kind]][0]]}, x, x + model * scale, *band
            )
            found[kind] *= model / width
            if spares[kind]:
                rest = painted.shares({"spare": ["#a3a8b0"]}, x + model * scale, end, *band)[
                    "spare"
                ]
                found["spare"] = rest * spares[kind] / width
            mine = both[place].select((both[place].rank == rank) & (both[place].kind == kind))
            spare = np.isin(mine.tensor, NO_TENSOR)
            for name, num_bytes in (
                (kind, mine.num_bytes[~spare].sum()),
                ("spare", mine.num_bytes[spare].sum()),
            ):
                part = (
                    1.0 if width * scale >= 60 else width * scale / room
                )  # a narrow column: of the whole row
                if name in found:
                    yield found[name] * part, float(num_bytes) / width * part


def _columns(both: Sequence[Shards]) -> tuple[dict[str, float], dict[str, int]]:
    """Bytes of each kind's column: every tensor of the model in the kind's type, and the padding;
    and that alone."""
    ends: dict[str, int] = {}
    rows = list(itertools.chain.from_iterable(each.rows() for each in both))
    for _, kind, tensor, _, stop, _, _ in rows:
        if tensor not in NO_TENSOR and kind in CATEGORIES and kind not in ("step", "buffer"):
            ends[tensor] = max(ends.get(tensor, 0), stop)
    widths = {}
    spares = {}
    for kind in CATEGORIES:
        mine = [row for row in rows if row[1] == kind]
        if kind == "step" or not mine:
            continue
        size = max(ITEMSIZE[row[5]] for row in mine)
        spares[kind] = max(
            (ITEMSIZE[row[5]] * (row[4] - row[3]) for row in mine if row[2] in NO_TENSOR), default=0
        )
        widths[kind] = float(sum(ends.values()) * size + spares[kind])
        if kind == "buffer":
            held = [each.bytes_by()[kind].max() for each in both if (each.kind == kind).any()]
            spares[kind] = 0
            widths[kind] = float(max(held))
    return widths, spares


def footprints(painted: Painted, drawn: Sketch, both: Sequence[Footprint]) -> Pairs:
    """Bytes: how high each part stands at each moment, against the axis's last tick."""
    most = max(each.peak_bytes for each in both)
    axis = [words for words in drawn.only(Words) if words.anchor == "end" and words.size_px == 11]
    values = ticks(0, 1.04 * most, 5)  # the axis ends a little above the highest bar
    zero = axis[0].y_px - 4
    top = axis[len(values) - 1].y_px - 4
    known_to_all = set.intersection(*(set(each.labels) for each in both))
    labels = [label for label in both[0].labels if label in known_to_all]
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


def stacked(
    painted: Painted, drawn: Sketch, rows: Sequence[Mapping[str, float]], mark: float | None = None
) -> Pairs:
    """Bytes: each part of each bar, and the mark, against the longest."""
    names = [
        words
        for words in drawn.only(Words)
        if words.anchor == "end" and not words.bold and words.y_px > 72
    ][: len(rows)]
    left = names[0].x_px + 8
    most = max([sum(row.values()) for row in rows] + [mark or 0.0])
    parts = dict.fromkeys(itertools.chain.from_iterable(rows))
    looks = {part: [LOOKS[part][0]] for part in parts}
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


def rings(painted: Painted, drawn: Sketch, works: Sequence[float]) -> Pairs:
    """Pairs: each rank's bar against the longest."""
    blue = style.KINDS["forward"].colour
    bars = [box for box in drawn.only(Box) if box.colour == blue and not box.marked]
    left = min(box.x_px for box in bars)
    said = [words for words in drawn.only(Words) if words.x_px > left - 250 and words.y_px > 88]
    looks = {"pairs": [blue]}
    lengths = []
    for words in [each for each in said if each.size_px == 11 and each.anchor == "start"]:
        middle = words.y_px + 13  # the bar lies under its words
        lengths.append(painted.length(looks, left, WIDTH_PX, middle - 4, middle + 4)["pairs"])
    assert len(lengths) == len(works)
    for length, num_pairs in zip(lengths, works, strict=True):
        yield length / max(lengths), num_pairs / max(works)


def layers(
    painted: Painted,
    drawn: Sketch,
    unit_bytes: Mapping[str, int],
    num_ranks: int,
    size: int,
    whole: Sequence[str],
) -> Pairs:
    """Bytes: a rank's own part of each layer and what it has gathered, against the whole model.
    ``size``: into how many parts a layer is cut, ``whole``: the layers that are gathered."""
    frames = [box for box in drawn.only(Box) if not box.colour and box.height_px != 14]
    looks = {part: [LOOKS[part][0]] for part in ("parameters", "gathered")}
    room = sum(frame.width_px for frame in frames) / num_ranks
    total = sum(unit_bytes.values())
    for number, frame in enumerate(frames):
        name = list(unit_bytes)[number // num_ranks]
        y = frame.y_px + frame.height_px / 2
        found = painted.length(looks, frame.x_px - 2, frame.x_px + frame.width_px + 2, y - 2, y + 2)
        own = unit_bytes[name] / size
        yield found["parameters"] / room, own / total
        gathered = unit_bytes[name] - own if name in whole else 0.0
        yield found["gathered"] / room, gathered / total


def columns(painted: Painted, drawn: Sketch, layer: Layer, moment: int) -> Pairs:
    """Share of a matrix's columns, and of its features, that a rank has, where they are worked
    on."""
    frames = [box for box in drawn.only(Box) if not box.colour]
    for number, frame in enumerate(frames):
        rank, station = divmod(number, len(picture.STATIONS))
        if station not in picture.STOPS[moment].live:
            continue
        name, kind = picture.STATIONS[station]
        pieces = {each.name: each for each in layer.pieces(rank)}
        opened = pieces["qkv.weight" if station < 5 else "up.weight"]
        held = opened.ranges if kind == "weight" else opened.ranges[:1]
        total = opened.shape[0]
        if name == "attn":
            total = layer.hidden
        colour = style.CYCLE[rank][0]
        y = frame.y_px + frame.height_px / 2
        ends = frame.x_px - 2, frame.x_px + frame.width_px + 2
        found = painted.length({"own": [colour]}, *ends, y - 12, y - 8)
        yield found["own"] / frame.width_px, sum(map(len, held)) / total


def flows(painted: Painted, drawn: Sketch, moves: Sequence[Transfer], marked: str = "") -> Pairs:
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
    ranks = [box for box in drawn.only(Box) if box.texts]
    shown = []
    true = []
    for plan in plans:
        places = {
            int(box.texts[0]): (box.x_px + box.width_px / 2, box.y_px + box.height_px / 2)
            for box in ranks[: plan.num_ranks]
        }
        ranks = ranks[plan.num_ranks :]
        carried: dict[tuple[int, int], float] = {}
        for move in itertools.chain.from_iterable(plan.steps):
            pair = min(move.src, move.dst), max(move.src, move.dst)
            carried[pair] = carried.get(pair, 0.0) + len(move.chunks) * plan.chunk_bytes(1.0)
        colours = {line.points_px: line.colour for line in drawn.only(Line)}
        for (a, b), size in carried.items():
            colour = min(
                (_off(line, places[a], places[b]), colour) for line, colour in colours.items()
            )[1]
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
    return tuple(point[0] + share * (point[1] - point[0])), tuple(
        point[1] + share * (point[0] - point[1])
    )


def chunks(
    painted: Painted,
    drawn: Sketch,
    plan: Plan,
    step: int,
    num_bytes: float | None = None,
    network: Network | None = None,
) -> Pairs:
    """Contributions: how far each chunk's box is filled; the meters of volume and time, and the
    bound's place."""
    grid = [box for box in drawn.only(Box) if box.y_px >= 160]
    if plan.primitive != "all_to_all":
        yield from _filled(painted, grid, plan, step)
    begun = Plan(**{**vars(plan), "steps": plan.steps[:step]})
    size = num_bytes or 1.0
    sent = (float(sent_bytes(each, size).max()) for each in (begun, plan))
    told = [(*sent, lower_bound_bytes(plan.primitive, plan.num_ranks, size))]
    if network and num_bytes:
        told.append((time_us(begun, network, num_bytes), time_us(plan, network, num_bytes), 0.0))
    below = [words for words in drawn.only(Words) if words.x_px == 0 and words.y_px > 160]
    grey = style.KINDS["wait"].colour
    looks = {"full": [grey], "pale": [rgb(style.shade(grey, 3, 3))]}
    for words, (so_far, total, bound) in zip(below[: len(told)], told, strict=True):
        found = painted.length(looks, 188, 626, words.y_px - 10, words.y_px)
        most = max(total, bound) or 1.0
        yield found["full"] / 430, so_far / most
        yield (found["full"] + found["pale"]) / 430, total / most
        if bound:
            at = painted.upright_line(192, 626, words.y_px - 17, words.y_px - 14)
            yield (at - 190) / 430, bound / most


def _filled(painted: Painted, grid: Sequence[Box], plan: Plan, step: int) -> Pairs:
    """How far each chunk's box is filled, and whether it is there at all."""
    held = holdings(plan, step)
    parts = max(map(len, itertools.chain.from_iterable(holdings(plan))))
    for number, box in enumerate(grid[: plan.num_ranks * plan.num_chunks]):
        rank, chunk = divmod(number, plan.num_chunks)
        colour = style.CYCLE[(4 + chunk) % 16][0]  # the first four are of ranks
        looks = {"full": [colour], "pale": [rgb(style.shade(colour, 3, 3))]}
        # where ranks are many, an arrow of the chunk's colour passes 1.6 pixels from the box
        end = min(WIDTH_PX, box.x_px + box.width_px + 1.5)
        top = box.y_px + 1.5
        bottom = box.y_px + (3.2 if box.height_px >= 13 else box.height_px - 1.5)
        found = painted.length(looks, box.x_px - 1.5, end, top, bottom)
        yield found["full"] / box.width_px, len(held[rank][chunk]) / parts
        yield (found["full"] + found["pale"]) / box.width_px, float(bool(held[rank][chunk]))


def holders(
    painted: Painted, drawn: Sketch, num_ranks: int, held: Sequence[float], batch: Sequence[float]
) -> Pairs:
    """Layers and sequences: the part of all frames of a rank's row that is coloured."""
    frames = [box for box in drawn.only(Box) if not box.colour]
    for rank in range(num_ranks):
        y = drawn.only(Words)[2 + rank].y_px - 5
        mine = [frame for frame in frames if frame.y_px <= y <= frame.y_px + frame.height_px]
        for colour, true, own in (("#4f9fe3", held, mine[:-1]), ("#f2954b", batch, mine[-1:])):
            x0 = own[0].x_px
            x1 = own[-1].x_px + own[-1].width_px
            found = painted.length({colour: [colour]}, x0 - 2, min(WIDTH_PX, x1 + 2), y - 4, y + 4)
            gaps = (x1 - x0) / sum(frame.width_px for frame in own)
            yield found[colour] * gaps / (x1 - x0), true[rank]
