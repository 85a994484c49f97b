"""The layers of a model, as memory sees them: the parameters of each, what it keeps for its
backward, and what lives beside that while it computes.

    units = layers.transformer(num_layers=4, dim=128, num_heads=4, batch=1, seq_len=32)

A ``Unit`` is what an engine gathers, computes and frees together. ``step`` predicts with them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.sharding.states import block_activation_bytes
from labkit.units import check_whole

Shape = tuple[int, ...]


class Gradient(NamedTuple):
    """What is there when the gradients of some parameters of a unit have just been made."""

    names: tuple[str, ...]
    """the parameters, without the unit's prefix"""
    kept: float
    """elements of the unit's activations that are still kept then"""
    work: float
    """elements of other tensors that live then, weight gradients left out"""
    kept_bytes: int = 0
    """what is still kept then whose type does not depend on the model's"""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of the model that is gathered, computed and freed together: a layer."""

    name: str
    """prefix of its parameters' names: "layers.1\""""
    shapes: Mapping[str, Shape]
    """parameter -> shape, names without the prefix"""
    gradients: tuple[Gradient, ...]
    """in the order of the backward; the first one's ``kept`` is all that the forward keeps"""
    kept_bytes: int = 0
    """bytes kept whose type does not depend on the model's"""
    forward_work: float = 0
    """elements that live at once in its forward beside what is kept"""

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of each parameter."""
        return {name: math.prod(shape) for name, shape in self.shapes.items()}

    @property
    def num_params(self) -> int:
        """Elements of all its parameters."""
        return sum(self.sizes.values())

    @property
    def largest(self) -> int:
        """Elements of its largest parameter."""
        return max(self.sizes.values())


def shapes(units: Sequence[Unit]) -> dict[str, Shape]:
    """All parameters of the units, in order, by their full names."""
    found: dict[str, Shape] = {}
    for unit in units:
        for name, shape in unit.shapes.items():
            found[f"{unit.name}.{name}"] = shape
    return found


def groups(units: Sequence[Unit]) -> list[list[str]]:
    """The full names of each unit's parameters."""
    return [list(shapes([unit])) for unit in units]


def transformer(
    *, num_layers: int, dim: int, num_heads: int, batch: int, seq_len: int, vocab_size: int = 256
) -> list[Unit]:
    """The units of ``model.Transformer``: embedding, blocks, head, with what each keeps
    (``block_activation_bytes``). The head keeps its input, its norm and the logarithm of its
    softmax, in fp32: the loss is reckoned among it."""
    check_whole(1, 10_000, num_layers=num_layers)
    check_whole(dim=dim, num_heads=num_heads, batch=batch, seq_len=seq_len, vocab_size=vocab_size)
    names = [f"layers.{index}" for index in range(num_layers + 2)]
    return [
        _embedding(names[0], dim, batch, seq_len, vocab_size),
        *(_block(name, dim, num_heads, batch, seq_len) for name in names[1:-1]),
        _head(names[-1], dim, batch * seq_len, vocab_size),
    ]


def _embedding(name: str, dim: int, batch: int, seq_len: int, vocab_size: int) -> Unit:
    """It keeps the numbers by which it looks up: tokens, targets and positions, int64."""
    wide = batch * seq_len * dim
    numbers = 16 * batch * seq_len + 8 * seq_len
    return Unit(
        name=name,
        shapes={"token.weight": (vocab_size, dim), "position.weight": (seq_len, dim)},
        gradients=(
            Gradient(("position.weight",), 0, wide, numbers),
            Gradient(("token.weight",), 0, wide, numbers),
        ),
        kept_bytes=numbers,
        forward_work=2 * wide,
    )


_BLOCK_BACKWARD = (
    ("down", 16, 5, True),
    ("up", 8, 5, True),
    ("norm2", 6, 3, True),
    ("out", 6, 4, True),
    ("qkv", 2, 5, False),
    ("norm1", 1, 2, False),
)
"""The layers of a block in the order of the backward: tensors as large as its input that are still
kept, others that live then, and whether the attention's softmax (in fp32) is still kept."""


def _block(name: str, dim: int, num_heads: int, batch: int, seq_len: int) -> Unit:
    tokens = batch * seq_len
    wide = tokens * dim
    softmax_bytes = 4 * tokens * num_heads  # the logarithm of its sum, per head
    gradients = tuple(
        Gradient(
            (f"{layer}.bias", f"{layer}.weight"),
            kept * wide + 4 * tokens,
            work * wide,
            softmax_bytes if softmax_kept else 0,
        )
        for layer, kept, work, softmax_kept in _BLOCK_BACKWARD
    )
    all_kept = gradients[0].kept * 4 + softmax_bytes
    assert all_kept == block_activation_bytes(batch, seq_len, dim, num_heads, 4)
    return Unit(
        name=name,
        shapes={
            "norm1.weight": (dim,),
            "norm1.bias": (dim,),
            "norm2.weight": (dim,),
            "norm2.bias": (dim,),
            "qkv.weight": (3 * dim, dim),
            "qkv.bias": (3 * dim,),
            "out.weight": (dim, dim),
            "out.bias": (dim,),
            "up.weight": (4 * dim, dim),
            "up.bias": (4 * dim,),
            "down.weight": (dim, 4 * dim),
            "down.bias": (dim,),
        },
        gradients=gradients,
        kept_bytes=softmax_bytes,
        forward_work=wide,
    )


def _head(name: str, dim: int, tokens: int, vocab_size: int) -> Unit:
    wide = tokens * dim
    logits = tokens * vocab_size
    return Unit(
        name=name,
        shapes={"norm.weight": (dim,), "norm.bias": (dim,), "logits.weight": (vocab_size, dim)},
        gradients=(
            Gradient(("logits.weight",), 2 * wide + 2 * tokens, wide + logits),
            Gradient(("norm.bias", "norm.weight"), wide, 2 * wide),
        ),
        kept_bytes=4 * logits,
        forward_work=logits,
    )
