"""A network as a drawing: which rank is linked with which, and how fast."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.collectives.network import Link, Network
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, legend
from labkit.pictures.style import CYCLE, KINDS
from labkit.shown import Shown
from labkit.units import format_us
from labkit.words import speaking

_LOOKS = (
    (4.0, ()),
    (2.0, (7.0, 4.0)),
    (1.5, (2.0, 3.0)),
    (1.2, (1.0, 5.0)),
)  # widths and dashes of links, the fastest first
_RING_PX = 2.2
_LANE_PX = 7.0
_WAYS = (CYCLE[2][0], CYCLE[3][0])  # colours of a shared wire's two directions
_MIDDLE_PX = (WIDTH_PX / 2, 206)  # of the islands' ellipse
_TOP_PX = 62
_FEW = 4  # links between islands that are drawn one by one

Island = tuple[int, ...]  # its ranks
Ends = tuple[int | Island, int | Island]


class _Kind(NamedTuple):
    """What links have in common that look alike; sorted, the fastest come first."""

    minus_gb_per_s: float
    """the bandwidth, negated"""
    alpha_us: float
    """what any message takes"""
    is_shared: bool
    """whether such links share a wire"""


@dataclass(frozen=True, kw_only=True)
class Way(Shown):
    """A ring's way through a network. Shows itself in a notebook."""

    links: Network
    """who is linked with whom"""
    order: tuple[int, ...]
    """the ranks of the ring in turn"""

    def _picture(self, language: str) -> Sketch:
        return network(self.links, order=self.order, language=language)


def network(links: Network, *, order: Sequence[int] = (), language: str | None = None) -> Sketch:
    """Who is linked with whom, and how fast: thick lines are fast, thin and broken ones slow.

    Ranks that the fastest links join stand in one island; a line between two islands stands for all
    of its kind between them, unless there are at most ``_FEW``. ``order`` draws a ring's way, with
    arrows. Raises ValueError for one that does not name every rank once.
    """
    if order and sorted(order) != [*range(links.num_ranks)]:
        raise ValueError(f"order names each of {links.num_ranks} ranks once; got {order}")
    found = _kinds(links)
    kinds = sorted(set(found.values()))
    home = _islands(links.num_ranks, [pair for pair in sorted(found) if found[pair] == kinds[0]])
    single = _single(found, home)
    boxes = _placed(home, has_gate=bool(single) or any(kind.is_shared for kind in kinds))
    joined = _joined(found, home, single)
    looks = _looks(len(kinds), len(joined))
    look_of = dict(zip(kinds, looks, strict=True))
    lines = [
        _between(boxes[a], boxes[b])._replace(**look_of[kind])
        for (a, b), kind in sorted(joined, key=_by_name)
    ]
    shared = {ends for ends, kind in joined if kind.is_shared and ends[0] in boxes}
    lines += _ring(order, boxes, home, shared)
    frames = [box for key, box in boxes.items() if key not in home]
    shapes = [*frames, *lines, *(boxes[rank] for rank in home)]
    end_px = max(box.y_px + box.height_px for box in boxes.values())

    def build(words: dict[str, str]) -> Sketch:
        speeds = {kind: _speed(kind, words) for kind in kinds}
        keys = _keys(speeds.values(), looks, bool(order), words)
        key_shapes, height_px = legend(keys, 0, end_px + 12)
        heading = words["network"].format(links.num_ranks)
        summary = words["colon"].join((heading, "; ".join(speeds.values())))
        return Sketch(
            shapes=(*shapes, *key_shapes),
            height_px=height_px,
            heading=heading,
            badge=words["stated"],
            numbers=_numbers(len(kinds), home, order, words),
            summary=words["stop"].format(summary),
            table=_table(links.num_ranks, {pair: speeds[kind] for pair, kind in found.items()}),
            language=words["code"],
        )

    return speaking(language, build)


# --- what there is ---


def _kinds(links: Network) -> dict[tuple[int, int], _Kind]:
    """The kind of every link."""
    found = {}
    for src, row in enumerate(links.links):
        for dst, link in enumerate(row):
            if link is not None:
                found[src, dst] = _kind(link)
    return found


def _kind(link: Link) -> _Kind:
    return _Kind(-link.bandwidth_gb_per_s, link.alpha_us, bool(link.wire))


