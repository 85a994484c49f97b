"""A step of DeepSpeed's ZeRO as memory sees it, stage by stage (DeepSpeed 0.19.8)."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labkit.footprint import Moment
from labkit.sharding.layers import shapes
from labkit.sharding.phases import FP32, Phases
from labkit.shards import Shards

FP64 = 8
"""Bytes of an element in fp64, in which stage 2 measures gradients that it offloads."""


@dataclass(frozen=True, kw_only=True)
class ZeroPhases(Phases):
    """What the stages have in common: the update."""

    held: Shards
    """what this rank holds between steps"""
    bucket_size: int
    """reduce_bucket_size, in elements"""
    offloaded: bool
    """whether the optimizer lies on the host"""

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a full bucket."""
        return self.bucket_size * self.itemsize

    @property
    def own_elements(self) -> int:
        """Elements of this rank's part of the fp32 copy, padding included."""
        own = self.held.kind == "master"
        return int((self.held.stop - self.held.start)[own].sum())

    def update(self) -> Moment:
        """The partition's gradients once more, in 16 bit and in fp32; offloaded, nothing."""
        if self.offloaded:
            return self.moment("step")
        return self.moment("step", temporary=self.own_elements * (self.itemsize + FP32))


class Zero1Phases(ZeroPhases):
    """Stage 1: gradients stay whole until the update."""

    def backward(self) -> Iterator[Moment]:
        """Each gradient beside those that are there."""
        for made in self.made():
            for name in made.gradient.names:
                fresh = self.units[made.unit].sizes[name] * self.itemsize
                yield self.moment(made.label, made.kept, temporary=made.work + fresh)

    def update(self) -> Moment:
        """Whole gradients and bucket are gone; the tensors of which this rank needs a slice are
        left, or (offloaded) its slices in fp32."""
        label, parts = super().update()
        parts["buffers"] -= self.bucket_bytes
        if self.offloaded:
            parts["gradients"] = self.own_elements * FP32
        else:
            parts["gradients"] = self._needed_elements() * self.itemsize
        return label, parts

    def _needed_elements(self) -> int:
        """Elements of the tensors of which this rank has a slice."""
        names = set(self.held.tensor[self.held.kind == "master"].tolist())
        return sum(math.prod(shape) for name, shape in shapes(self.units).items() if name in names)


class Zero2Phases(ZeroPhases):
    """Stage 2 reduces in buckets: beside the bucket itself, a copy of it when it is full, and a
    second set of this rank's gradients, which is then added to the first."""

    def backward(self) -> Iterator[Moment]:
        """A gradient goes into the bucket; where it has no room, the bucket is reduced first."""
        waiting: dict[str, int] = {}  # what is in the bucket: name, elements
        second_set = 0.0
        for made in self.made():
            unit = self.units[made.unit]
            for name in made.gradient.names:
                elements = unit.sizes[name]
                there = made.work + self.bucket_bytes + second_set
                yield self.moment(made.label, made.kept, temporary=there + elements * self.itemsize)
                if sum(waiting.values()) + elements > self.bucket_size:
                    yield self.moment(
                        made.label, made.kept, temporary=there + self._reduced_bytes(waiting)
                    )
                    if not self.offloaded and self._own(waiting):
                        second_set = self.rest["gradients"]
                    waiting = {}
                waiting[f"{unit.name}.{name}"] = elements

    def _own(self, waiting: Mapping[str, int]) -> list[int]:
        """Elements of the waiting gradients of which this rank keeps a slice."""
        kept = set(self.held.tensor[self.held.kind == "gradient"].tolist())
        return [elements for name, elements in waiting.items() if name in kept]

    def _reduced_bytes(self, waiting: Mapping[str, int]) -> int:
        """A copy of what is in the bucket; where they are offloaded, at least one of this rank's
        gradients in fp64, to be measured."""
        copied = sum(waiting.values()) * self.itemsize
        if not self.offloaded:
            return copied
        return max(copied, FP64 * max(self._own(waiting), default=0))


class Zero3Phases(ZeroPhases):
    """Stage 3 gathers parameters while they are needed, and reduces in buckets too; its bucket lies
    there between steps."""

    def forward(self) -> Iterator[Moment]:
        """The largest parameter of a unit is there twice: what was gathered, and what is used."""
        for index, unit in enumerate(self.units):
            yield self.moment(
                f"F{index}",
                self.kept(index),
                temporary=unit.forward_work * self.itemsize,
                gathered=2 * unit.largest * self.itemsize,
            )

    def backward(self) -> Iterator[Moment]:
        """As stage 2, without a second set."""
        waiting = 0  # elements in the bucket
        for made in self.made():
            for name in made.gradient.names:
                elements = self.units[made.unit].sizes[name]
                fresh = elements * self.itemsize
                yield self.moment(
                    made.label, made.kept, temporary=made.work + fresh, gathered=2 * fresh
                )
                if waiting + elements > self.bucket_size:
                    copied = waiting * self.itemsize
                    yield self.moment(
                        made.label, made.kept, temporary=made.work + copied, gathered=fresh
                    )
                    waiting = 0
                waiting += elements
