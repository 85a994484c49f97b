"""A schedule on real ranks: the very configuration that theory simulates, through
``torch.distributed.pipelining``.

    run = pipeline.launch("1f1b", 4, 8, forward_us=50_000)
    cost = pipeline.cost(1, forward_us=50_000)
    predicted = pipeline.simulate(pipeline.one_f_one_b(4, 8), cost)
    pipeline.residual(predicted, run.timeline())  # where the difference comes from

Four processes train the small transformer on the story, each forward stated to take 50 ms. A
warm-up step comes first, untraced and unpaced: torch exchanges shapes and connects the ranks in it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit.pipeline.difference import overheads_us
from labkit.pipeline.runtime import TORCH_CLASSES, cost, refusal
from labkit.pipeline.schedule import Schedule
from labkit.pipeline.schedules import SCHEDULES

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the pipeline trains, and for how long each stage is told to compute."""

    forward_us: float | None = None
    """stated time of a microbatch's forward through all stages of one rank; None runs at the
    machine's own pace"""
    backward_ratio: float = 2.0
    """backward over forward time, when stated"""
    input_share: float = 0.5
    """the share of a split backward that the input's half takes, when stated"""
    num_steps: int = 1
    """optimizer steps after the warm-up step; the last one is traced"""
    num_layers: int | None = None
    """blocks of the transformer; one per stage if not given"""
    dim: int = 32
    """width of the transformer: small, so that stated times can be kept by many ranks on few
    cores"""
    num_heads: int = 2
    """attention heads"""
    seq_len: int = 32
    """bytes of story in a sequence"""
    microbatch_size: int = 1
    """sequences in a microbatch"""
    learning_rate: float = 0.1
    """of plain stochastic gradient descent"""
    seed: int = 0
    """of the weights and of the passages of the story"""
    keep_gradients: bool = False
    """also return the gradients of the last step, under the names they have in the whole model"""


def launch(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    *,
    num_chunks: int = 2,
    timeout_s: float = 120.0,
    hang_s: float = 60.0,
    **training: Any,
) -> "Run":
    """Trains on real ranks under a schedule of ``SCHEDULES``; ``training`` are the fields of
    ``Training``.

    ``run[r]`` is a dict: losses (per step, on the rank of the last stage), step_s,
    peak_activation_bytes, peak_in_flight, peak_rss_bytes, num_overruns; ``run.timeline()`` is the
    last step. Raises ValueError where torch refuses.
    """
    reason = refusal(name, num_ranks, num_microbatches, num_chunks)
    if reason:
        raise ValueError(reason)
    counts = [num_ranks, num_microbatches]
    if name.startswith("interleaved"):
        counts.append(num_chunks)
    schedule = SCHEDULES[name](*counts)
    return execute(schedule, timeout_s=timeout_s, hang_s=hang_s, **training)


def execute(
    schedule: Schedule, *, timeout_s: float = 120.0, hang_s: float = 60.0, **training: Any
) -> "Run":
    """The same for any Schedule, one of your own included: torch's interpreting runtime follows its
    orders."""
    return start(schedule, timeout_s=timeout_s, hang_s=hang_s, **training).wait()


def start(
    schedule: Schedule, *, timeout_s: float = 120.0, hang_s: float = 60.0, **training: Any
) -> "Job":
    """The same in the background: returns a Job at once."""
    from labkit.launching import launcher

    return launcher.start(
        _train,
        schedule,
        Training(**training),
        ranks=schedule.num_ranks,
        timeout_s=timeout_s,
        hang_s=hang_s,
    )


def calibrate(
    num_ranks: int,
    *,
    name: str = "gpipe",
    num_chunks: int = 2,
    forward_us: float = 20_000.0,
    **training: Any,
) -> dict[str, float]:
    """What ``cost`` must know of this machine: message_us, gap_us and post_us, from a run of its
    own, never the one it predicts.

    A paced run of the same model on as many ranks, with twice as many microbatches. ``message_us``:
    from the end of an action to the start of one on another rank that waited for it (median);
    ``gap_us`` and ``post_us``: between two actions of a rank that had all it needed, without and
    for each message posted there (a line through the medians).
    """
    run = launch(
        name, num_ranks, 2 * num_ranks, num_chunks=num_chunks, forward_us=forward_us, **training
    )
    return overheads_us(run.timeline())


# --- in the ranks ---


