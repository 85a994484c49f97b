"""One training step with the model's states whole or in parts, for real: DDP, DeepSpeed's ZeRO and
FSDP, measured beside what ``step`` predicts.

    step = sharding.Step(engine="zero2", ranks=4)
    run = step.run()
    step.measured(run)          # Shards of all ranks; step.predict() by theory
    run[0]["footprint"].peak_bytes
    run[0]["payload_bytes"]
    run.timeline()
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.devices import rung
from labkit.sharding import partition
from labkit.sharding.step import Step
from labkit.timeline import COMM, Timeline

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.job import Job
    from labkit.launching.run import Run
    from labkit.measure.memory import Watch
    from labkit.measure.traffic import Counted

TIMEOUT_S = 120.0
STAGE3_BUFFERS = (
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
)
"""DeepSpeed's options for what stage 3 keeps whole or gathers ahead, in elements."""


def start(step: Step, *, devices: str | rung.Pretend | None = None, clock: Any = None) -> "Job":
    """Trains two steps with the real engine and records a third, in the background. ``step.run()``
    starts it and waits. A ``clock`` is called in one more, see ``Trainer.train``, and what its
    ``phases()`` then gives is each rank's "phases"."""
    from labkit.launching import launcher

    if devices is None and step.engine.startswith("zero"):
        devices = rung.DEEPSPEED
    return launcher.start(
        _train, step, clock, ranks=step.ranks, timeout_s=TIMEOUT_S, devices=devices
    )


def timeline(run: "Run") -> Timeline:
    """The third step as recorded, its collectives under the names they were called by.

    gloo runs a reduce-scatter as an all-reduce, and its recording says so. The calls of a rank are
    matched with its spans one by one, in order; where their numbers differ the names stay as
    recorded.
    """
    line = run.timeline()
    kind = line.kind.astype(object)
    label = line.label.astype(object)
    for rank, result in enumerate(run):
        spans = np.flatnonzero((line.rank == rank) & (line.lane == COMM))
        spans = spans[np.argsort(line.start_us[spans], kind="stable")]
        called = [name for name, _ in result["order"]]
        if len(spans) == len(called):
            kind[spans] = called
            label[spans] = called
    return replace(line, kind=kind.astype(str), label=label.astype(str))


def deepspeed_config(step: Step) -> dict:
    """The JSON configuration of a ZeRO step, as ``deepspeed.initialize`` takes it: nothing
    prefetched or kept."""
    if not step.engine.startswith("zero"):
        raise ValueError(f"DeepSpeed is configured for zero0 to zero3; got {step.engine!r}")
    zero: dict[str, Any] = {
        "stage": int(step.engine[-1]),
        "reduce_bucket_size": step.bucket_size,
        "allgather_bucket_size": step.bucket_size,
    }
    if step.engine == "zero3":
        zero |= dict.fromkeys(STAGE3_BUFFERS, 0)
    if step.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if step.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": step.batch,
        "gradient_accumulation_steps": step.microbatches,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    }


# --- in the ranks ---


def _train(step: Step, clock: Any) -> dict:
    """One rank: a step that makes the states, a watched, a recorded, and one for a ``clock``."""
    import torch
    import torch.distributed as dist

    from labkit import model
    from labkit.measure import memory, trace, traffic
    from labkit.sharding import engines

    torch.manual_seed(0)  # FSDP takes each rank's part of that rank's own weights
    count = step.microbatches
    with memory.watch() as watched:
        net = model.Transformer(step.layers, step.dim, step.heads, max_len=step.seq_len)
        trainer = wrap(step, net)
        batch = model.story_tokens(step.batch, step.seq_len, seed=dist.get_rank())
        tokens, targets = (each.clone() for each in batch)
        found: dict = {}

        def between(index: int) -> None:
            dist.barrier()  # or gloo's thread may still hold the last message
            if index == max(0, count - 2):
                engines.claim(watched, trainer.engine, trainer.optimizer)
                found["shards"] = engines.shards(trainer.engine, trainer.optimizer)
                found["live_bytes"] = watched.live_bytes

        trainer.train(count, tokens, targets)
        watched.layers(net.layers)
        memory.reset_allocated_peak()
        with traffic.count() as counted:
            trainer.train(count, tokens, targets, watched, between)
        engines.claim(watched, trainer.engine, trainer.optimizer)
    found["allocated_bytes"] = memory.allocated_peak_bytes()
    began = time.perf_counter()
    with trace.record(operators=False), traffic.count() as recorded:
        found["loss"] = trainer.train(count, tokens, targets)
    found["step_us"] = (time.perf_counter() - began) * 1e6
    if clock:
        trainer.train(count, tokens, targets, clock=clock)
        found["phases"] = clock.phases()
    found |= {"footprint": watched.footprint(), "order": recorded.order}
    return found | _sent(counted)


