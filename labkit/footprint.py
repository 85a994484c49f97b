"""How many bytes a rank holds at each moment of a training step, by part of the bill: what theory says of the peak.

    units = footprint.transformer(num_layers=4, dim=128, num_heads=4, batch=1, seq_len=32)
    footprint.predict("fsdp", units, num_ranks=4).peak_bytes

On top of what lies there between steps (``partition``) come activations, gathered parameters, buckets and temporary
tensors, as torch 2.13 and DeepSpeed 0.19.8 allocate them. The step is the last microbatch of several, and the update.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labkit import partition
from labkit.memory import block_activation_bytes, recipe
from labkit.shards import ITEMSIZE

PARTS = ("parameters", "gradients", "optimizer", "buffers", "gathered", "activations", "temporary")
"""Parts of the bill: what stays between steps, then what a step adds."""
Moment = tuple[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Footprint:
    """Bytes of one rank over a step: the highest point of each moment."""

    labels: tuple[str, ...]
    """the moments in order: "F0" and "B0" are forward and backward of unit 0, "loss", "step\""""
    num_bytes: np.ndarray
    """int64, shape (num_moments, len(PARTS)): the parts at the highest point of each moment"""
    origin: str
    """"predicted" or "measured\""""
    notes: tuple[str, ...] = ()
    """what must be said with it: "gloo\""""

    @property
    def totals(self) -> np.ndarray:
        """All parts together at each moment, int64, shape (num_moments,)."""
        return self.num_bytes.sum(1)

    @property
    def peak_bytes(self) -> int:
        """The highest point of all."""
        return int(self.totals.max())

    @property
    def peak(self) -> str:
        """The moment of the highest point."""
        return self.labels[int(self.totals.argmax())]

    @property
    def badge(self) -> str:
        """Where it comes from, in one line for every picture."""
        return ", ".join((self.origin, *self.notes))


