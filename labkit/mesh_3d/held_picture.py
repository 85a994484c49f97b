"""What each rank of a step holds of every layer's parameters, as boxes."""

from collections.abc import Iterator
from typing import NamedTuple

from labkit.mesh_3d import held
from labkit.mesh_3d.step import Step
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend
from labkit.pictures.style import CYCLE, clipped
from labkit.units import format_share
from labkit.words import catalogue, speaking

_WORDS = catalogue(
    [
        ("title", "What each rank holds of every layer's parameters"),
        ("embedding", "embedding"),
        ("block", "block {}"),
        ("head", "output"),
        ("of all", "of all parameters"),
        ("rest", "not on this rank"),
        ("stage", "stage {}"),
        ("rank", "rank"),
        ("predicted", "predicted"),
    ]
)
_SIDE_PX = 64.0
"""left and right of the layers"""
_TOP_PX = 84.0


def parts(step: Step, *, language: str | None = None) -> Sketch:
    """Every rank's part of every layer, a layer as wide as it has parameters: tp cuts it from top
    to bottom where the plan names its weights, and dp_shard from left to right if it shards them.
    Raises ValueError where there is no such step."""
    held_bytes = step.states().bytes_by()["parameter"]
    layers = list(_layers(step))
    scale = (WIDTH_PX - 2 * _SIDE_PX) / sum(each.num_elements for each in layers)
    most = sum(each.num_elements for each in layers) * 4
    high = max(8.0, min(26.0, 360 / step.ranks))

    def sketch(words: dict[str, str]) -> Sketch:
        say = _WORDS[words["code"]]
        shapes: list[Shape] = list(_layer_names(layers, scale, say))
        shares = []
        for rank in range(step.ranks):
            y = _TOP_PX + rank * (high + 6)
            shares.append(format_share(held_bytes[rank] / most))
            shapes.append(Words(_SIDE_PX - 8, y + high / 2 + 4, f"rank {rank}", "end", 11))
            shapes.append(Words(WIDTH_PX - _SIDE_PX + 8, y + high / 2 + 4, shares[-1], size_px=11))
            shapes += _row_of_parts(step, rank, layers, (scale, y, high))
        named = [(say["stage"].format(stage), CYCLE[stage % 16]) for stage in range(step.pp)]
        keys = [([Box(0, -7, 22, 14, *look)], name) for name, look in named]
        keys.append(([Box(0, -7, 22, 14)], say["rest"]))
        below, end_px = legend(keys, 0, _TOP_PX + step.ranks * (high + 6) + 14)
        rows = ((str(rank), share) for rank, share in enumerate(shares))
        return Sketch(
            shapes=(*shapes, *below),
            height_px=end_px,
            heading=say["title"],
            badge=say["predicted"],
            table=((say["rank"], say["of all"]), *rows),
            language=words["code"],
        )

    return speaking(language, sketch)


class _Layer(NamedTuple):
    """A layer of the model, as ``parts`` draws it."""

    stage: int
    unit: held.Unit
    num_cut: int
    """its parameters that tp cuts, on all ranks"""
    num_copied: int
    """those that every tp rank has"""

    @property
    def num_elements(self) -> int:
        """Together."""
        return self.num_cut + self.num_copied


def _layers(step: Step) -> Iterator[_Layer]:
    """From the first stage to the last."""
    for stage in range(step.pp):
        for unit in held.units(step, stage):
            cut = sum(each.num_elements for each in unit.weights if each.is_cut)
            yield _Layer(stage, unit, cut * step.tp, unit.num_elements - cut)


def _layer_names(layers: list[_Layer], scale: float, say: dict[str, str]) -> Iterator[Words]:
    """Above their columns."""
    x = _SIDE_PX
    for number, each in enumerate(layers):
        name = say[each.unit.kind].format(number)
        width = each.num_elements * scale
        yield Words(x + width / 2, _TOP_PX - 8, clipped(name, width, 11), "middle", 11)
        x += width


def _row_of_parts(
    step: Step, rank: int, layers: list[_Layer], at: tuple[float, float, float]
) -> Iterator[Box]:
    """A rank's layers: ``at`` is pixels for a parameter, its upper edge, its height."""
    scale, y, high = at
    place = step.mesh.coordinates(rank)
    size = step.dp_shard if step.zero == 3 else 1
    x = _SIDE_PX
    for each in layers:
        wide = each.num_elements * scale
        yield Box(x, y, wide - 2, high)
        if each.stage == place["pp"]:
            look = CYCLE[each.stage % 16]
            cut = (wide - 2) * each.num_cut / each.num_elements
            part = cut / size
            rest = (wide - 2 - cut) / size
            sheet = place["dp_shard"] % size
            if cut:
                top = y + place["tp"] * high / step.tp
                yield Box(x + sheet * part, top, part, high / step.tp, *look)
            yield Box(x + cut + sheet * rest, y, rest, high, *look)
        x += wide
