"""Which part of which weight each rank holds, and its states: cut by tp, then shared out along
dp_shard.

A name is the whole model's, and of a weight that tp cuts also the part: "layers.1.up.weight, part 0
of 2" holds the rows of tp rank 0. Slices are of that part, which FSDP cuts along its first
dimension. The embedding and the output layer lie whole on each tp rank of their stage.
"""

import functools
from collections.abc import Iterable, Iterator
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from labkit.sharding import partition
from labkit.shards import PADDING, Shards, from_rows
from labkit.tensor_parallel import cut
from labkit.units import check_whole

if TYPE_CHECKING:
    from labkit.mesh_3d.step import Step

ADAM = ("exp_avg", "exp_avg_sq")
"""The optimizer's states of each weight, fp32."""
MOST_DRAWN = 64
"""ranks whose slices are listed"""


class Weight(NamedTuple):
    """What tp leaves of a weight on a rank."""

    name: str
    """as the whole model calls it"""
    shape: tuple[int, ...]
    """of the part"""
    is_cut: bool
    """whether the tp ranks have different parts"""

    @property
    def num_elements(self) -> int:
        """Of the part."""
        return prod(self.shape)

    def part(self, rank: int, size: int) -> str:
        """Its name, with the part of a tp rank."""
        return f"{self.name}, part {rank} of {size}" if self.is_cut and size > 1 else self.name


class Unit(NamedTuple):
    """A layer of the model: a block, the embedding or the head. FSDP gathers it at once."""

    name: str
    """in the model: "layers.3\""""
    kind: str
    """"embedding", "block" or "head\""""
    weights: tuple[Weight, ...]
    """in the model's order"""

    @property
    def num_elements(self) -> int:
        """Of all its weights, after tp."""
        return sum(each.num_elements for each in self.weights)

    def part_elements(self, size: int) -> int:
        """What each of ``size`` ranks hands to a gather: the longest shard of every weight, so that
        all gather alike."""
        return sum(partition.rows_elements(each.shape, size) for each in self.weights)


@functools.lru_cache(maxsize=64)
def units(step: "Step", stage: int) -> tuple[Unit, ...]:
    """The layers of a stage, in order. Raises ValueError for a stage that there is not."""
    check_whole(0, step.pp - 1, stage=stage)
    each = step.layers // step.pp
    block = [_weight(piece) for piece in cut.layer_pieces(step.shape(), step.tp, 0)]
    found = []
    if stage == 0:
        tables = {"token": step.vocab, "position": step.sequence}
        found.append(_unit("layers.0", "embedding", _tables(step, **tables)))
    for number in range(1 + stage * each, 1 + (stage + 1) * each):
        found.append(_unit(f"layers.{number}", "block", block))
    if stage == step.pp - 1:
        norm = [Weight(f"norm.{name}", (step.hidden,), False) for name in ("weight", "bias")]
        head = [*norm, *_tables(step, logits=step.vocab)]
        found.append(_unit(f"layers.{step.layers + 1}", "head", head))
    return tuple(found)


def _unit(name: str, kind: str, weights: Iterable[Weight]) -> Unit:
    """A layer by its name in the model."""
    return Unit(name, kind, tuple(each._replace(name=f"{name}.{each.name}") for each in weights))


def _tables(step: "Step", **rows: int) -> list[Weight]:
    """Tables that every tp rank holds whole."""
    return [Weight(f"{name}.weight", (each, step.hidden), False) for name, each in rows.items()]


def _weight(piece: cut.Piece) -> Weight:
    """A piece by the shape that is left of its weight."""
    shape = list(piece.shape)
    if piece.dim >= 0:
        shape[piece.dim] = sum(map(len, piece.ranges))
    return Weight(piece.name, tuple(shape), piece.dim >= 0)


def rank_elements(step: "Step", stage: int) -> int:
    """Parameters of a rank of a stage, after tp and before dp_shard."""
    return sum(unit.num_elements for unit in units(step, stage))


def states(step: "Step") -> Shards:
    """What every rank holds between the last backward and the optimizer: parameters, gradients
    (FSDP has reduced them), Adam's moments and its counters, fp32. Raises ValueError for more than
    ``MOST_DRAWN`` ranks."""
    check_whole(1, MOST_DRAWN, **{"ranks whose slices are listed": step.ranks})
    mesh = step.mesh
    rows: list[tuple] = []
    for stage in range(step.pp):
        weights = list(chain.from_iterable(unit.weights for unit in units(step, stage)))
        dealt = list(_dealt(step, weights))
        for rank in range(mesh.num_ranks):
            place = mesh.coordinates(rank)
            if place["pp"] != stage:
                continue
            parts = {each.name: each.part(place["tp"], step.tp) for each in weights}
            for of, kind, name, start, stop in dealt:
                if of == place["dp_shard"]:
                    named = parts.get(name, name)
                    rows.append((rank, kind, named, start, stop, "float32", "device"))
    return from_rows(rows, num_ranks=mesh.num_ranks, origin="predicted")


def _dealt(step: "Step", weights: list[Weight]) -> Iterator[tuple[int, str, str, int, int]]:
    """(rank of dp_shard, kind, weight, start, stop) of all that its ranks hold. ZeRO 1 keeps
    parameters and gradients whole, and of the optimizer's states an nth, all weights laid one after
    another."""
    shapes = {each.name: each.shape for each in weights}
    size = step.dp_shard
    is_fsdp = size > 1 and step.zero == 3
    is_zero1 = size > 1 and step.zero == 1
    found = partition.predict("fsdp" if is_fsdp else "ddp", shapes, size)
    for rank, kind, name, start, stop, *_ in found.rows():
        if not is_zero1 or kind in ("parameter", "gradient"):
            yield rank, kind, name, start, stop
    sizes = {each.name: each.num_elements for each in weights}
    part = -(-sum(sizes.values()) // size)
    for rank in range(size if is_zero1 else 0):
        for name, start, stop in partition.cut(sizes, rank * part, part):
            if name != PADDING:
                yield rank, "step", name, 0, 1
                yield from ((rank, kind, name, start, stop) for kind in ADAM)


def rank_bytes(step: "Step", rank: int) -> dict[str, int]:
    """Bytes of a rank's states by part of the bill, fp32."""
    found = states(step).bytes_by("category")
    return {part: int(per_rank[rank]) for part, per_rank in found.items()}
