"""What the ranks of a mesh tell one another in a step, axis by axis: every collective and message
of a rank in order, with the work between them.

tp sums the stream in each half of a block, forward and backward (Shoeybi et al. 2019, section 3).
pp hands the stream on and its gradient back. dp_shard gathers parameters and scatters gradients,
dp_replicate sums what is left of them. Beside a pipeline a layer is gathered for its first forward
and stays until the last backward, after which gradients are reduced once, as torchtitan does it.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from labkit.mesh_3d import held
from labkit.mesh_3d.held import Unit
from labkit.pipeline.schedule import Action
from labkit.pipeline.schedules import SCHEDULES
from labkit.planner.plan.layout import PRECISIONS
from labkit.units import check_whole, check_word

if TYPE_CHECKING:
    from labkit.mesh_3d.step import Step

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "send")
WORK = ("embedding", "block", "head", "optimizer")
"""What a rank computes; of a block, half at a time."""
HALVES = ("attention", "mlp")
"""of a block; each ends in a sum along tp"""


class Message(NamedTuple):
    """One collective, or a send to the next stage or the one before."""

    axis: str
    """along which"""
    collective: str
    """one of COLLECTIVES"""
    num_bytes: int
    """what a rank hands in, as ``measure.traffic`` counts it"""
    unit: str = ""
    """whose, where it is of one layer"""


class Work(NamedTuple):
    """What a rank computes between two messages."""

    unit: str
    """a layer, or "optimizer\""""
    kind: str
    """one of WORK"""


Part = Message | Work


class Counted(NamedTuple):
    """What a rank sends along an axis by one collective."""

    calls: int
    """how often"""
    num_bytes: int
    """all of them together"""


@functools.lru_cache(maxsize=64)
def order(step: "Step", stage: int) -> tuple[tuple[Action | None, tuple[Part, ...]], ...]:
    """The actions of a rank of a stage, each with its parts in order; the last one, None, is what
    comes after the last backward. Raises ValueError for a stage that there is not."""
    check_whole(0, step.pp - 1, stage=stage)
    rank = _Rank(step, held.units(step, stage), stage)
    schedule = SCHEDULES[step.schedule](step.pp, step.microbatches)
    first = tuple(rank.forward())
    parts = {"F": tuple(rank.forward()), "B": tuple(rank.backward())}
    found: list[tuple[Action | None, tuple[Part, ...]]] = []
    for action in schedule.orders[stage]:
        found.append((action, parts[action.kind] if found else first))
    return (*found, (None, tuple(rank.ending())))


def said(step: "Step", stage: int) -> Counter[Message]:
    """Every message of a rank of a stage in a step, and how often it goes."""
    found: Counter[Message] = Counter()
    for parts, times in Counter(parts for _, parts in order(step, stage)).items():
        for each in of_kind(parts, Message):
            found[each] += times
    return found


def counted(step: "Step", stage: int) -> dict[str, dict[str, Counted]]:
    """Axis -> collective -> what a rank of a stage hands in during a step."""
    found: dict[str, dict[str, Counted]] = {}
    for each, times in said(step, stage).items():
        one = found.setdefault(each.axis, {})
        calls, num_bytes = one.get(each.collective, Counted(0, 0))
        one[each.collective] = Counted(calls + times, num_bytes + times * each.num_bytes)
    return found


def of_kind(parts: Iterable[Part], kind: type) -> list:
    """Its messages, or its work."""
    return [each for each in parts if isinstance(each, kind)]


def stream_bytes(step: "Step") -> int:
    """The stream of a microbatch, all its features."""
    return step.microbatch * step.sequence * step.hidden * PRECISIONS[step.precision]


def gradient_bytes(precision: str) -> int:
    """Bytes of an element of a gradient that is reduced once a step: 16 bit where fp16 is, else
    fp32, as the planner has it."""
    check_word(precision, PRECISIONS, "a precision")
    return 2 if precision == "fp16" else 4


class _Rank:
    """A rank of a stage, as its step goes on."""

    def __init__(self, step: "Step", units: tuple[Unit, ...], stage: int) -> None:
        self.step = step
        self.units = units
        self.is_first = stage == 0
        self.is_last = stage == step.pp - 1
        self.shares = step.dp_shard > 1 and step.zero == 3
        self.gathered: set[str] = set()

    def forward(self) -> Iterator[Part]:
        """A microbatch through the stage."""
        for unit in self.units:
            if self.shares and unit.name not in self.gathered:
                self.gathered.add(unit.name)
                yield Message("dp_shard", "all_gather", self._part_bytes(unit), unit.name)
            yield from self._worked(unit)
        if not self.is_last:
            yield Message("pp", "send", stream_bytes(self.step))

    def backward(self) -> Iterator[Part]:
        """The same backwards."""
        again = self.step.recompute == "full"
        for unit in self.units[::-1]:
            yield from self._worked(unit, 2 if again else 1)
        if not self.is_first:
            yield Message("pp", "send", stream_bytes(self.step))

    def ending(self) -> Iterator[Part]:
        """What the last backward leaves to do."""
        if self.shares:
            for unit in self.units:
                yield from self._reduce(self._part_bytes(unit), unit.name)
            yield Work("optimizer", "optimizer")
            return
        elements = sum(unit.num_elements for unit in self.units)
        part = -(-elements // self.step.dp_shard)
        yield from self._reduce(part * gradient_bytes(self.step.precision))
        yield Work("optimizer", "optimizer")
        if self.step.dp_shard > 1:
            yield Message("dp_shard", "all_gather", part * self._itemsize)

    def _worked(self, unit: Unit, sums: int = 1) -> Iterator[Part]:
        """A layer forward or backward: after each half of a block the stream, or its gradient, is
        summed along tp; both, where the half is computed again for its backward."""
        if unit.kind != "block":
            yield Work(unit.name, unit.kind)
            return
        for _ in HALVES:
            yield Work(unit.name, "block")
            for _ in range(sums if self.step.tp > 1 else 0):
                yield Message("tp", "all_reduce", stream_bytes(self.step), unit.name)

    def _reduce(self, part_bytes: int, unit: str = "") -> Iterator[Part]:
        """Gradients: to each rank of dp_shard its part, and that summed over replicas."""
        size = self.step.dp_shard
        if size > 1:
            yield Message("dp_shard", "reduce_scatter", size * part_bytes, unit)
        if self.step.dp_replicate > 1:
            yield Message("dp_replicate", "all_reduce", part_bytes, unit)

    def _part_bytes(self, unit: Unit) -> int:
        """What a rank of dp_shard holds of a layer."""
        return self._itemsize * unit.part_elements(self.step.dp_shard)

    @property
    def _itemsize(self) -> int:
        return PRECISIONS[self.step.precision]
