"""How many bytes a rank holds at each moment of a training step, by part of the bill: what theory
says of the peak.

    units = step.transformer(num_layers=4, dim=128, num_heads=4, batch=1, seq_len=32)
    step.predict("fsdp", units, num_ranks=4).peak_bytes

On top of what lies there between steps (``partition``) come activations (``layers``), gathered
parameters, buckets and temporary tensors, as torch 2.13 and DeepSpeed 0.19.8 allocate them
(``phases`` and its engines). The step is the last microbatch of several, and the update.
"""

from collections.abc import Sequence

from labkit.footprint import Footprint, from_moments
from labkit.sharding import partition
from labkit.sharding.fsdp_phases import FsdpPhases
from labkit.sharding.layers import Gradient, Unit, groups, shapes, transformer
from labkit.sharding.phases import DataParallelPhases, Phases
from labkit.sharding.zero_phases import Zero1Phases, Zero2Phases, Zero3Phases
from labkit.shards import ITEMSIZE
from labkit.units import check_whole, check_word

__all__ = ["Gradient", "Unit", "groups", "predict", "shapes", "transformer"]

ZERO = {"zero1": Zero1Phases, "zero2": Zero2Phases, "zero3": Zero3Phases}
"""DeepSpeed's stages whose step is predicted."""


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
    _check(engine, units, bucket_size)
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
    by_part = held.bytes_by("category")
    common = {
        "units": units,
        "rest": {part: float(per_rank[rank]) for part, per_rank in by_part.items()},
        "itemsize": ITEMSIZE[partition.state_dtypes(engine, recipe_name)["parameter"]],
    }
    if engine in ZERO:
        own = held.select(held.rank == rank)
        phases: Phases = ZERO[engine](
            **common, held=own, bucket_size=bucket_size, offloaded=offload != "none"
        )
    elif engine.startswith("fsdp"):
        size = partition.group_size(engine, num_ranks, shard_size)
        reshard = engine != "fsdp_grad_op"
        phases = FsdpPhases(**common, shard_size=size, reshard=reshard, replicated=size < num_ranks)
    else:
        phases = DataParallelPhases(**common)
    return from_moments(phases.moments(), "predicted")


def _check(engine: str, units: Sequence[Unit], bucket_size: int) -> None:
    """Raises ValueError for a step that is not predicted."""
    check_word(engine, partition.STAGES, "an engine")
    check_whole(**{"number of units": len(units)})
    largest = max(unit.largest for unit in units)
    if engine in ZERO and bucket_size < largest:
        raise ValueError(
            "a footprint is predicted where a bucket holds every gradient; the largest has "
            f"{largest} elements, reduce_bucket_size is {bucket_size}"
        )
    if engine in ("fsdp1", "zero0"):
        raise ValueError(
            f"the footprint of a step is predicted for DDP, ZeRO 1 to 3 and FSDP 2; got {engine}"
        )
