"""Six collectives in one drawing: what every rank holds before each of them, and after it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.collectives.algorithms import plan
from labkit.collectives.plans import Plan, holdings
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend, striped
from labkit.pictures.style import CYCLE
from labkit.shown import Shown
from labkit.units import check_whole
from labkit.words import WORDS, called, catalogue, speaking

COLLECTIVES = (
    "broadcast",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
)
Held = tuple[tuple[int, ...], int]
"""whose numbers stand in a chunk, and which of their numbers it is"""
_WORDS = catalogue(
    [
        ("heading", "Six collectives on {} ranks"),
        ("of_rank", "from rank {}"),
        ("sum", "the sum of all"),
        ("before", "before"),
        ("after", "after"),
    ]
)
_TOP_PX = 60.0
_ACROSS = 3
_ROW_PX = 17.0
_ARROW_PX = 34.0


@dataclass(frozen=True, kw_only=True)
class Six(Shown):
    """Broadcast, reduce, all-reduce, all-gather, reduce-scatter and all-to-all, before and after.
    Shows itself in a notebook."""

    ranks: int = 4
    """N; every buffer is cut into as many chunks"""

    def __post_init__(self) -> None:
        check_whole(2, 6, ranks=self.ranks)

    def _picture(self, language: str) -> Sketch:
        return six(self.ranks, language=language)


def six(num_ranks: int = 4, *, language: str | None = None) -> Sketch:
    """A column is a rank, a row a chunk of its buffer. A colour says from which rank it came,
    stripes are the sum of all; the number says which chunk it is."""

    def build(words: dict[str, str]) -> Sketch:
        mine = _WORDS[words["code"]]
        shapes: list[Shape] = []
        for number, name in enumerate(COLLECTIVES):
            shapes += _panel(name, num_ranks, number, words["code"])
        keys = []
        for rank in range(num_ranks):
            box = Box(0, -8, 22, 16, CYCLE[rank][0])
            keys.append(((box,), mine["of_rank"].format(rank)))
        keys.append((tuple(striped(0, -8, 22, 16, range(num_ranks))), mine["sum"]))
        end_px = _TOP_PX + _panel_px(num_ranks) * -(-len(COLLECTIVES) // _ACROSS)
        key_shapes, height_px = legend(keys, 0, end_px + 4)
        return Sketch(
            shapes=(*shapes, *key_shapes),
            height_px=height_px,
            heading=mine["heading"].format(num_ranks),
            badge=words["simulated"],
            table=_table(num_ranks, mine, words["code"]),
            language=words["code"],
        )

    return speaking(language, build)


def before_and_after(name: str, num_ranks: int) -> tuple[list[list[Held | None]], ...]:
    """[rank][row] of a collective, before and after: what stands there, None where that is nothing
    or not defined."""
    steps = plan(name, "pairwise" if name == "all_to_all" else "ring", num_ranks)
    return _seen(steps, 0), _seen(steps, len(steps.steps))


def _seen(steps: Plan, num_steps: int) -> list[list[Held | None]]:
    """What stands where after so many steps. At the end only what is whole is defined: partial
    sums that an algorithm leaves behind are not."""
    held = holdings(steps, num_steps)
    is_over = num_steps == len(steps.steps)
    whole = max(map(len, itertools.chain(*held)))
    size = steps.num_ranks
    found = []
    for rank, chunks in enumerate(held):
        column: list[Held | None] = []
        for row in range(size):
            chunk = row
            if steps.primitive == "all_to_all":
                chunk = row * size + rank if is_over else rank * size + row
            parts = tuple(sorted(chunks[chunk]))
            column.append((parts, chunk % size) if len(parts) == whole else None)
        found.append(column)
    return found


# --- where it stands ---


def _panel_px(num_ranks: int) -> float:
    """How high one collective is."""
    return 60 + _ROW_PX * num_ranks


def _panel(name: str, num_ranks: int, number: int, code: str) -> Iterator[Shape]:
    """One collective: its name, what is held before, an arrow, what is held after."""
    width_px = WIDTH_PX / _ACROSS
    left_px = width_px * (number % _ACROSS)
    top_px = _TOP_PX + _panel_px(num_ranks) * (number // _ACROSS)
    grid_px = (width_px - _ARROW_PX - 28) / 2
    yield Words(left_px, top_px + 14, called((name,), code), bold=True)
    before, after = before_and_after(name, num_ranks)
    top_px += 24
    yield from _grid(before, left_px, top_px, grid_px)
    middle_px = top_px + 14 + _ROW_PX * num_ranks / 2
    start_px = left_px + grid_px + 4
    ends = ((start_px, middle_px), (start_px + _ARROW_PX - 8, middle_px))
    yield Line(ends, arrow=True)
    yield from _grid(after, left_px + grid_px + _ARROW_PX, top_px, grid_px)


def _grid(
    held: list[list[Held | None]], left_px: float, top_px: float, grid_px: float
) -> Iterator[Shape]:
    """A column per rank, a box per chunk."""
    pitch_px = grid_px / len(held)
    width_px = pitch_px - 4
    for rank, column in enumerate(held):
        x = left_px + pitch_px * rank
        yield Words(x + width_px / 2, top_px + 9, str(rank), "middle", 11, opacity=0.8)
        for row, found in enumerate(column):
            y = top_px + 14 + _ROW_PX * row
            height_px = _ROW_PX - 3
            if found is None:
                yield Box(x, y, width_px, height_px, fill=0.0)
            elif len(found[0]) > 1:
                yield from striped(x, y, width_px, height_px, found[0])
            else:
                colour = CYCLE[found[0][0]][0]
                yield Box(x, y, width_px, height_px, colour, texts=(str(found[1]),))


def _table(num_ranks: int, mine: dict[str, str], code: str) -> tuple[tuple[str, ...], ...]:
    """Per collective and rank, which chunks it holds before and after, and whose."""
    lines = [("rank", *map(str, range(num_ranks)))]
    for name in COLLECTIVES:
        for when, held in zip(("before", "after"), before_and_after(name, num_ranks), strict=True):
            told = [_told(column, mine, code) for column in held]
            lines.append((f"{called((name,), code)}, {mine[when]}", *told))
    return tuple(lines)


def _told(column: list[Held | None], mine: dict[str, str], code: str) -> str:
    """Whose chunks a rank holds, and which."""
    told = []
    held = [each for each in column if each]
    for parts, found in itertools.groupby(held, key=lambda each: each[0]):
        whose = mine["sum"] if len(parts) > 1 else mine["of_rank"].format(parts[0])
        told.append(f"{whose}{WORDS[code]['colon']}{' '.join(str(which) for _, which in found)}")
    return WORDS[code]["comma"].join(told)
