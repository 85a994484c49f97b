"""A small model trained by each strategy of ``strategies()`` on real ranks: what a rank should hold
and hand over, and what it does."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit import footprint
from labkit.launching import launcher
from labkit.planner.models import PARTS
from labkit.sharding import partition
from labkit.sharding import run as sharding_run
from labkit.sharding import step as sharding_step
from labkit.sharding.step import Unit
from labkit.shards import join

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.job import Job
    from labkit.measure.memory import Activations

SMALL = {"num_layers": 8, "dim": 64, "num_heads": 4, "seq_len": 32}
"""The model."""


def num_stages(strategy: str, num_ranks: int) -> int:
    """p: into how many parts the layers are cut."""
    return {"layers": num_ranks, "hybrid": 2}.get(strategy, 1)


def num_params() -> int:
    """How many parameters the model has."""
    return sum(unit.num_params for unit in small_units(1))


def start(strategy: str, num_ranks: int, batch: int) -> "Job":
    """Begins two steps or more by a strategy, ``batch`` sequences on all ranks together; returns at
    once."""
    if strategy == "sharded":
        return sharding_run.start(_fsdp(num_ranks, batch))
    return launcher.start(train, strategy, batch, ranks=num_ranks, backend="gloo", timeout_s=60.0)


def small_units(batch: int) -> list[Unit]:
    """Layers of the small model, for a microbatch of so many sequences."""
    return sharding_step.transformer(**SMALL, batch=batch)


def _fsdp(num_ranks: int, batch: int) -> sharding_run.Setting:
    return sharding_run.Setting(
        engine="fsdp", num_ranks=num_ranks, num_microbatches=1, batch=batch // num_ranks, **SMALL
    )


def predicted(
    strategy: str, num_ranks: int, batch: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Per rank what it should hold after a backward, by PARTS, and the payload of its step, by
    collective."""
    stages, found = num_stages(strategy, num_ranks), []
    replicas = num_ranks // stages
    share = batch // replicas
    chunks = share if stages > 1 else 1
    units, blocks = small_units(share // chunks), SMALL["num_layers"]
    cuts = [
        0,
        *(1 + stage * blocks // stages for stage in range(1, stages)),
        len(units),
    ]  # as model.split
    for rank in range(num_ranks):
        stage = rank % stages
        mine = units[cuts[stage] : cuts[stage + 1]]
        states = partition.predict(
            "fsdp" if strategy == "sharded" else "ddp", sharding_step.shapes(mine), num_ranks
        )
        bill = {
            part: float(per_rank[rank]) for part, per_rank in states.bytes_by("category").items()
        }
        kept = sum(4 * unit.gradients[0].kept + unit.kept_bytes for unit in mine) + 4 * (
            stage == stages - 1
        )
        labels = (
            8 * SMALL["seq_len"] * share // chunks
        )  # the last stage keeps them, footprint counts them to the first
        kept += labels * ((stage == stages - 1) - (stage == 0))
        weights = 4 * sum(unit.num_params for unit in mine)
        message = 4 * share * SMALL["dim"] * SMALL["seq_len"]
        handed = (
            sharding_run.predicted_payload(_fsdp(num_ranks, batch))
            if strategy == "sharded"
            else {
                "all_reduce": weights * (replicas > 1),
                "send": message * ((stage > 0) + (stage < stages - 1)),
            }
        )
        found.append(({**bill, "activations": chunks * kept}, handed))
    return found


def held(run: Sequence[dict], rank: int) -> dict[str, float]:
    """What a rank of such a run held after a backward, by PARTS."""
    states = join(each["shards"] for each in run).bytes_by("category")
    kept = run[rank].get("activation_bytes")
    if kept is None:
        step = run[rank]["footprint"]
        kept = step.num_bytes[step.labels.index("loss"), footprint.PARTS.index("activations")]
    return {**{part: float(states[part][rank]) for part in PARTS[:3]}, "activations": float(kept)}


def payload(result: dict) -> dict[str, float]:
    """What a rank handed over; a receive is another rank's send."""
    return {name: num for name, num in sorted(result["payload_bytes"].items()) if name != "recv"}


def train(strategy: str, batch: int, recorded: bool = True) -> dict:
    """One rank: two steps on the same sequences, whatever the strategy; what it held and sent in
    the second, which may be recorded."""
    import torch
    import torch.distributed as dist

    from labkit import model
    from labkit.measure import memory, trace, traffic
    from labkit.sharding import engines

    rank, size = dist.get_rank(), dist.get_world_size()
    stages = num_stages(strategy, size)
    groups = [dist.new_group(range(stage, size, stages)) for stage in range(stages)]
    torch.manual_seed(0)
    net = model.Transformer(
        SMALL["num_layers"], SMALL["dim"], SMALL["num_heads"], max_len=SMALL["seq_len"]
    )
    part = (
        model.split(net, stages)[rank % stages] if stages > 1 else torch.nn.Sequential(*net.layers)
    )
    optimizer, losses = torch.optim.AdamW(part.parameters(), lr=1e-3), []
    data = [
        each.chunk(size // stages)[rank // stages]
        for each in model.story_tokens(batch, SMALL["seq_len"])
    ]
    for step in range(2):
        held, found = memory.Activations(part.parameters()), {}
        timeline = trace.record(operators=False) if step and recorded else contextlib.nullcontext()
        with timeline, traffic.count() as counted:
            losses.append(_backward(part, data, rank % stages, stages, held))
            if size > stages:
                _average(list(part.parameters()), groups[rank % stages])
        found["shards"] = engines.shards(part, optimizer)
        optimizer.step(), optimizer.zero_grad()
    return {
        **found,
        "activation_bytes": held.peak_bytes,
        "losses": losses,
        "sent_bytes": counted.sent_bytes,
        "payload_bytes": dict(+counted.payload_bytes),
    }


def _backward(
    part: "nn.Module", data: "Sequence[Tensor]", stage: int, stages: int, held: "Activations"
) -> float:
    """Forwards of all microbatches, then their backwards; activations go to the next rank, their
    gradients back."""
    import torch
    import torch.distributed as dist

    from labkit import model

    rank, kept, last = dist.get_rank(), [], stage == stages - 1
    chunks = len(data[0]) if stages > 1 else 1
    for index, (tokens, targets) in enumerate(
        zip(*(each.chunk(chunks) for each in data), strict=True)
    ):
        given = tokens.clone()
        if stage:
            given = torch.empty(*tokens.shape, SMALL["dim"])
            dist.recv(given, rank - 1)
            given.requires_grad_()
        with held.chunk(index):
            made = part(given)
            made = model.loss(made, targets.clone()) / chunks if last else made
        if not last:
            dist.send(made.detach(), rank + 1)
        kept.append((given, made))
    for given, made in kept:
        gradient = None if last else torch.empty_like(made)
        if gradient is not None:
            dist.recv(gradient, rank + 1)
        made.backward(gradient)
        if stage:
            dist.send(given.grad, rank - 1)
    return sum(made.item() for _, made in kept) if last else float("nan")


def _average(weights: "Sequence[Tensor]", group: object) -> None:
    """The mean of the gradients over the replicas, in one message."""
    import torch
    import torch.distributed as dist

    flat = torch.cat([weight.grad.flatten() for weight in weights])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for weight, piece in zip(
        weights, flat.split([weight.numel() for weight in weights]), strict=True
    ):
        weight.grad.copy_(piece.view_as(weight))
