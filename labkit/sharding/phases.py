"""A step as memory sees it, phase by phase: forward, loss, backward, update. What all engines have
in common, and plain data parallelism; ``zero_phases`` and ``fsdp_phases`` are the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.footprint import Moment
from labkit.sharding.layers import Gradient, Unit

FP32 = 4
"""Bytes of an element in fp32."""


class Made(NamedTuple):
    """A moment of the backward: gradients of a unit have just been made."""

    unit: int
    """number of the unit"""
    gradient: Gradient
    """which of its gradients"""
    kept: float
    """bytes of activations that all units still keep"""
    work: float
    """bytes of other tensors that live then"""

    @property
    def label(self) -> str:
        """The name of the moment."""
        return f"B{self.unit}"


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The moments of one rank's step; each is what lies there between steps, and something on top.
    An engine says in a subclass what it adds."""

    units: Sequence[Unit]
    """the layers, in the order of the forward"""
    rest: Mapping[str, float]
    """bytes between steps, by part of the bill"""
    itemsize: int
    """bytes of a parameter's element"""

    def moments(self) -> Iterator[Moment]:
        """The whole step."""
        yield from self.forward()
        yield self.loss()
        yield from self.backward()
        yield self.update()

    def forward(self) -> Iterator[Moment]:
        """Unit by unit, where nothing is gathered."""
        for index, unit in enumerate(self.units):
            yield self.moment(
                f"F{index}", self.kept(index), temporary=unit.forward_work * self.itemsize
            )

    def loss(self) -> Moment:
        """Two more tensors as large as the logits, in fp32."""
        logits = self.units[-1].forward_work
        return self.moment("loss", self.kept(len(self.units) - 1), temporary=2 * FP32 * logits)

    def backward(self) -> Iterator[Moment]:
        """Gradient by gradient."""
        raise NotImplementedError

    def update(self) -> Moment:
        """The optimizer's step."""
        raise NotImplementedError

    def kept(self, index: int) -> float:
        """Bytes that the units up to ``index`` keep for the backward; -1 is none of them."""
        return sum(
            unit.gradients[0].kept * self.itemsize + unit.kept_bytes
            for unit in self.units[: index + 1]
        )

    def made(self) -> Iterator[Made]:
        """The gradients in the order in which the backward makes them."""
        for index in reversed(range(len(self.units))):
            for gradient in self.units[index].gradients:
                own = gradient.kept * self.itemsize + gradient.kept_bytes
                work = gradient.work * self.itemsize
                yield Made(index, gradient, self.kept(index - 1) + own, work)

    def moment(self, label: str, activations: float = 0, **more: float) -> Moment:
        """What lies there between steps, and ``more`` bytes by part of the bill."""
        parts = {**self.rest, "activations": activations}
        for part, num_bytes in more.items():
            parts[part] = parts.get(part, 0) + num_bytes
        return label, parts


class DataParallelPhases(Phases):
    """DDP: everything stays."""

    def backward(self) -> Iterator[Moment]:
        """A weight's gradient is made beside its bucket and added to it."""
        for made in self.made():
            sizes = self.units[made.unit].sizes
            largest = max(sizes[name] for name in made.gradient.names)
            yield self.moment(made.label, made.kept, temporary=largest * self.itemsize + made.work)

    def update(self) -> Moment:
        """AdamW needs two temporary tensors as large as the parameter that it updates."""
        largest = max(unit.largest for unit in self.units)
        return self.moment("step", temporary=2 * largest * self.itemsize)
