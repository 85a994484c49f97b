"""A schedule on real ranks: the very configuration that theory simulates, through
``torch.distributed.pipelining``.

    step = pipeline.Step(schedule="1f1b", ranks=4, microbatches=8)
    step.predict()
    step.run().timeline()
    step.compare()      # both, and where the difference comes from

Four processes train the small transformer on the story, each forward stated to take 50 ms. A
warm-up step comes first, untraced and unpaced: torch exchanges shapes and connects the ranks in it.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from labkit.pipeline.difference import overheads_us
from labkit.pipeline.runtime import TORCH_CLASSES
from labkit.pipeline.schedule import Schedule
from labkit.pipeline.step import Step, Training

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 120.0
HANG_S = 60.0
CALIBRATION_MS = 20.0
CALIBRATION_CHUNKS = 2


def start(step: Step) -> "Job":
    """Trains on real ranks, in the background: torch's own schedule of that name, or for an order
    of your own torch's interpreting runtime. ``step.run()`` starts it and waits."""
    from labkit.launching import launcher

    return launcher.start(_train, step, ranks=step.ranks, timeout_s=TIMEOUT_S, hang_s=HANG_S)


def calibrated(step: Step) -> Step:
    """The step with message_ms, gap_ms and post_ms as this machine needs them, from a run of its
    own.

    A paced run of the same model on as many ranks, with twice as many microbatches. ``message_us``:
    from the end of an action to the start of one on another rank that waited for it (median);
    ``gap_us`` and ``post_us``: between two actions of a rank that had all it needed, without and
    for each message posted there (a line through the medians).
    """
    own = step.as_run().but(
        microbatches=2 * step.ranks, chunks=CALIBRATION_CHUNKS, forward_ms=CALIBRATION_MS
    )
    found = overheads_us(own.run().timeline())
    return step.but(
        message_ms=found["message_us"] / 1e3,
        gap_ms=found["gap_us"] / 1e3,
        post_ms=found["post_us"] / 1e3,
    )


# --- in the ranks ---


def _train(step: Step) -> dict:
    """One rank: builds its stages, warms up, then trains at the stated pace and records the last
    step."""
    import torch

    from labkit.measure import memory, pace, trace

    training = step.training
    schedule = step.order()
    stages = _stages(schedule, training)
    weights = {}
    for stage in stages:
        weights |= {f"layers.{name}": weight for name, weight in stage.submod.named_parameters()}
    runtime = _runtime(schedule, stages)
    optimizer = torch.optim.SGD(weights.values(), lr=training.learning_rate)
    losses: list[float] = []
    updates = (
        _update(runtime, optimizer, *batch, losses)
        for batch in enumerate(_batches(schedule, training, stages))
    )
    with memory.activations(*stages) as held:
        next(updates)
    paces = []
    if step.forward_ms:
        paces = [pace.stage(stage, **_stated(step)) for stage in stages]
    for _ in range(training.num_steps - 1):
        next(updates)
    with trace.record(*stages):
        step_s = next(updates)
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


def _update(runtime: Any, optimizer: Any, index: int, batch: tuple, losses: list[float]) -> float:
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
    device = torch.get_default_device()
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


def _stated(step: Step) -> dict[str, float]:
    """What each kind of action of a stage is stated to take."""
    names = ("forward_us", "backward_us", "input_us", "weight_us")
    stated = step.cost()
    return {name: getattr(stated, name) for name in names}


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
