"""What is trained in one step and how its states are kept, and what theory says of it: the shards,
the bytes over the step, the payload of its collectives. ``run`` does the same for real.

    setting = sharding.Setting(engine="zero2", num_ranks=4)
    sharding.predicted(setting)                # Shards
"""

from dataclasses import dataclass

from labkit.footprint import Footprint
from labkit.sharding import partition, step
from labkit.sharding.step import Unit
from labkit.shards import Shards

ENGINES = tuple(partition.STAGES)
"""The engines that can be chosen."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained, and how its states are kept."""

    engine: str = "ddp"
    """one of ENGINES"""
    num_ranks: int = 2
    """how many ranks"""
    offload: str = "none"
    """"none", "optimizer", or "all" (parameters too, ZeRO 3)"""
    bucket_size: int = 50_000
    """DeepSpeed's reduce_bucket_size, in elements"""
    num_layers: int = 4
    """blocks of the transformer"""
    dim: int = 64
    """its width"""
    num_heads: int = 4
    """its heads"""
    batch: int = 1
    """sequences per microbatch and rank"""
    seq_len: int = 32
    """tokens of a sequence"""
    num_microbatches: int = 2
    """per step; 2 or more show what lies there between them"""

    def __post_init__(self) -> None:
        counts = (self.num_microbatches, self.num_layers, self.dim, self.batch, self.seq_len)
        if min(counts) < 1:
            raise ValueError(f"a step has a microbatch, a layer and a token or more; got {self}")
        partition.predict(self.engine, {"w": (1,)}, self.num_ranks, offload=self.offload)

    def units(self) -> list[Unit]:
        """The layers of the model."""
        return step.transformer(
            num_layers=self.num_layers,
            dim=self.dim,
            num_heads=self.num_heads,
            batch=self.batch,
            seq_len=self.seq_len,
        )


def predicted(setting: Setting) -> Shards:
    """What the ranks should hold between two microbatches."""
    units = setting.units()
    return partition.predict(
        setting.engine,
        step.shapes(units),
        setting.num_ranks,
        offload=setting.offload,
        bucket_size=setting.bucket_size,
        units=step.groups(units),
    )


def predicted_footprint(setting: Setting, rank: int = 0) -> Footprint:
    """The bytes of a rank over the step."""
    return step.predict(
        setting.engine,
        setting.units(),
        setting.num_ranks,
        rank=rank,
        offload=setting.offload,
        bucket_size=setting.bucket_size,
    )


def predicted_payload(setting: Setting) -> dict[str, int]:
    """Bytes that a rank hands to each collective in a step, as ``traffic`` counts them: the whole
    tensor to an all-reduce and a reduce-scatter, its own part to an all-gather. Padding included,
    DeepSpeed's few bytes of norm and overflow not. DeepSpeed's stages 1 and 2 call all-reduce where
    a reduce-scatter would do. Raises ValueError for one rank: engines then leave out what nobody
    needs.
    """
    if setting.num_ranks < 2:
        raise ValueError(f"a payload is predicted for 2 ranks or more; got {setting.num_ranks}")
    engine = setting.engine
    count = setting.num_microbatches
    held = {kind: int(per_rank[0]) for kind, per_rank in predicted(setting).bytes_by().items()}
    if engine in ("ddp", "zero0"):
        return {"all_reduce": held["gradient"]}
    if engine in ("zero1", "zero2"):
        reductions = count if engine == "zero2" else 1
        whole_bytes = 2 * sum(unit.num_params for unit in setting.units())  # bf16
        part_bytes = held["master"] // 2  # of which this is the fp32 copy
        return {"all_reduce": reductions * whole_bytes, "all_gather": part_bytes}
    part_bytes = held["parameter"]
    gathers = count if engine == "fsdp_grad_op" else 2 * count
    size = partition.group_size(engine, setting.num_ranks)
    found = {"all_gather": gathers * part_bytes, "reduce_scatter": count * size * part_bytes}
    if engine == "fsdp_hybrid":
        found["all_reduce"] = count * part_bytes
    return found