def _sent(counted: "Counted") -> dict:
    """What a step called, handed over and sent."""
    return {
        "calls": {name: num for name, num in counted.calls.items() if name != "barrier"},
        "payload_bytes": dict(+counted.payload_bytes),
        "sent_bytes": counted.sent_bytes,
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
        clock: Callable[[str], None] = lambda phase: None,
    ) -> float:
        """One step. Marks its moments, calls ``between`` after each microbatch, ``clock`` with ""
        and after each phase, returns the last loss.

        DDP's gradients are zeroed, not dropped: a gradient made anew under ``no_sync`` lies beside
        its bucket, and all of them once more in memory.
        """
        import torch.distributed as dist

        from labkit import model

        clock("")
        for index in range(num_microbatches):
            last = index == num_microbatches - 1
            with self._synchronised(last):
                loss = model.loss(self.engine(tokens).float(), targets)
                if watched:
                    dist.barrier()  # or gloo's thread may still hold what it has gathered
                    watched.kept()
                    watched.mark("loss")
                value = loss.item()
                clock("forward")
                if self.optimizer:
                    (loss / num_microbatches).backward()
                else:
                    self.engine.backward(loss)
                del loss
                clock("backward")
            between(index)
            if watched and last:
                watched.mark("step")
            self._update(last)
            clock("step")
        return value

    def _update(self, last: bool) -> None:
        """DeepSpeed wants its ``step`` after each microbatch, torch's optimizers after the last."""
        if not self.optimizer:
            self.engine.step()
        elif last:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=not self._is_ddp)

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager:
        """DDP reduces in the last microbatch alone. FSDP in each: its gradients would have to stay
        whole."""
        waits = self._is_ddp and not last
        return self.engine.no_sync() if waits else contextlib.nullcontext()

    @property
    def _is_ddp(self) -> bool:
        from torch.nn.parallel import DistributedDataParallel

        return isinstance(self.engine, DistributedDataParallel)


def wrap(step: Step, net: "nn.Module") -> Trainer:
    """The model in the step's engine, with AdamW."""
    import torch
    from torch.distributed import fsdp
    from torch.nn.parallel import DistributedDataParallel

    if step.engine.startswith("zero"):
        import deepspeed

        engine = deepspeed.initialize(model=net, config=deepspeed_config(step))[0]
        return Trainer(engine=engine, optimizer=None)
    if step.engine == "ddp":
        engine = DistributedDataParallel(net, gradient_as_bucket_view=True)
    elif step.engine == "fsdp1":
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        engine = fsdp.FullyShardedDataParallel(
            net,
            device_id=torch.get_default_device(),
            auto_wrap_policy=ModuleWrapPolicy({type(each) for each in net.layers}),
        )
    else:
        _fully_shard(step, net)
        engine = net
    return Trainer(
        engine=engine, optimizer=torch.optim.AdamW(engine.parameters(), lr=1e-3, foreach=False)
    )


def _fully_shard(step: Step, net: "nn.Module") -> None:
    """``fully_shard`` on each layer and the model, by the strategy of the step."""
    import torch
    from torch.distributed import fsdp, init_device_mesh

    size = partition.group_size(step.engine, step.ranks)
    kind = torch.get_default_device().type
    if step.engine == "fsdp_hybrid":
        groups = (step.ranks // size, size)
        mesh = init_device_mesh(kind, groups, mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh(kind, (size,), mesh_dim_names=("shard",))
    reshard = step.engine != "fsdp_grad_op"
    for layer in [*net.layers, net]:
        fsdp.fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
