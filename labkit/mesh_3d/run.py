"""A step of all axes on real ranks: four steps of AdamW, held against one process; one of them
counted by axis, and a last one recorded, at its stated times where it has some."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from labkit.devices import rung
from labkit.mesh import Mesh
from labkit.mesh_3d.step import AXES, Step

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.launching.job import Job
    from labkit.measure.traffic import Counted

TIMEOUT_S = 120.0
NUM_STEPS = 4
"""whose losses are compared"""
COUNTED = 1
"""which of them is counted: in the first torch's pipeline also sends shapes"""


def start(step: Step) -> "Job":
    """Trains in the background; ``step.run()`` starts it and waits."""
    from labkit.launching import launcher

    devices = rung.DEEPSPEED if step.engine == "deepspeed" else None
    return launcher.start(_train, step, ranks=step.ranks, timeout_s=TIMEOUT_S, devices=devices)


# --- in the ranks ---


def _train(step: Step) -> dict:
    """One rank: trains beside one process, counts, records."""
    import torch
    import torch.distributed as dist

    from labkit import model
    from labkit.launching import rank
    from labkit.measure import traffic
    from labkit.measure.apart import difference

    torch.set_num_threads(1)  # several ranks on few cores
    batch = model.story_tokens(step.batch, step.sequence)
    right, gradients = _one_process(step, *batch)
    trainer = _trainer(step)
    losses = []
    found: dict[str, Any] = {}

    def seen(moment: str) -> None:
        if moment == "backward" and index == COUNTED:
            found["held_bytes"] = trainer.held()
        if moment == "reduce" and index == 0:
            wanted = trainer.expected(step, gradients)
            found["gradient_difference"] = difference(trainer.gradients(), wanted)

    for index in range(NUM_STEPS):
        with traffic.count() as counted:
            each = trainer.train(*batch, seen)
        if index == COUNTED:
            found |= by_axis(step.mesh, counted, dist.get_rank())
        losses.append(_mean(step, each))
        rank.current().progress(step=index + 1, loss=losses[-1])
    return {
        "losses": losses,
        "whole_losses": right,
        "loss_difference": max(abs(a - b) for a, b in zip(losses, right, strict=True)),
        **found,
        **_recorded(step, trainer, batch),
    }


def _one_process(step: Step, tokens: "Tensor", targets: "Tensor") -> tuple[list[float], Any]:
    """The losses of all steps; and a model that holds the first step's gradients in the place of
    its weights."""
    import torch

    from labkit import model
    from labkit.mesh_3d.torch_run import LEARNING_RATE

    whole = _net(step)
    gradients = _net(step)
    optimizer = torch.optim.AdamW(whole.parameters(), LEARNING_RATE)
    losses = []
    for index in range(NUM_STEPS):
        loss = model.loss(whole(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        if index == 0:
            for place, weight in zip(gradients.parameters(), whole.parameters(), strict=True):
                place.data.copy_(weight.grad)
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def _net(step: Step) -> Any:
    """The whole model, drawn with the same numbers every time."""
    import torch

    from labkit import model

    torch.manual_seed(0)
    return model.Transformer(step.layers, step.hidden, step.heads, max_len=step.sequence)


def _trainer(step: Step) -> Any:
    """This rank's part, by the engine."""
    if step.engine == "deepspeed":
        from labkit.mesh_3d import deepspeed_run

        return deepspeed_run.Trainer(step, _net(step))
    from labkit.mesh_3d import torch_run

    return torch_run.Trainer(step, _net(step))


def _mean(step: Step, losses: "list[Tensor]") -> float:
    """Over the microbatches of all replicas, on every rank: only ranks of the last stage have
    losses, the same on all of tp."""
    import torch
    import torch.distributed as dist

    total = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.all_reduce(total)
    return total.item() / (step.dp * step.tp)


def by_axis(mesh: Mesh, counted: "Counted", rank: int) -> dict[str, dict]:
    """What was counted, by the axis along which it went: calls and payload bytes of each
    collective."""
    calls: dict[str, dict[str, int]] = {}
    payload: dict[str, dict[str, int]] = {}
    peers = iter(counted.peers)
    for (name, num_bytes), ranks in zip(counted.order, counted.groups, strict=True):
        among = (rank, next(peers)[1]) if name in ("send", "recv") else ranks
        axis = axis_of(mesh, rank, among)
        for table, number in ((calls, 1), (payload, num_bytes)):
            of_axis = table.setdefault(axis, {})
            of_axis[name] = of_axis.get(name, 0) + number
    return {"calls": calls, "payload_bytes": payload}


def axis_of(mesh: Mesh, rank: int, ranks: Iterable[int]) -> str:
    """The axis along which these ranks, of whom this is one, lie; "world" where there is none."""
    for axis in AXES:
        if getattr(mesh, axis) > 1 and set(ranks) <= set(mesh.groups(axis).of(rank)):
            return axis
    return "world"


def _recorded(step: Step, trainer: Any, batch: "tuple[Tensor, Tensor]") -> dict:
    """One step more, recorded: how long it took, and how often it was late."""
    import contextlib

    import torch.distributed as dist

    from labkit.measure import trace
    from labkit.mesh_3d import paced_run

    paced = contextlib.nullcontext()
    if step.forward_ms:
        paced = paced_run.stated(step, trainer.stage)
    stages = [] if step.forward_ms else [trainer.stage]
    with paced as pace, trace.record(*stages, operators=False):
        dist.barrier()
        began_s = time.perf_counter()
        trainer.train(*batch)
        step_us = 1e6 * (time.perf_counter() - began_s)
        dist.barrier()
    return {"step_us": step_us, "overruns": pace.num_overruns if pace else 0}
