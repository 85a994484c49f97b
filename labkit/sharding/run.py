"""One training step with the model's states whole or in parts, for real: DDP, DeepSpeed's ZeRO and
FSDP, measured beside what ``partition`` and ``footprint`` predict.

    setting = sharding.Setting(engine="zero2", num_ranks=4)
    run = sharding.run(setting)
    sharding.measured(run)                   # Shards of all ranks; sharding.predicted(setting) the same by theory
    run[0]["footprint"].peak_bytes, run[0]["payload_bytes"], run.timeline()
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import shards as shards_
from labkit.footprint import Footprint
from labkit.sharding import partition, step
from labkit.sharding.step import Unit
from labkit.shards import Shards
from labkit.timeline import COMM, Timeline

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.job import Job
    from labkit.launching.run import Run
    from labkit.measure.memory import Watch

ENGINES = tuple(partition.STAGES)


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
        if (
            self.num_microbatches < 1
            or min(self.num_layers, self.dim, self.batch, self.seq_len) < 1
        ):
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
    engine, count = setting.engine, setting.num_microbatches
    held = {kind: int(per_rank[0]) for kind, per_rank in predicted(setting).bytes_by().items()}
    if engine in ("ddp", "zero0"):
        return {"all_reduce": held["gradient"]}
    if engine in ("zero1", "zero2"):
        total = sum(
            unit.num_params for unit in setting.units()
        )  # in bf16, of which a part is 2/4 of its fp32 copy
        return {
            "all_reduce": 2 * total * (count if engine == "zero2" else 1),
            "all_gather": held["master"] // 2,
        }
    part, size = held["parameter"], partition.group_size(engine, setting.num_ranks)
    gathers = 1 if engine == "fsdp_grad_op" else 2
    found = {"all_gather": gathers * count * part, "reduce_scatter": count * size * part}
    return found | ({"all_reduce": count * part} if engine == "fsdp_hybrid" else {})


def launch(setting: Setting, *, timeout_s: float = 60.0) -> "Run":
    """Trains two steps with the real engine. ``run[r]`` is a dict: shards (between the microbatches
    of the second step), footprint, live_bytes (all that torch holds at that moment, by another
    count), calls, payload_bytes and sent_bytes (of the second step, see ``traffic``), step_us,
    loss, and order: (collective, bytes) of each call of a third step, unwatched, which ``timeline``
    draws."""
    return start(setting, timeout_s=timeout_s).wait()


def start(setting: Setting, *, timeout_s: float = 60.0) -> "Job":
    """``launch`` in the background: returns at once."""
    from labkit.launching import launcher

    return launcher.start(
        _train, setting, ranks=setting.num_ranks, timeout_s=timeout_s, backend="gloo"
    )


def measured(run: "Run") -> Shards:
    """What the ranks of a run held between two microbatches."""
    return shards_.join(result["shards"] for result in run)


def timeline(run: "Run") -> Timeline:
    """The third step as recorded, its collectives under the names they were called by.

    gloo runs a reduce-scatter as an all-reduce, and its recording says so. The calls of a rank are
    matched with its spans one by one, in order; where their numbers differ the names stay as
    recorded.
    """
    line = run.timeline()
    kind, label = (column.astype(object) for column in (line.kind, line.label))
    for rank, result in enumerate(run):
        spans = np.flatnonzero((line.rank == rank) & (line.lane == COMM))
        spans = spans[np.argsort(line.start_us[spans], kind="stable")]
        if len(spans) == len(result["order"]):
            kind[spans] = label[spans] = [name for name, _ in result["order"]]
    return replace(line, kind=kind.astype(str), label=label.astype(str))


def deepspeed_config(setting: Setting) -> dict:
    """The JSON configuration of a ZeRO setting, as ``deepspeed.initialize`` takes it: nothing
    prefetched or kept."""
    if not setting.engine.startswith("zero"):
        raise ValueError(f"DeepSpeed is configured for zero0 to zero3; got {setting.engine!r}")
    zero: dict[str, Any] = {
        "stage": int(setting.engine[-1]),
        "reduce_bucket_size": setting.bucket_size,
        "allgather_bucket_size": setting.bucket_size,
    }
    if setting.engine == "zero3":
        zero |= dict.fromkeys(
            (
                "stage3_prefetch_bucket_size",
                "stage3_param_persistence_threshold",
                "stage3_max_live_parameters",
                "stage3_max_reuse_distance",
            ),
            0,
        )
    if setting.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if setting.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": setting.batch,
        "gradient_accumulation_steps": setting.num_microbatches,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    }


# --- in the ranks ---


def _train(setting: Setting) -> dict:
    """One rank: a step that makes the optimizer's states, a watched one, a recorded one."""
    import torch
    import torch.distributed as dist

    from labkit import model
    from labkit.measure import memory, trace, traffic
    from labkit.sharding import engines

    torch.manual_seed(0)  # FSDP takes each rank's part of that rank's own weights
    found: dict = {}
    with memory.watch() as watched:
        net = model.Transformer(
            setting.num_layers, setting.dim, setting.num_heads, max_len=setting.seq_len
        )
        trainer = wrap(setting, net)
        batch = model.story_tokens(setting.batch, setting.seq_len, seed=dist.get_rank())
        tokens, targets = (each.clone() for each in batch)

        def between(index: int) -> None:
            dist.barrier()  # or gloo's thread may still hold the last message
            if index == max(0, setting.num_microbatches - 2):
                engines.claim(watched, trainer.engine, trainer.optimizer)
                found.update(
                    shards=engines.shards(trainer.engine, trainer.optimizer),
                    live_bytes=watched.live_bytes,
                )

        trainer.train(setting.num_microbatches, tokens, targets)
        watched.layers(net.layers)
        with traffic.count() as counted:
            trainer.train(setting.num_microbatches, tokens, targets, watched, between)
        engines.claim(watched, trainer.engine, trainer.optimizer)
    began = time.perf_counter()
    with trace.record(operators=False), traffic.count() as recorded:
        loss = trainer.train(setting.num_microbatches, tokens, targets)
    return {
        **found,
        "footprint": watched.footprint(),
        "loss": loss,
        "step_us": (time.perf_counter() - began) * 1e6,
        "calls": {name: num for name, num in counted.calls.items() if name != "barrier"},
        "payload_bytes": dict(+counted.payload_bytes),
        "sent_bytes": counted.sent_bytes,
        "order": recorded.order,
    }


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """A model in its engine, and how one trains it."""

    engine: Any
    """what is called with tokens"""
    optimizer: Any
    """torch's optimizer; None for DeepSpeed, whose engine has one"""

    def train(
        self,
        num_microbatches: int,
        tokens: "Tensor",
        targets: "Tensor",
        watched: "Watch | None" = None,
        between: Callable[[int], None] = lambda index: None,
    ) -> float:
        """One step. Marks its moments, calls ``between`` after each microbatch, returns the last
        loss.

        DDP's gradients are zeroed, not dropped: a gradient made anew under ``no_sync`` lies beside
        its bucket, and all of them once more in memory.
        """
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from labkit import model

        for index in range(num_microbatches):
            last = index == num_microbatches - 1
            with self._synchronised(last):
                loss = model.loss(self.engine(tokens).float(), targets)
                if watched:
                    dist.barrier()  # or gloo's thread may still hold what it has gathered
                    watched.kept()
                    watched.mark("loss")
                value = loss.item()
                (loss / num_microbatches).backward() if self.optimizer else self.engine.backward(
                    loss
                )
                del loss
            between(index)
            if watched and last:
                watched.mark("step")
            if not self.optimizer:
                self.engine.step()
            elif last:
                self.optimizer.step()
                self.optimizer.zero_grad(
                    set_to_none=not isinstance(self.engine, DistributedDataParallel)
                )
        return value

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager:
        """DDP reduces in the last microbatch alone. FSDP in each: its gradients would have to stay
        whole."""
        from torch.nn.parallel import DistributedDataParallel

        waits = isinstance(self.engine, DistributedDataParallel) and not last
        return self.engine.no_sync() if waits else contextlib.nullcontext()


