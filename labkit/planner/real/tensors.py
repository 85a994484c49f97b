"""Every weight of a Shape by name, which side tensor parallelism cuts, and what ``fully_shard``
leaves of it on the fullest rank and sends for it: to the byte, padding included.

The planner's own figures divide parameters by ranks; engines cut tensors, and rows don't always
divide. Here is what the difference is.
"""

from dataclasses import dataclass
from math import prod

from labkit.planner.plan.layout import Layout
from labkit.planner.plan.shape import Shape
from labkit.sharding import states
from labkit.sharding.partition import rows_elements


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A parameter."""

    name: str
    """its name in the module"""
    dims: tuple[int, ...]
    """its shape"""
    cut: int | None = None
    """the dimension that tensor parallelism cuts; None: every rank has all of it"""

    def local(self, tp: int) -> tuple[int, ...]:
        """Its shape on one of ``tp`` ranks."""
        if self.cut is None:
            return self.dims
        return tuple(
            size // tp if number == self.cut else size for number, size in enumerate(self.dims)
        )


def layer_weights(shape: Shape) -> list[Weight]:
    """The weights of one dense layer. Raises ValueError for experts."""
    if shape.experts > 1:
        raise ValueError(f"the weights of a dense layer are named; {shape.name} has experts")
    queries = shape.heads * shape.width
    pairs = shape.num_kv_heads * shape.width
    columns = {"q": queries, "k": pairs, "v": pairs}
    wide = ("gate", "up") if shape.glu else ("up",)
    found = _norm("norm1", shape)
    for name, size in columns.items():
        found += _product(name, size, shape.hidden, 0, shape)
    found += _product("out", shape.hidden, queries, 1, shape)
    found += _norm("norm2", shape)
    for name in wide:
        found += _product(name, shape.ffn_width, shape.hidden, 0, shape)
    return found + _product("down", shape.hidden, shape.ffn_width, 1, shape)


def outer_weights(shape: Shape) -> list[Weight]:
    """The weights outside of the layers."""
    found = [Weight(name="embed.weight", dims=(shape.vocab, shape.hidden), cut=0)]
    if shape.positions:
        found.append(Weight(name="position.weight", dims=(shape.positions, shape.hidden)))
    found += _norm("norm", shape)
    if not shape.tied:
        found.append(Weight(name="head.weight", dims=(shape.vocab, shape.hidden), cut=0))
    return found


def _norm(name: str, shape: Shape) -> list[Weight]:
    parts = ("weight",) if shape.glu else ("weight", "bias")
    return [Weight(name=f"{name}.{part}", dims=(shape.hidden,)) for part in parts]


def _product(name: str, outputs: int, inputs: int, cut: int, shape: Shape) -> list[Weight]:
    """A matrix, and in GPT's kind its bias, which is cut with the outputs."""
    found = [Weight(name=f"{name}.weight", dims=(outputs, inputs), cut=cut)]
    if not shape.glu:
        found.append(Weight(name=f"{name}.bias", dims=(outputs,), cut=0 if cut == 0 else None))
    return found


def shard_elements(weights: list[Weight], tp: int, ranks: int) -> int:
    """Elements that the first of ``ranks`` holds: its rows of each tensor, after tensor
    parallelism."""
    return sum(rows_elements(each.local(tp), ranks) for each in weights)


def held_bytes(shape: Shape, layout: Layout) -> dict[str, float]:
    """Parameters, gradients and optimizer of rank 0 under ``fully_shard``: part of the bill ->
    bytes; torch's AdamW counts steps in four bytes a tensor beside them."""
    layers = shape.layers * shard_elements(layer_weights(shape), layout.tp, layout.dp)
    outer = shard_elements(outer_weights(shape), layout.tp, layout.dp)
    return states.by_category(states.state_bytes(layers + outer, recipe_name=layout.recipe))


def moved_bytes(shape: Shape, layout: Layout) -> dict[str, float]:
    """What a microbatch gathers and scatters under ``fully_shard``, each layer a unit and the rest
    one: layers are gathered for the forward and the backward, the rest once; gradients of all
    are scattered, in the type of the products. Bytes of all ranks of the group together."""
    size = layout.itemsize * layout.dp
    layers = size * shape.layers * shard_elements(layer_weights(shape), layout.tp, layout.dp)
    outer = size * shard_elements(outer_weights(shape), layout.tp, layout.dp)
    return {"all_gather": 2 * layers + outer, "reduce_scatter": layers + outer}


def reduced_bytes(shape: Shape, layout: Layout) -> float:
    """What tensor parallelism reduces in a microbatch: the stream twice in each layer's forward and
    twice in its backward (Shoeybi et al. 2019, section 3), the embedding's result and the
    gradient of the head's input."""
    if layout.tp == 1:
        return 0.0
    stream = layout.tokens * shape.hidden * layout.itemsize
    return stream * (4 * shape.layers + 2)


def whole_bytes(weights: list[Weight], itemsize: int) -> int:
    """Weights as they are, nothing cut."""
    return itemsize * sum(prod(each.dims) for each in weights)
