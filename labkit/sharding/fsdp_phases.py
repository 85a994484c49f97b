"""A step of FSDP 2 as memory sees it (torch 2.13): units gathered, freed and reduced."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from labkit.footprint import Moment
from labkit.sharding.partition import rows_elements
from labkit.sharding.phases import FP32, Made, Phases


@dataclass(frozen=True, kw_only=True)
class FsdpPhases(Phases):
    """``fully_shard``, with any of its strategies."""

    shard_size: int
    """ranks among which a unit is sharded"""
    reshard: bool
    """whether a unit is freed between its forward and its backward"""
    replicated: bool
    """whether there are several sharding groups, whose gradients are then reduced between them"""

    @cached_property
    def whole_bytes(self) -> list[int]:
        """Bytes of each unit when it is gathered, padding included."""
        found = []
        for unit in self.units:
            rows = sum(rows_elements(shape, self.shard_size) for shape in unit.shapes.values())
            found.append(rows * self.shard_size * self.itemsize)
        return found

    def staying_bytes(self, index: int) -> int:
        """Bytes of the units up to ``index`` that have stayed whole since their forward."""
        if self.reshard:
            return 0
        return sum(self.whole_bytes[: index + 1])

    def forward(self) -> Iterator[Moment]:
        """A unit is gathered into a flat buffer and copied out of it; the buffer stays until the
        next unit has been copied."""
        previous_buffer = 0
        for index, unit in enumerate(self.units):
            buffer = self.whole_bytes[index]
            gathered = self.staying_bytes(index - 1) + buffer
            yield self.moment(
                f"F{index}",
                self.kept(index - 1),
                gathered=gathered,
                temporary=previous_buffer + buffer,
            )
            yield self.moment(
                f"F{index}",
                self.kept(index),
                gathered=gathered,
                temporary=buffer + unit.forward_work * self.itemsize,
            )
            previous_buffer = buffer

    def loss(self) -> Moment:
        """Beside it lies what has stayed whole."""
        logits = self.units[-1].forward_work
        last = len(self.units) - 1
        return self.moment(
            "loss",
            self.kept(last),
            gathered=self.staying_bytes(last),
            temporary=2 * FP32 * logits,
        )

    def backward(self) -> Iterator[Moment]:
        """The next unit is gathered early. A unit's gradients are reduced out of a flat copy, that
        stays until the next one's; what hybrid then reduces between the groups stays to the end."""
        reducing = 0.0  # the flat copy of the unit before
        between_groups = 0.0
        for made in self.made():
            unit = self.units[made.unit]
            buffer = self.whole_bytes[made.unit]
            staying = reducing + between_groups
            ahead = self._ahead_bytes(made.unit)
            gathered = buffer if self.reshard else self.staying_bytes(made.unit)
            if made.gradient is unit.gradients[0]:
                yield self.moment(
                    made.label,
                    made.kept,
                    gathered=gathered,
                    temporary=self._gathering_bytes(made.unit) + staying,
                )
            yield self.moment(
                made.label,
                made.kept,
                gathered=gathered,
                temporary=ahead + self._made_bytes(made) + staying + made.work,
            )
            if made.gradient is unit.gradients[-1]:
                reducing = buffer
                yield self.moment(
                    made.label,
                    made.kept,
                    gathered=gathered - reducing,
                    temporary=ahead + 2 * reducing + between_groups + made.work,
                )
                if self.replicated:
                    between_groups += reducing / self.shard_size

    def _ahead_bytes(self, index: int) -> int:
        """The next unit of the backward, that is gathered early."""
        return self.whole_bytes[index - 1] if self.reshard and index > 0 else 0

    def _gathering_bytes(self, index: int) -> int:
        """Flat buffers while a unit is gathered; with the last unit of the model, which nobody has
        gathered early, its next one's too."""
        if not self.reshard:
            return 0
        early = self._ahead_bytes(index) if index == len(self.units) - 1 else 0
        return self.whole_bytes[index] + early

    def _made_bytes(self, made: Made) -> int:
        """All gradients of the unit that have been made so far."""
        total = 0
        unit = self.units[made.unit]
        for gradient in unit.gradients:
            total += sum(unit.sizes[name] for name in gradient.names)
            if gradient is made.gradient:
                break
        return total * self.itemsize

    def update(self) -> Moment:
        """AdamW needs two temporary tensors as large as the largest shard that it updates."""
        largest = 0
        for unit in self.units:
            for shape in unit.shapes.values():
                largest = max(largest, rows_elements(shape, self.shard_size))
        return self.moment("step", temporary=2 * largest * self.itemsize)
