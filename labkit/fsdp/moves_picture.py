"""The three moves of FSDP for one layer, drawn: gather the slices, compute, scatter the sum."""

from collections.abc import Iterator
from dataclasses import dataclass

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend, striped
from labkit.pictures.style import CYCLE
from labkit.shown import Shown
from labkit.units import check_whole
from labkit.words import catalogue, speaking

_WORDS = catalogue(
    [
        ("heading", "One layer on {} ranks"),
        ("rank", "rank"),
        ("of_rank", "of rank {}"),
        ("mean", "the mean over the ranks"),
        ("slices", "weights, in slices"),
        ("whole", "weights, whole"),
        ("gradients", "gradients, whole"),
        ("scattered", "gradients, in slices"),
        ("all_gather", "all-gather"),
        ("compute", "compute"),
        ("reduce_scatter", "reduce-scatter"),
        ("step", "4 step: each rank updates its own slice, without a message"),
    ]
)
_MOVES = ("all_gather", "compute", "reduce_scatter")
_TOP_PX = 56.0
_ROW_PX = 24.0
_ARROW_PX = 104.0
_NUMBER_PX = 14.0  # the rank's, left of its row
Column = list[tuple[int, ...]]
"""the slices of a layer on one rank: the ranks that each is of, () where it is not there"""


@dataclass(frozen=True, kw_only=True)
class ThreeMoves(Shown):
    """What each rank holds of a layer before and after all-gather, computation and reduce-scatter.
    Shows itself in a notebook. Raises ValueError for other than 2 to 4 ranks."""

    ranks: int = 3
    """N; a layer is cut into as many slices"""

    def __post_init__(self) -> None:
        check_whole(2, 4, ranks=self.ranks)

    def _picture(self, language: str) -> Sketch:
        return speaking(language, lambda words: _sketch(self.ranks, words))


def held(num_ranks: int) -> dict[str, list[Column]]:
    """{when: [rank][slice]}, in order: weights in slices and whole, gradients whole and in slices.
    A gathered slice is still of the rank that keeps it; a gradient is of the rank whose batch it
    comes from, the mean of all. Raises ValueError for other than 2 to 4 ranks."""
    check_whole(2, 4, num_ranks=num_ranks)
    every = range(num_ranks)
    whole: Column = [(row,) for row in every]
    mean = tuple(every)
    return {
        "slices": [_alone(rank, (rank,), num_ranks) for rank in every],
        "whole": [whole for _ in every],
        "gradients": [[(rank,)] * num_ranks for rank in every],
        "scattered": [_alone(rank, mean, num_ranks) for rank in every],
    }


def _alone(place: int, of_ranks: tuple[int, ...], num_ranks: int) -> Column:
    """One slice at its place, and none of the others."""
    return [of_ranks if row == place else () for row in range(num_ranks)]


def _sketch(num_ranks: int, words: dict[str, str]) -> Sketch:
    """The picture in one language."""
    names = _WORDS[words["code"]]
    grid_px = (WIDTH_PX - 3 * _ARROW_PX) / 4
    shapes: list[Shape] = []
    table = [(names["rank"], *map(str, range(num_ranks)))]
    for place, (when, columns) in enumerate(held(num_ranks).items()):
        x = place * (grid_px + _ARROW_PX)
        shapes.append(Words(x, _TOP_PX, names[when], bold=True))
        shapes += _grid(columns, "w" if place < 2 else "g", x, grid_px)
        if place:
            y = _TOP_PX + 14 + _ROW_PX * num_ranks / 2
            shapes.append(Line(((x - _ARROW_PX + 6, y), (x - 10, y)), arrow=True))
            move = f"{place} {names[_MOVES[place - 1]]}"
            shapes.append(Words(x - _ARROW_PX / 2 - 2, y - 8, move, "middle", 11))
        told = [", ".join(map(str, _rows(column))) for column in columns]
        table.append((names[when], *told))
    keys = [
        ((Box(0, -7, 22, 14, CYCLE[rank][0]),), names["of_rank"].format(rank))
        for rank in range(num_ranks)
    ]
    keys.append((tuple(striped(0, -7, 22, 14, range(num_ranks))), names["mean"]))
    bottom_px = _TOP_PX + 40 + _ROW_PX * num_ranks

    shapes.append(Words(WIDTH_PX, bottom_px, names["step"], "end", 11))
    key_shapes, height_px = legend(keys, 0, bottom_px + 14)
    return Sketch(
        shapes=(*shapes, *key_shapes),
        height_px=height_px,
        heading=names["heading"].format(num_ranks),
        badge=words["simulated"],
        table=tuple(table),
        language=words["code"],
    )


def _rows(column: Column) -> list[int]:
    """The slices that are there."""
    return [row for row, of_ranks in enumerate(column) if of_ranks]


def _grid(columns: list[Column], letter: str, left_px: float, grid_px: float) -> Iterator[Shape]:
    """A row per rank, behind its number, and in it a box per slice."""
    pitch_px = (grid_px - _NUMBER_PX) / len(columns)
    for rank, column in enumerate(columns):
        y = _TOP_PX + 14 + _ROW_PX * rank
        yield Words(left_px, y + 14, str(rank), size_px=11, opacity=0.8)
        for place, of_ranks in enumerate(column):
            x = left_px + _NUMBER_PX + pitch_px * place
            if len(of_ranks) > 1:
                yield from striped(x, y, pitch_px - 4, _ROW_PX - 4, of_ranks)
            elif of_ranks:
                look = CYCLE[of_ranks[0]][0]
                yield Box(x, y, pitch_px - 4, _ROW_PX - 4, look, texts=(f"{letter}{place}",))
            else:
                yield Box(x, y, pitch_px - 4, _ROW_PX - 4, fill=0.0)
