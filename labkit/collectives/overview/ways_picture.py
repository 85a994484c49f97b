"""Who sends to whom in an all-reduce, until its sums are made: one algorithm beside another."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from labkit.collectives.algorithms import plan, square_island
from labkit.collectives.plans import Plan
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words
from labkit.pictures.style import KINDS
from labkit.shown import Shown
from labkit.units import check_whole, check_word
from labkit.words import called, catalogue, speaking

ALGORITHMS = ("parameter_server", "ring", "tree", "hierarchical")
Place = tuple[float, float]
"""x and y of a rank in its panel, from 0 to 1"""
_WORDS = catalogue([("heading", "Who sends to whom, and in which step, until the sums are made")])
_TOP_PX = 64.0
_PANEL_PX = WIDTH_PX / 4
_INSET_PX = 40.0  # from a panel's edge to its outermost ranks
_HIGH_PX = 122.0  # from the highest ranks to the lowest
_HALF_PX = 13.0  # half of a rank's box


@dataclass(frozen=True, kw_only=True)
class Ways(Shown):
    """The messages of all-reduces, of which only those that add are drawn: what follows hands the
    sums round in the same way. Shows itself in a notebook."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """up to four of ALGORITHMS"""
    ranks: int = 4
    """N"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithms", tuple(self.algorithms))
        check_whole(1, 4, algorithms=len(self.algorithms))
        for name in self.algorithms:
            check_word(name, ALGORITHMS, "an algorithm")
        check_whole(2, 6, ranks=self.ranks)

    def _picture(self, language: str) -> Sketch:
        return _ways(self, language=language)


def _ways(drawn: Ways, *, language: str | None = None) -> Sketch:
    """A panel per algorithm: a box is a rank, and an arrow a message with the number of its
    step."""
    plans = [plan("all_reduce", name, drawn.ranks) for name in drawn.algorithms]

    def build(words: dict[str, str]) -> Sketch:
        shapes: list[Shape] = []
        first_px = (WIDTH_PX - _PANEL_PX * len(plans)) / 2
        for number, steps in enumerate(plans):
            shapes += _panel(steps, first_px + _PANEL_PX * number, words["code"])
        return Sketch(
            shapes=tuple(shapes),
            height_px=_TOP_PX + _HIGH_PX + 62,
            heading=_WORDS[words["code"]]["heading"],
            badge=words["simulated"],
            table=_table(plans, words),
            language=words["code"],
        )

    return speaking(language, build)


def _arrows(steps: Plan) -> dict[tuple[int, int], list[int]]:
    """(source, destination) -> the steps, from 1, in which it sends something to be added."""
    found = defaultdict(list)
    for number, messages in enumerate(steps.steps, start=1):
        for message in messages:
            if message.op == "add":
                found[message.src, message.dst].append(number)
    return dict(found)


def _places(steps: Plan) -> list[Place]:
    """Where each rank stands: on a circle, in rows of islands, or below the rank it sends to."""
    size = steps.num_ranks
    if steps.algorithm == "ring":
        turns = 2 * np.pi * np.arange(size) / size
        return [(0.5 - np.cos(turn) / 2, 0.5 - np.sin(turn) / 2) for turn in turns.tolist()]
    if steps.algorithm == "hierarchical":
        across = square_island(size)
        return [
            (_spread(rank % across, across), _spread(rank // across, size // across))
            for rank in range(size)
        ]
    return _levels(list(_arrows(steps)), size)


def _levels(edges: Iterable[tuple[int, int]], size: int) -> list[Place]:
    """The ranks of a tree, side by side with those that are as far from rank 0; one that has its
    level for itself stands below the rank it sends to."""
    parents = dict(edges)
    depth = [0]
    for rank in range(1, size):  # a parent has a lower number
        depth.append(depth[parents[rank]] + 1)
    found: list[Place] = []
    for rank, level in enumerate(depth):
        count = depth.count(level)
        is_alone = rank and count == 1
        x = found[parents[rank]][0] if is_alone else _spread(depth[:rank].count(level), count)
        found.append((x, level / max(depth)))
    return found


def _spread(number: int, count: int) -> float:
    """Places side by side from 0 to 1; one alone is in the middle."""
    return number / (count - 1) if count > 1 else 0.5


def _panel(steps: Plan, left_px: float, code: str) -> Iterator[Shape]:
    """One algorithm: its name, its ranks, its arrows."""
    yield Words(
        left_px + _PANEL_PX / 2, _TOP_PX, called((steps.algorithm,), code), "middle", 13, True
    )
    at = []
    for x, y in _places(steps):
        at.append(
            (left_px + _INSET_PX + x * (_PANEL_PX - 2 * _INSET_PX), _TOP_PX + 28 + y * _HIGH_PX)
        )
    found = _arrows(steps)
    for (src, dst), numbers in found.items():
        both = (dst, src) in found
        yield from _arrow(np.array(at[src]), np.array(at[dst]), _run(numbers), both)
    for rank, (x, y) in enumerate(at):
        size = 2 * _HALF_PX
        yield Box(x - _HALF_PX, y - _HALF_PX, size, size, KINDS["wait"].colour, texts=(str(rank),))


def _arrow(start: np.ndarray, end: np.ndarray, text: str, both: bool) -> Iterator[Shape]:
    """From the edge of one box to the edge of another, its step beside it; where another goes the
    other way, each keeps to its side."""
    way = (end - start) / np.hypot(*(end - start))
    aside = np.array((-way[1], way[0]))
    out = way * (_HALF_PX / np.abs(way).max() + 3)
    shift = aside * (4.0 if both else 0.0)
    yield Line((tuple(start + out + shift), tuple(end - out + shift)), arrow=True)
    x, y = (start + end) / 2 + shift + aside * 11
    yield Words(float(x), float(y) + 4, text, "middle", 11)


def _run(numbers: list[int]) -> str:
    """Steps in few letters: "2", or "1–3"."""
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _table(plans: list[Plan], words: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """Per algorithm, who sends to whom in which step."""
    lines = [("", words["step"], "")]
    for steps in plans:
        pairs = sorted(_arrows(steps).items(), key=lambda pair: pair[1])
        for numbers, group in itertools.groupby(pairs, key=lambda pair: _run(pair[1])):
            told = ", ".join(f"{src} → {dst}" for (src, dst), _ in group)
            lines.append((called((steps.algorithm,), words["code"]), numbers, told))
    return tuple(lines)
