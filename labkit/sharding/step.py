"""How many bytes a rank holds at each moment of a training step, by part of the bill: what theory
says of the peak.

    units = footprint.transformer(num_layers=4, dim=128, num_heads=4, batch=1, seq_len=32)
    footprint.predict("fsdp", units, num_ranks=4).peak_bytes

On top of what lies there between steps (``partition``) come activations, gathered parameters,
buckets and temporary tensors, as torch 2.13 and DeepSpeed 0.19.8 allocate them. The step is the
last microbatch of several, and the update.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.footprint import Footprint, Moment, from_moments
from labkit.sharding import partition
from labkit.sharding.states import block_activation_bytes
from labkit.shards import ITEMSIZE, Shards
from labkit.units import check_whole, check_word


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
    shapes: Mapping[str, tuple[int, ...]]
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


def transformer(
    *, num_layers: int, dim: int, num_heads: int, batch: int, seq_len: int, vocab_size: int = 256
) -> list[Unit]:
    """The units of ``model.Transformer``: embedding, blocks, head, with what each keeps
    (``block_activation_bytes``). The head keeps its input, its norm and the logarithm of its
    softmax, in fp32: the loss is reckoned among it."""
    check_whole(1, 10_000, num_layers=num_layers)
    check_whole(dim=dim, num_heads=num_heads, batch=batch, seq_len=seq_len, vocab_size=vocab_size)
    tokens, wide = batch * seq_len, batch * seq_len * dim
    block = {
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
    }
    order = (
        ("down", 16, 5),
        ("up", 8, 5),
        ("norm2", 6, 3),
        ("out", 6, 4),
        ("qkv", 2, 5),
        ("norm1", 1, 2),
    )
    softmax = (
        4 * tokens * num_heads
    )  # of the attention, per head: gone when q, k and v have their gradients
    gradients = tuple(
        Gradient(
            (f"{name}.bias", f"{name}.weight"),
            kept * wide + 4 * tokens,
            work * wide,
            softmax * (kept > 2),
        )
        for name, kept, work in order
    )
    assert gradients[0].kept * 4 + softmax == block_activation_bytes(
        batch, seq_len, dim, num_heads, 4
    )
    numbers = 16 * tokens + 8 * seq_len  # tokens, targets and positions, int64
    embed = Unit(
        name="layers.0",
        shapes={"token.weight": (vocab_size, dim), "position.weight": (seq_len, dim)},
        gradients=(
            Gradient(("position.weight",), 0, wide, numbers),
            Gradient(("token.weight",), 0, wide, numbers),
        ),
        kept_bytes=numbers,
        forward_work=2 * wide,
    )
    blocks = [
        Unit(
            name=f"layers.{index}",
            shapes=block,
            gradients=gradients,
            kept_bytes=softmax,
            forward_work=wide,
        )
        for index in range(1, num_layers + 1)
    ]
    logits = tokens * vocab_size
    head = Unit(
        name=f"layers.{num_layers + 1}",
        kept_bytes=4 * logits,
        forward_work=logits,
        shapes={"norm.weight": (dim,), "norm.bias": (dim,), "logits.weight": (vocab_size, dim)},
        gradients=(
            Gradient(("logits.weight",), 2 * wide + 2 * tokens, wide + logits),
            Gradient(("norm.bias", "norm.weight"), wide, 2 * wide),
        ),
    )
    return [embed, *blocks, head]


def shapes(units: Sequence[Unit]) -> dict[str, tuple[int, ...]]:
    """All parameters of the units, in order, by their full names."""
    return {f"{unit.name}.{name}": shape for unit in units for name, shape in unit.shapes.items()}


def groups(units: Sequence[Unit]) -> list[list[str]]:
    """The full names of each unit's parameters."""
    return [[f"{unit.name}.{name}" for name in unit.shapes] for unit in units]