def _islands(num_ranks: int, pairs: Sequence[tuple[int, int]]) -> dict[int, Island]:
    """Per rank, all those that pairs join it with, directly or through others."""
    label = list(range(num_ranks))
    for a, b in pairs:
        label = [label[a] if each == label[b] else each for each in label]
    home = {}
    for rank in range(num_ranks):
        home[rank] = tuple(np.flatnonzero(np.array(label) == label[rank]).tolist())
    return home


def _single(found: dict[tuple[int, int], _Kind], home: dict[int, Island]) -> set[tuple[int, int]]:
    """The links between islands, where they are few enough to be drawn one by one."""
    between = {(a, b): kind for (a, b), kind in found.items() if home[a] != home[b]}
    is_few = len({frozenset(pair) for pair in between}) <= _FEW
    is_shared = any(kind.is_shared for kind in between.values())
    return set(between) if is_few and not is_shared else set()


def _joined(
    found: dict[tuple[int, int], _Kind], home: dict[int, Island], single: set[tuple[int, int]]
) -> set[tuple[Ends, _Kind]]:
    """What a line is drawn for: each link within an island, those in ``single``, and of each other
    kind one between two islands."""
    joined = set()
    for (a, b), kind in found.items():
        is_drawn = home[a] == home[b] or (a, b) in single
        ends = (a, b) if is_drawn else (home[a], home[b])
        joined.add((tuple(sorted(ends, key=str)), kind))
    return joined


def _by_name(line: tuple[Ends, _Kind]) -> str:
    (a, b), kind = line
    return str((a, b, tuple(kind)))


# --- where it stands ---


def _placed(home: dict[int, Island], *, has_gate: bool) -> dict[int | Island, Box]:
    """The frame of each island, then the box of each rank: islands on an ellipse, ranks on a
    smaller one; with a gate, none where a wire meets the frame."""
    islands = list(dict.fromkeys(home.values()))
    num_islands = len(islands)
    wide, high = _ellipse(num_islands)
    tilt = 0.15 if num_islands > 1 else 0.0
    middles = _around(num_islands, *_MIDDLE_PX, 424 - wide, 136 - high)
    frames = {}
    boxes = {}
    for island, (x, y) in zip(islands, middles, strict=True):
        if num_islands > 1:
            frames[island] = Box(x - wide - 24, y - high - 14, 2 * wide + 48, 2 * high + 28)
        turn = np.pi / len(island) / (1 + len(island) % 2) if has_gate else tilt
        places = _around(len(island), x, y, wide, high, turn)
        for rank, place in zip(island, places, strict=True):
            boxes[rank] = _rank_box(rank, *place)
    placed = frames | boxes
    up = min(box.y_px for box in placed.values()) - _TOP_PX
    return {key: box._replace(y_px=box.y_px - up) for key, box in placed.items()}


def _ellipse(num_islands: int) -> tuple[float, float]:
    """Half the width and half the height of the ellipse that an island's ranks stand on."""
    if num_islands == 1:
        return 390, 118
    return min(150, 340 / num_islands), min(85, 150 / num_islands)


def _rank_box(rank: int, x: float, y: float) -> Box:
    return Box(x - 16, y - 10, 32, 20, KINDS["wait"].colour, texts=(str(rank),))


def _around(
    count: int, x: float, y: float, wide: float, high: float, tilt: float = 0.0
) -> list[tuple[float, float]]:
    """Places on an ellipse, clockwise from the left (tilted: a little above); one alone is in the
    middle."""
    if count == 1:
        return [(x, y)]
    turns = np.pi + tilt + 2 * np.pi * np.arange(count) / count
    return [(x + wide * np.cos(turn), y + high * np.sin(turn)) for turn in turns.tolist()]


def _between(a: Box, b: Box) -> Line:
    """A line from the edge of one box to the edge of another."""
    ax, ay = _centre(a)
    bx, by = _centre(b)
    dx = (bx - ax) or 1e-9
    dy = (by - ay) or 1e-9
    out_a = min(a.width_px / 2 / abs(dx), a.height_px / 2 / abs(dy))
    out_b = min(b.width_px / 2 / abs(dx), b.height_px / 2 / abs(dy))
    return Line(((ax + dx * out_a, ay + dy * out_a), (bx - dx * out_b, by - dy * out_b)))


