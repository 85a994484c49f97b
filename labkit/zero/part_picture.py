"""One weight on its ranks under stage 1 of ZeRO: reduce-scatter, update, all-gather."""

from collections.abc import Iterator

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend, origin, striped
from labkit.pictures.style import CYCLE
from labkit.units import check_whole
from labkit.words import catalogue, speaking

_WORDS = catalogue(
    [
        ("heading", "One weight on {} ranks, under stage 1"),
        ("gradient", "gradient"),
        ("sum", "its sum"),
        ("own", "the weight"),
        ("weight", "the weight, whole"),
        ("reduce_scatter", "reduce-scatter"),
        ("update", "update"),
        ("all_gather", "all-gather"),
        ("of_rank", "from rank {}"),
        ("of_all", "the sum of all"),
        ("updated", "updated"),
        ("old", "old, still there"),
        ("and_old", "{} (old: {})"),
        ("numbers", "columns: ranks, numbers: parts"),
        ("parts", "parts of rank {}"),
    ]
)
_PANELS = ("gradient", "sum", "own", "weight")
_ARROWS = ("reduce_scatter", "update", "all_gather")
_TOP_PX = 60.0
_ROW_PX = 19.0
_ARROW_PX = 112.0
_UPDATED = CYCLE[7]
"""the look of an updated part; a rank has one of the first six"""
_OLD = "#b8bcc2"
"""the colour of a part that the panel's step has left as it was"""


def drawn(num_ranks: int = 4, *, language: str | None = None) -> Sketch:
    """Four times the ranks, 2 to 6, a column each, and the parts of one weight, a row each. A rank
    has the whole gradient of its own data, then the sum of its own part, then its part of the
    weight, updated, and in the end all parts. Stage 1 frees nothing: what is old is grey."""
    check_whole(2, 6, num_ranks=num_ranks)
    return speaking(language, lambda words: _sketch(num_ranks, words))


def held(panel: str, rank: int, num_ranks: int) -> list[int]:
    """Which parts are up to date on a rank in a panel: all, or its own; the others are old."""
    return list(range(num_ranks)) if panel in ("gradient", "weight") else [rank]


def _sketch(num_ranks: int, words: dict[str, str]) -> Sketch:
    """The picture in one language."""
    names = _WORDS[words["code"]]
    grid_px = (WIDTH_PX - 3 * _ARROW_PX) / 4
    shapes: list[Shape] = []
    for number, panel in enumerate(_PANELS):
        left_px = number * (grid_px + _ARROW_PX)
        shapes.append(Words(left_px, _TOP_PX + 12, names[panel], bold=True))
        shapes += _grid(panel, num_ranks, left_px, grid_px)
    middle_px = _TOP_PX + 36 + _ROW_PX * num_ranks / 2
    for number, name in enumerate(_ARROWS):
        start_px = grid_px + number * (grid_px + _ARROW_PX) + 4
        end_px = start_px + _ARROW_PX - 12
        shapes.append(Words((start_px + end_px) / 2, middle_px - 8, names[name], "middle"))
        shapes.append(Line(((start_px, middle_px), (end_px, middle_px)), arrow=True))
    keys, height_px = legend(_keys(num_ranks, names), 0, _TOP_PX + 46 + _ROW_PX * num_ranks)
    table = [("", *(names[panel] for panel in _PANELS))]
    for rank in range(num_ranks):
        parts = (_told(panel, rank, num_ranks, names) for panel in _PANELS)
        table.append((names["parts"].format(rank), *parts))
    return Sketch(
        shapes=(*shapes, *keys),
        height_px=height_px,
        heading=names["heading"].format(num_ranks),
        badge=origin("computed", words),
        table=tuple(table),
        language=words["code"],
    )


def _told(panel: str, rank: int, num_ranks: int, names: dict[str, str]) -> str:
    """A rank's parts in a panel, in words."""
    new = held(panel, rank, num_ranks)
    old = [part for part in range(num_ranks) if part not in new]
    written, before = (" ".join(map(str, parts)) for parts in (new, old))
    return names["and_old"].format(written, before) if old else written


def _grid(panel: str, num_ranks: int, left_px: float, grid_px: float) -> Iterator[Shape]:
    """A column per rank, a box per part; a grey one for a part that is old."""
    pitch_px = grid_px / num_ranks
    for rank in range(num_ranks):
        x = left_px + pitch_px * rank
        yield Words(x + pitch_px / 2 - 2, _TOP_PX + 30, str(rank), "middle", 11, opacity=0.8)
        for part in range(num_ranks):
            y = _TOP_PX + 36 + _ROW_PX * part
            if part in held(panel, rank, num_ranks):
                yield from _box(panel, rank, part, num_ranks, (x, y, pitch_px - 4))
            else:
                yield Box(x, y, pitch_px - 4, _ROW_PX - 3, _OLD)


def _box(
    panel: str, rank: int, part: int, num_ranks: int, at: tuple[float, float, float]
) -> Iterator[Box]:
    """A part that a rank has: in its colour, in stripes of all, or updated; at (x, y), so wide."""
    x, y, width_px = at
    if panel == "sum":
        yield from striped(x, y, width_px, _ROW_PX - 3, range(num_ranks))
    elif panel == "gradient":
        yield Box(x, y, width_px, _ROW_PX - 3, CYCLE[rank][0], texts=(str(part),))
    else:
        yield Box(x, y, width_px, _ROW_PX - 3, *_UPDATED, (str(part),))


def _keys(num_ranks: int, names: dict[str, str]) -> list[tuple[tuple[Box, ...], str]]:
    """The legend's entries."""
    found: list[tuple[tuple[Box, ...], str]] = []
    for rank in range(num_ranks):
        found.append(((Box(0, -8, 22, 16, CYCLE[rank][0]),), names["of_rank"].format(rank)))
    stripes = tuple(_box("sum", 0, 0, num_ranks, (0, -8, 22)))
    found.append((stripes, names["of_all"]))
    found.append(((Box(0, -8, 22, 16, *_UPDATED),), names["updated"]))
    found.append(((Box(0, -8, 22, 16, _OLD),), names["old"]))
    return [*found, ((), names["numbers"])]