def predict(
    engine: str,
    units: Sequence[Unit],
    num_ranks: int,
    *,
    rank: int = 0,
    recipe_name: str | None = None,
    offload: str = "none",
    bucket_size: int = 0,
    shard_size: int | None = None,
) -> Footprint:
    """The step of one rank. Arguments as in ``partition.predict``; ``bucket_size`` is DeepSpeed's
    reduce_bucket_size. Host and device are counted together: on a CPU they are one memory. Raises
    ValueError for a bucket of DeepSpeed's that does not hold the largest gradient, and for FSDP 1,
    of which only the states are predicted."""
    check_word(engine, partition.STAGES, "an engine")
    check_whole(**{"number of units": len(units)})
    largest = max(unit.largest for unit in units)
    if engine.startswith("zero") and engine != "zero0" and bucket_size < largest:
        raise ValueError(
            "a footprint is predicted where a bucket holds every gradient; the largest has "
            f"{largest} "
            f"elements, reduce_bucket_size is {bucket_size}"
        )
    if engine in ("fsdp1", "zero0"):
        raise ValueError(
            f"the footprint of a step is predicted for DDP, ZeRO 1 to 3 and FSDP 2; got {engine}"
        )
    held = partition.predict(
        engine,
        shapes(units),
        num_ranks,
        recipe_name=recipe_name,
        offload=offload,
        bucket_size=bucket_size,
        shard_size=shard_size,
        units=groups(units),
    )
    check_whole(0, num_ranks - 1, rank=rank)
    step = _Step(
        units=units,
        itemsize=ITEMSIZE[partition.state_dtypes(engine, recipe_name)["parameter"]],
        rest={part: float(per_rank[rank]) for part, per_rank in held.bytes_by("category").items()},
    )
    if engine == "ddp":
        moments = _ddp(step)
    elif engine.startswith("fsdp"):
        size = partition.group_size(engine, num_ranks, shard_size)
        moments = _fsdp(step, size, engine != "fsdp_grad_op", size < num_ranks)
    else:
        moments = _zero(
            step, int(engine[-1]), held.select(held.rank == rank), bucket_size, offload != "none"
        )
    return from_moments(moments, "predicted")


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What all engines have in common: what lies there between steps, and what the units keep."""

    units: Sequence[Unit]
    rest: Mapping[str, float]
    itemsize: int

    def kept(self, index: int) -> float:
        """Bytes that the units up to ``index`` keep for the backward."""
        return sum(
            unit.gradients[0].kept * self.itemsize + unit.kept_bytes
            for unit in self.units[: index + 1]
        )

    def at(self, label: str, activations: float = 0, **more: float) -> Moment:
        """The rest and something on top."""
        parts = {**self.rest, "activations": activations}
        return label, parts | {
            part: parts.get(part, 0) + num_bytes for part, num_bytes in more.items()
        }

    def backward(self) -> Iterator[tuple[int, Gradient, float, float]]:
        """Each group of gradients as it is made: (unit, group, activations kept, other bytes beside
        it)."""
        for index in reversed(range(len(self.units))):
            for group in self.units[index].gradients:
                yield (
                    index,
                    group,
                    self.kept(index - 1) + group.kept * self.itemsize + group.kept_bytes,
                    group.work * self.itemsize,
                )

    def forward(self) -> Iterator[Moment]:
        """Where nothing is gathered."""
        for index, unit in enumerate(self.units):
            yield self.at(
                f"F{index}", self.kept(index), temporary=unit.forward_work * self.itemsize
            )
        yield self.loss()

    def loss(self, **more: float) -> Moment:
        """Two more tensors as large as the logits, in fp32."""
        more["temporary"] = more.get("temporary", 0) + 8 * self.units[-1].forward_work
        return self.at("loss", self.kept(len(self.units) - 1), **more)


def _ddp(step: _Step) -> Iterator[Moment]:
    """Everything stays; a weight's gradient is made beside its bucket and added to it. AdamW needs
    two temporary tensors as large as the parameter that it updates."""
    yield from step.forward()
    for index, group, kept, work in step.backward():
        made = max(step.units[index].sizes[name] for name in group.names) * step.itemsize
        yield step.at(f"B{index}", kept, temporary=made + work)
    yield step.at("step", temporary=2 * max(unit.largest for unit in step.units) * step.itemsize)


def _zero(
    step: _Step, stage: int, held: Shards, bucket_size: int, offloaded: bool
) -> Iterator[Moment]:
    """Stages 2 and 3 reduce in buckets: one more copy of a full bucket, and in stage 2 the bucket
    itself and a second set of this rank's gradients, which is then added to the first. The update
    takes the partition's gradients once more, in 16 bit and in fp32; offloaded, it takes nothing,
    but stage 2 measures each gradient in fp64."""
    master = held.kind == "master"
    size, part = step.itemsize, int((held.stop - held.start)[master].sum())
    mine = set(held.tensor[held.kind == "gradient"].tolist())
    for index, unit in enumerate(step.units):
        yield step.at(
            f"F{index}",
            step.kept(index),
            temporary=unit.forward_work * size,
            gathered=2 * unit.largest * size * (stage == 3),
        )
    yield step.loss()
    bucket, fresh, filling = bucket_size * size * (stage == 2), 0.0, []
    for index, group, kept, work in step.backward():
        for name in group.names:
            made, label = step.units[index].sizes[name], f"B{index}"
            gathered = made * size * (stage == 3)
            yield step.at(
                label, kept, temporary=work + made * size + bucket + fresh, gathered=2 * gathered
            )
            if stage > 1 and sum(filled for _, filled in filling) + made > bucket_size:
                copied = sum(filled for _, filled in filling) * size
                measured = max((8 * filled for each, filled in filling if each in mine), default=0)
                copied = max(copied, measured * (offloaded and stage == 2))
                yield step.at(
                    label, kept, temporary=work + copied + bucket + fresh, gathered=gathered
                )
                if stage == 2 and not offloaded and any(each in mine for each, _ in filling):
                    fresh = step.rest["gradients"]
                filling = []
            filling.append((f"{step.units[index].name}.{name}", made))
    label, parts = step.at("step", temporary=0 if offloaded else part * (size + 4))
    if (
        stage == 1
    ):  # whole gradients and bucket are gone; the tensors of which this rank needs a slice are left
        names = set(held.tensor[master].tolist())
        parts["buffers"] -= bucket_size * size
        touched = sum(
            math.prod(shape) for name, shape in shapes(step.units).items() if name in names
        )
        parts["gradients"] = part * 4 if offloaded else touched * size
    yield label, parts


def _fsdp(step: _Step, size: int, reshard: bool, replicated: bool) -> Iterator[Moment]:
    """``fully_shard`` gathers a unit into a flat buffer and copies out of it; in the forward the
    buffer stays until the next unit has been copied. The backward gathers the next unit early, and
    reduces a unit's gradients out of a flat copy that stays until the next one's. Hybrid keeps what
    is then reduced between the groups to the end."""
    full = [
        sum(partition.rows_elements(shape, size) for shape in unit.shapes.values())
        * size
        * step.itemsize
        for unit in step.units
    ]
    whole, flat = 0.0, 0.0
    for index, unit in enumerate(step.units):
        before = step.kept(index - 1) if index else 0.0
        yield step.at(
            f"F{index}", before, gathered=whole + full[index], temporary=flat + full[index]
        )
        flat = full[index]
        yield step.at(
            f"F{index}",
            step.kept(index),
            gathered=whole + full[index],
            temporary=flat + unit.forward_work * step.itemsize,
        )
        whole += 0 if reshard else full[index]
    yield step.loss(gathered=whole)
    reducing, between, units = 0.0, 0.0, step.units
    for index, group, kept, work in step.backward():
        names = [name for each in units[index].gradients for name in each.names]
        made = (
            sum(units[index].sizes[name] for name in names[: names.index(group.names[-1]) + 1])
            * step.itemsize
        )
        ahead = full[index - 1] if index and reshard else 0.0
        gathered = full[index] if reshard else sum(full[: index + 1])
        if group is units[index].gradients[0]:
            early = ahead if index == len(units) - 1 else 0.0
            yield step.at(
                f"B{index}",
                kept,
                gathered=gathered,
                temporary=full[index] * reshard + early + reducing + between,
            )
        yield step.at(
            f"B{index}", kept, gathered=gathered, temporary=ahead + made + reducing + between + work
        )
        if group is units[index].gradients[-1]:
            reducing = full[index]
            yield step.at(
                f"B{index}",
                kept,
                gathered=gathered - reducing,
                temporary=ahead + 2 * reducing + between + work,
            )
            between += reducing / size * replicated
    largest = max(
        partition.rows_elements(shape, size) for unit in units for shape in unit.shapes.values()
    )
    yield step.at("step", temporary=2 * largest * step.itemsize)