def _ring(
    order: Sequence[int],
    boxes: dict[int | Island, Box],
    home: dict[int, Island],
    shared: set[Ends],
) -> list[Line]:
    """An arrow from each rank to the next. Those that leave an island by a wire that all share run
    side by side along it, each direction in its colour."""
    lanes: dict[Ends, list[tuple[int, int]]] = {}
    arrows = []
    for a, b in zip(order, [*order[1:], *order[:1]], strict=True):
        ends = tuple(sorted((home[a], home[b]), key=str))
        if ends in shared and home[a] != home[b]:
            lanes.setdefault(ends, []).append((a, b))
        else:
            arrows.append(_between(boxes[a], boxes[b]))
    for ends, pairs in lanes.items():
        (ax, ay), (bx, by) = _between(boxes[ends[0]], boxes[ends[1]]).points_px
        length = np.hypot(bx - ax, by - ay)
        across = np.array([ay - by, bx - ax]) / length
        pairs.sort(key=lambda pair: sum(across @ _centre(boxes[rank]) for rank in pair))
        for lane, (a, b) in enumerate(pairs):
            off_x, off_y = (across * _LANE_PX * (lane - (len(pairs) - 1) / 2)).tolist()
            way = [(ax + off_x, ay + off_y), (bx + off_x, by + off_y)]
            way = way if home[a] == ends[0] else way[::-1]
            out = _between(boxes[a], Box(*way[0], 0, 0)).points_px[0]
            into = _between(Box(*way[1], 0, 0), boxes[b]).points_px[1]
            arrows.append(Line((out, *way, into), _WAYS[home[a] != ends[0]]))
    return [arrow._replace(width_px=_RING_PX, arrow=True) for arrow in arrows]


def _centre(box: Box) -> tuple[float, float]:
    return box.x_px + box.width_px / 2, box.y_px + box.height_px / 2


# --- what it looks like and is called ---


def _looks(num_kinds: int, num_lines: int) -> list[dict]:
    """Width, dash and colour of each kind's lines: thinner where there are many."""
    scale = max(0.35, min(1.0, 30 / max(1, num_lines)))
    looks = [
        {"width_px": scale * width, "dash": dash, "colour": CYCLE[number][0]}
        for number, (width, dash) in enumerate(_LOOKS)
    ]
    return [looks[min(number, len(looks) - 1)] for number in range(num_kinds)]


def _speed(kind: _Kind, words: dict[str, str]) -> str:
    text = f"{-kind.minus_gb_per_s:g} GB/s{words['comma']}{format_us(kind.alpha_us)}"
    return text + words["shared"] if kind.is_shared else text


def _keys(
    speeds: Iterable[str], looks: Iterable[dict], has_ring: bool, words: dict[str, str]
) -> list[tuple[tuple[Shape, ...], str]]:
    """The legend: a sample of each kind's line, and of the ring's arrows."""
    sample = Line(((0, 0), (22, 0)))
    keys = [((sample._replace(**look),), speed) for speed, look in zip(speeds, looks, strict=True)]
    if has_ring:
        keys.append(((sample._replace(width_px=_RING_PX, arrow=True),), words["ring_order"]))
    return keys


def _numbers(
    num_kinds: int, home: dict[int, Island], order: Sequence[int], words: dict[str, str]
) -> tuple[tuple[str, str], ...]:
    numbers = []
    if num_kinds > 1:
        numbers.append((words["islands"], str(len(set(home.values())))))
    if order:
        numbers.append((words["ring_order"], " → ".join(map(str, order))))
    if order and num_kinds > 1:
        ends = zip(order, [*order[1:], *order[:1]], strict=True)
        crossings = sum(home[a] != home[b] for a, b in ends)
        numbers.append((words["crossings"], f"{crossings} / {len(order)}"))
    return tuple(numbers)


def _table(num_ranks: int, speeds: dict[tuple[int, int], str]) -> tuple[tuple[str, ...], ...]:
    """A row for each source, a column for each destination."""
    ranks = range(num_ranks)
    rows = [("rank", *map(str, ranks))]
    for src in ranks:
        rows.append((str(src), *(speeds.get((src, dst), "") for dst in ranks)))
    return tuple(rows)