def wrap(setting: Setting, net: "nn.Module") -> Trainer:
    """The model in the setting's engine, with AdamW."""
    import torch
    import torch.distributed as dist
    from torch.distributed import fsdp
    from torch.nn.parallel import DistributedDataParallel

    if setting.engine.startswith("zero"):
        import deepspeed

        return Trainer(
            engine=deepspeed.initialize(model=net, config=deepspeed_config(setting))[0],
            optimizer=None,
        )
    if setting.engine == "ddp":
        engine = DistributedDataParallel(net, gradient_as_bucket_view=True)
    elif setting.engine == "fsdp1":
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        engine = fsdp.FullyShardedDataParallel(
            net,
            device_id=torch.device("cpu"),
            auto_wrap_policy=ModuleWrapPolicy({type(each) for each in net.layers}),
        )
    else:
        size = partition.group_size(setting.engine, setting.num_ranks)
        groups = (setting.num_ranks // size, size) if setting.engine == "fsdp_hybrid" else (size,)
        names = ("replicate", "shard")[-len(groups) :]
        mesh, engine = dist.init_device_mesh("cpu", groups, mesh_dim_names=names), net
        for layer in [*net.layers, net]:
            fsdp.fully_shard(
                layer, mesh=mesh, reshard_after_forward=setting.engine != "fsdp_grad_op"
            )
    return Trainer(engine=engine, optimizer=torch.optim.AdamW(engine.parameters(), lr=1e-3))