def _train(schedule: Schedule, training: Training) -> dict:
    """One rank: builds its stages, warms up, then trains at the stated pace and records the last
    step."""
    import torch

    from labkit.measure import memory, pace, trace

    stages = _stages(schedule, training)
    weights = {}
    for stage in stages:
        weights |= {f"layers.{name}": weight for name, weight in stage.submod.named_parameters()}
    runtime = _runtime(schedule, stages)
    optimizer = torch.optim.SGD(weights.values(), lr=training.learning_rate)
    losses: list[float] = []
    steps = (
        _step(runtime, optimizer, *batch, losses)
        for batch in enumerate(_batches(schedule, training, stages))
    )
    with memory.activations(*stages) as held:
        next(steps)
    paces = []
    if training.forward_us:
        paces = [pace.stage(stage, **_stated(schedule, training)) for stage in stages]
    for _ in range(training.num_steps - 1):
        next(steps)
    with trace.record(*stages):
        step_s = next(steps)
    result = {
        "losses": losses,
        "step_s": step_s,
        "peak_activation_bytes": held.peak_bytes,
        "peak_in_flight": held.peak_chunks,
        "peak_rss_bytes": memory.peak_rss_bytes(),
        "num_overruns": sum(each.num_overruns for each in paces),
    }
    if training.keep_gradients:
        result["gradients"] = {name: weight.grad for name, weight in weights.items()}
    return result


def _step(runtime: Any, optimizer: Any, index: int, batch: tuple, losses: list[float]) -> float:
    """One training step, all ranks beginning together. Returns the seconds of the pipeline, without
    the optimizer."""
    import torch.distributed as dist

    from labkit.launching import rank

    inputs, targets = batch
    each: list = []
    optimizer.zero_grad()
    dist.barrier()
    start_s = time.perf_counter()
    runtime.step(*inputs, target=targets, losses=each, return_outputs=False)
    seconds = time.perf_counter() - start_s
    optimizer.step()
    dist.barrier()  # or who is through writes its recording while others still compute
    if each:
        losses.append(sum(loss.item() for loss in each) / len(each))
    rank.current().progress(step=index + 1, loss=losses[-1] if losses else None)
    return seconds


def _stages(schedule: Schedule, training: Training) -> list:
    """This rank's stages of the model, on its device, in the order of their numbers."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage

    from labkit import model

    me = dist.get_rank()
    device = torch.device("cuda", me) if dist.get_backend() == "nccl" else torch.device("cpu")
    torch.manual_seed(training.seed)
    whole = model.Transformer(
        training.num_layers or schedule.num_stages,
        training.dim,
        training.num_heads,
        max_len=training.seq_len,
    )
    parts = model.split(whole, schedule.num_stages)
    return [
        PipelineStage(parts[index].to(device), index, schedule.num_stages, device)
        for index in range(schedule.num_stages)
        if schedule.stage_rank[index] == me
    ]


def _runtime(schedule: Schedule, stages: list) -> Any:
    """torch's schedule of that name, or its interpreting runtime (a private class) with the orders
    of ``schedule``."""
    from torch.distributed.pipelining import schedules

    from labkit import model

    num_microbatches = schedule.num_microbatches
    if schedule.name in TORCH_CLASSES:
        torch_class = getattr(schedules, TORCH_CLASSES[schedule.name])
        single = schedule.name in ("gpipe", "1f1b")
        return torch_class(stages[0] if single else stages, num_microbatches, loss_fn=model.loss)
    runtime = schedules._PipelineScheduleRuntime(stages, num_microbatches, loss_fn=model.loss)
    orders = {}
    for rank, order in enumerate(schedule.orders):
        orders[rank] = [schedules._Action.from_str(str(action)) for action in order]
    runtime._prepare_schedule_with_comms(orders)
    return runtime


def _stated(schedule: Schedule, training: Training) -> dict[str, float]:
    """What each kind of action of a stage is stated to take."""
    stated = cost(
        schedule.num_stages // schedule.num_ranks,
        forward_us=training.forward_us,
        backward_ratio=training.backward_ratio,
        input_share=training.input_share,
    )
    return {
        name: getattr(stated, name)
        for name in ("forward_us", "backward_us", "input_us", "weight_us")
    }


def _batches(schedule: Schedule, training: Training, stages: list) -> Iterator[tuple]:
    """Per step: the tokens for the rank of the first stage, the targets for the rank of the last
    one."""
    from labkit import model

    num_sequences = schedule.num_microbatches * training.microbatch_size
    device = stages[0].device
    holds_first = any(stage.is_first for stage in stages)
    holds_last = any(stage.is_last for stage in stages)
    for step in range(training.num_steps + 1):
        tokens, targets = model.story_tokens(
            num_sequences, training.seq_len, seed=training.seed + step
        )
        inputs = (tokens.to(device),) if holds_first else ()
        yield inputs, targets.to(device) if holds_last else None