def from_moments(moments: Iterable[Moment], origin: str, notes: Iterable[str] = ()) -> Footprint:
    """A Footprint from (label, bytes by part); of several moments with one label the highest counts."""
    highest: dict[str, dict[str, float]] = {}
    for label, parts in moments:
        if sum(parts.values()) >= sum(highest.get(label, {}).values()):
            highest[label] = parts
    rows = [[round(parts.get(part, 0)) for part in PARTS] for parts in highest.values()]
    return Footprint(labels=tuple(highest), num_bytes=np.array(rows, dtype=np.int64).reshape(-1, len(PARTS)),
                     origin=origin, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of the model that is gathered, computed and freed together: a layer."""

    name: str
    """prefix of its parameters' names: "layers.1\""""
    shapes: Mapping[str, tuple[int, ...]]
    """parameter -> shape, full names"""
    kept: float
    """elements that its forward keeps for the backward, without those in ``kept_bytes``"""
    kept_bytes: int = 0
    """bytes kept whose type does not depend on the model's"""
    work: float = 0
    """elements that live at once in its backward beside what is kept, weight gradients left out"""
    forward_work: float = 0
    """the same for the forward"""

    @property
    def num_elements(self) -> int:
        """Parameters in it."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def largest(self) -> int:
        """Elements of its largest parameter."""
        return max(map(math.prod, self.shapes.values()))


def transformer(*, num_layers: int, dim: int, num_heads: int, batch: int, seq_len: int, vocab_size: int = 256,
                max_len: int | None = None) -> list[Unit]:
    """The units of ``model.Transformer``: embedding, blocks, head, with what each keeps (``block_activation_bytes``).

    The head keeps its input, its norm and the logarithm of its softmax, in fp32: the loss is reckoned among it.
    """
    tokens, length = batch * seq_len, max_len or seq_len
    block = {"norm1.weight": (dim,), "norm1.bias": (dim,), "norm2.weight": (dim,), "norm2.bias": (dim,),
             "qkv.weight": (3 * dim, dim), "qkv.bias": (3 * dim,), "out.weight": (dim, dim), "out.bias": (dim,),
             "up.weight": (4 * dim, dim), "up.bias": (4 * dim,), "down.weight": (dim, 4 * dim), "down.bias": (dim,)}
    kept = (block_activation_bytes(batch, seq_len, dim, num_heads, 4) - 4 * tokens * num_heads) / 4
    embed = {"token.weight": (vocab_size, dim), "position.weight": (length, dim)}
    head = {"norm.weight": (dim,), "norm.bias": (dim,), "logits.weight": (vocab_size, dim)}

    def named(index: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {f"layers.{index}.{name}": shape for name, shape in shapes.items()}

    return [Unit(name="layers.0", shapes=named(0, embed), kept=0, kept_bytes=16 * tokens + 8 * seq_len,
                 work=tokens * dim, forward_work=2 * tokens * dim),
            *(Unit(name=f"layers.{index}", shapes=named(index, block), kept=kept, kept_bytes=4 * tokens * num_heads,
                   work=5 * tokens * dim, forward_work=tokens * dim) for index in range(1, num_layers + 1)),
            Unit(name=f"layers.{num_layers + 1}", shapes=named(num_layers + 1, head), kept=tokens * (2 * dim + 2),
                 kept_bytes=4 * tokens * vocab_size, work=tokens * (dim + vocab_size),
                 forward_work=tokens * vocab_size)]


def shapes(units: Sequence[Unit]) -> dict[str, tuple[int, ...]]:
    """All parameters of the units, in order."""
    return {name: shape for unit in units for name, shape in unit.shapes.items()}


def predict(engine: str, units: Sequence[Unit], num_ranks: int, *, rank: int = 0, recipe_name: str | None = None,
            offload: str = "none", bucket_size: int = 0, shard_size: int | None = None) -> Footprint:
    """The step of one rank. Arguments as in ``partition.predict``; ``bucket_size`` is DeepSpeed's reduce_bucket_size.

    Host and device are counted together: on a CPU they are one memory.
    """
    held = partition.predict(engine, shapes(units), num_ranks, recipe_name=recipe_name, offload=offload,
                             bucket_size=bucket_size, shard_size=shard_size,
                             units=[list(unit.shapes) for unit in units])
    rest = {part: float(per_rank[rank]) for part, per_rank in held.bytes_by("category").items()}
    dtypes = recipe(recipe_name or ("mixed" if engine.startswith("zero") else "fp32")).dtypes
    step = _Step(units, rest, ITEMSIZE[dtypes["parameter"]])
    if engine.startswith("fsdp"):
        size = (shard_size or num_ranks // 2) if engine == "fsdp_hybrid" else num_ranks
        moments = _fsdp(step, size, engine != "fsdp_grad_op")
    elif STAGED.get(engine):
        moments = STAGED[engine](step, num_ranks, bucket_size)
    else:
        moments = _ddp(step)
    return from_moments(moments, "predicted")


class _Step:
    """A step's activations and its rest, for the engines to add to."""

    def __init__(self, units: Sequence[Unit], rest: Mapping[str, float], itemsize: int) -> None:
        self.units, self.rest, self.itemsize = units, rest, itemsize
        self.kept = np.cumsum([unit.kept * itemsize + unit.kept_bytes for unit in units]).tolist()

    def at(self, label: str, index: int | None, **more: float) -> Moment:
        """The rest, what the units up to ``index`` keep, and more."""
        parts = dict(self.rest)
        parts["activations"] = 0 if index is None else self.kept[index]
        for part, num_bytes in more.items():
            parts[part] = parts.get(part, 0) + num_bytes
        return label, parts


def _forward(step: _Step) -> Iterator[Moment]:
    for index, unit in enumerate(step.units):
        yield step.at(f"F{index}", index, temporary=unit.forward_work * step.itemsize)
    logits = step.units[-1].forward_work
    yield step.at("loss", len(step.units) - 1, temporary=2 * logits * 4)


def _ddp(step: _Step) -> Iterator[Moment]:
    """Everything stays; each weight's gradient is made beside its bucket and added to it. AdamW needs two temporary
    tensors as large as the parameter that it updates."""
    yield from _forward(step)
    for index in reversed(range(len(step.units))):
        unit = step.units[index]
        yield _backward(step, index, (unit.largest + unit.work) * step.itemsize)
    yield step.at("step", None, temporary=2 * max(unit.largest for unit in step.units) * step.itemsize)


def _backward(step: _Step, index: int, temporary: float, **more: float) -> Moment:
    """The backward of a unit, when it has just begun: what the softmax kept is gone then."""
    label, parts = step.at(f"B{index}", index, temporary=temporary, **more)
    if index == len(step.units) - 1:
        parts["activations"] -= step.units[index].kept_bytes
    return label, parts


STAGED: dict = {}
