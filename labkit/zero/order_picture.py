"""What a rank does in one step under each stage of ZeRO, from left to right: computing, sending,
updating."""

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend, origin
from labkit.pictures.style import style
from labkit.units import check_whole
from labkit.words import catalogue, speaking

_WORDS = catalogue(
    [
        ("heading", "A step of each stage"),
        ("update", "update"),
        ("all_reduce", "all-reduce"),
        ("reduce_scatter", "reduce-scatter"),
        ("all_gather", "all-gather"),
        ("forward", "forward"),
        ("backward", "backward"),
        ("number", "numbers: layers"),
        ("stage", "stage"),
        ("turns", "in this order"),
    ]
)
_LOOKS = ("forward", "backward", "all_reduce", "reduce_scatter", "all_gather", "update")
_TOP_PX = 56.0
_ROW_PX = 34.0
_LEFT_PX = 66.0
Action = tuple[str, int]
"""what is done, and in which layer; -1: in all of them at once"""


def actions(stage: int, num_layers: int = 2) -> list[Action]:
    """What a rank does in a step at a stage of ZeRO, 0 to 3, in order."""
    check_whole(0, 3, stage=stage)
    check_whole(1, 3, num_layers=num_layers)
    found: list[Action] = []
    for layer in range(num_layers):
        found += [("all_gather", layer)] if stage == 3 else []
        found.append(("forward", layer))
    for layer in reversed(range(num_layers)):
        found += [("all_gather", layer)] if stage == 3 else []
        found.append(("backward", layer))
        found += [("reduce_scatter", layer)] if stage >= 2 else []
    if stage < 2:
        found.append(("all_reduce" if stage == 0 else "reduce_scatter", -1))
    found.append(("update", -1))
    return found + ([("all_gather", -1)] if stage in (1, 2) else [])


def drawn(num_layers: int = 2, *, language: str | None = None) -> Sketch:
    """The four stages under each other, for a model of ``num_layers``, 1 to 3; what is done for all
    layers at once is a wider box."""
    rows = [actions(stage, num_layers) for stage in range(4)]
    return speaking(language, lambda words: _sketch(rows, num_layers, words))


def _sketch(rows: list[list[Action]], num_layers: int, words: dict[str, str]) -> Sketch:
    """The picture in one language."""
    names = _WORDS[words["code"]]
    unit_px = (WIDTH_PX - _LEFT_PX) / max(_widths(row, num_layers) for row in rows)
    shapes: list[Shape] = []
    for number, row in enumerate(rows):
        x = _LEFT_PX
        y = _TOP_PX + number * _ROW_PX
        shapes.append(Words(0, y + 18, f"ZeRO {number}", bold=True))
        for kind, layer in row:
            width_px = unit_px * _widths([(kind, layer)], num_layers)
            look = style("optimizer" if kind == "update" else kind)
            text = names[kind] if layer < 0 else str(layer)
            shapes.append(Box(x, y, width_px - 2, 26, look.colour, look.hatch, (text,)))
            x += width_px
    keys, end_px = legend(_samples(names), 0, _TOP_PX + 4 * _ROW_PX + 6)
    table = [(names["stage"], names["turns"])]
    table += [(f"ZeRO {number}", _told(row, names)) for number, row in enumerate(rows)]
    return Sketch(
        shapes=(*shapes, *keys),
        height_px=end_px,
        heading=names["heading"],
        badge=origin("computed", words),
        table=tuple(table),
        language=words["code"],
    )


def _widths(row: list[Action], num_layers: int) -> int:
    """How many units of width actions take: the update one, what is for all layers as many as
    these are, an all-reduce twice that, because it sends as much as the two others."""
    found = 0
    for kind, layer in row:
        width = num_layers if layer < 0 and kind != "update" else 1
        found += 2 * width if kind == "all_reduce" else width
    return found


def _samples(names: dict[str, str]) -> list[tuple[tuple[Box, ...], str]]:
    """The legend's entries."""
    found: list[tuple[tuple[Box, ...], str]] = []
    for kind in _LOOKS:
        look = style("optimizer" if kind == "update" else kind)
        found.append(((Box(0, -7, 22, 14, look.colour, look.hatch),), names[kind]))
    return [*found, ((), names["number"])]


def _told(row: list[Action], names: dict[str, str]) -> str:
    """A row in words."""
    told = [names[kind] + ("" if layer < 0 else f" {layer}") for kind, layer in row]
    return " | ".join(told)
