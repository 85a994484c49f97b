"""A model whose sizes were counted in a module of the reader's own (``module_run.measured``), not
worked out from a formula."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from labkit.planner.plan.shape import Product, Shape
from labkit.words import say


class Kept(NamedTuple):
    """Tensors of one kind that a forward keeps for its backward."""

    operator: str
    """whose results they are; "" for what the module was given"""
    shape: tuple[int, ...]
    """of one of them"""
    count: int
    """how many"""
    num_bytes: int
    """of all of them together"""


@dataclass(frozen=True, kw_only=True)
class Counted(Shape):
    """A Shape that a module's own forward told. Numbers of a layer are the mean over its layers."""

    counted_products: tuple[Product, ...]
    """the matrix products of a layer by a weight"""
    counted_layer_params: float
    """parameters of a layer"""
    before_params: int
    """parameters that are used before the first layer, or never"""
    after_params: int
    """parameters that are used after the last layer and not before the first"""
    shared_params: int
    """of ``before_params`` those that are used after the last layer as well"""
    seq: int
    """rows of the stream that each sequence of the example had"""
    attention_row_flops: float
    """FLOPs of a layer's products of two activations for one row of the stream, in full"""
    masked: bool
    """whether attention says it is causal, so that half of it need not be computed"""
    kept_elements: float
    """elements of the module's own type that a layer keeps for its backward, a row"""
    kept_other_bytes: float
    """bytes of other types that it keeps, a row: masks, sums in fp32"""
    outer_kept_bytes: float
    """bytes that is kept outside of the layers, a row, in the module's own type"""
    moved_elements: float
    """elements of the module's own type that a layer's forward reads and writes outside of its
    products, a row"""
    moved_other_bytes: float
    """bytes of other types that it reads and writes, a row"""
    outer_flops: float
    """FLOPs of the forward outside of the layers, a row"""
    itemsize: int = field(default=4)
    """bytes of an element of the module's own type"""
    kept_tensors: tuple[Kept, ...] = field(default=(), repr=False, compare=False)
    """what the forward of the whole example keeps, weights left out, the most bytes first"""

    def products(self) -> list[Product]:
        """The matrix products of a layer by a weight. None is cut: which side goes on which rank is
        not known."""
        return list(self.counted_products)

    @property
    def expert_params(self) -> int:
        """None: nothing is known of experts."""
        return 0

    @property
    def dense_params(self) -> float:
        """Parameters of a layer."""
        return self.counted_layer_params

    @property
    def embedding_params(self) -> float:
        """Parameters outside of the layers, where they are not shared a half of them."""
        outer = self.before_params + self.after_params
        return outer if self.tied else outer / 2

    @property
    def params(self) -> int:
        """All parameters."""
        layers = round(self.layers * self.counted_layer_params)
        return layers + self.before_params + self.after_params

    def outer_params(self, *, is_first: bool, is_last: bool) -> tuple[float, float]:
        """Parameters of a stage outside of its layers, none of them cut; what both ends use lies on
        both."""
        found = self.before_params if is_first else 0
        if is_last:
            found += self.after_params + (0 if is_first else self.shared_params)
        return 0.0, float(found)

    def attention_flops(self, seq: int, *, causal: bool = False) -> float:
        """FLOPs of a layer's products of two activations for one row, at another length in
        proportion to it; half of them counted where the mask is, if the module said so."""
        found = self.attention_row_flops * seq / self.seq
        return found / 2 if causal and self.masked else found

    def head_flops(self) -> float:
        """FLOPs of the forward outside of the layers for one row."""
        return self.outer_flops

    def kept_bytes(self, rows: float, itemsize: int) -> float:
        """What a layer keeps of so many rows for its backward."""
        return rows * (itemsize * self.kept_elements + self.kept_other_bytes)

    def moved_bytes(self, rows: float, itemsize: int) -> float:
        """What a layer's forward reads and writes outside of its products."""
        return rows * (itemsize * self.moved_elements + self.moved_other_bytes)

    def refusals(self, layout: Mapping[str, object]) -> list[str]:
        """What can't be said of a module that was only watched: how its products are cut, and what
        another length keeps. ``layout``: its fields by name."""
        found = []
        for axis in ("tp", "cp", "ep"):
            if layout[axis] > 1:
                found.append(
                    say(
                        "how the products of {model} are cut is not known: {axis} 1, not {size}; "
                        "dp, pp and ZeRO cut between layers and inside tensors",
                        model=self.name,
                        axis=axis,
                        size=layout[axis],
                    )
                )
        if layout["seq"] != self.seq:
            found.append(
                say(
                    "{model} was measured at {counted} rows a sequence, and the plan has seq "
                    "{seq}: measure it with an example of that length, or plan with seq={counted}",
                    model=self.name,
                    counted=self.seq,
                    seq=layout["seq"],
                )
            )
        if layout["recompute"] == "selective" or not layout["flash"]:
            found.append(
                say(
                    "a measured module keeps of its attention what it kept in the measurement: "
                    "recompute none or full, flash True"
                )
            )
        return found
