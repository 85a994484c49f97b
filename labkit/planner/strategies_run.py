"""The small model of ``strategies`` on real ranks, by each strategy: what a rank holds and hands
over."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from labkit import footprint
from labkit.launching import launcher
from labkit.planner.models import PARTS
from labkit.planner.strategies import SMALL, num_stages
from labkit.sharding.step import Step
from labkit.shards import join

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.job import Job
    from labkit.measure.memory import Activations


def start(strategy: str, num_ranks: int, batch: int) -> "Job":
    """Begins two steps or more by a strategy, ``batch`` sequences on all ranks together; returns at
    once."""
    if strategy == "sharded":
        step = Step(
            engine="fsdp",
            ranks=num_ranks,
            microbatches=1,
            batch=batch // num_ranks,
            layers=SMALL["num_layers"],
            dim=SMALL["dim"],
            heads=SMALL["num_heads"],
            seq_len=SMALL["seq_len"],
        )
        return step.start()
    return launcher.start(train, strategy, batch, ranks=num_ranks, timeout_s=60.0)


def held(results: Sequence[dict], rank: int) -> dict[str, float]:
    """What a rank of such a run held after a backward, by PARTS."""
    states = join(each["shards"] for each in results).bytes_by("category")
    bill = {part: float(states[part][rank]) for part in PARTS[:3]}
    kept = results[rank].get("activation_bytes")
    if kept is None:  # FSDP's run tells the whole step
        step = results[rank]["footprint"]
        kept = step.num_bytes[step.labels.index("loss"), footprint.PARTS.index("activations")]
    return {**bill, "activations": float(kept)}


def payload(result: dict) -> dict[str, float]:
    """What a rank handed over; a receive is another rank's send."""
    return {name: num for name, num in sorted(result["payload_bytes"].items()) if name != "recv"}


# --- in the ranks ---


def train(strategy: str, batch: int, recorded: bool = True) -> dict:
    """One rank: two steps on the same sequences, whatever the strategy; what it held and sent in
    the second, which may be recorded."""
    import torch
    import torch.distributed as dist

    from labkit import model
    from labkit.measure import memory, trace, traffic
    from labkit.sharding import engines

    rank = dist.get_rank()
    size = dist.get_world_size()
    stages = num_stages(strategy, size)
    stage = rank % stages
    num_replicas = 1 if strategy == "tensor" else size // stages
    replicas = [dist.new_group(range(each, size, stages)) for each in range(stages)]
    part = _part(stage, stages)
    if strategy == "tensor":
        _split_blocks(part)
    optimizer = torch.optim.AdamW(_groups(part), lr=1e-3)
    story = model.story_tokens(batch, SMALL["seq_len"])
    data = [each.chunk(num_replicas)[rank // stages % num_replicas] for each in story]
    losses = []
    for step in range(2):
        held = memory.Activations(part.parameters())
        recording = step == 1 and recorded
        timeline = trace.record(operators=False) if recording else contextlib.nullcontext()
        with timeline, traffic.count() as counted:
            losses.append(_backward(part, data, stage, stages, held))
            if num_replicas > 1:
                _average(list(part.parameters()), replicas[stage])
        shards = engines.shards(part, optimizer)
        optimizer.step()
        optimizer.zero_grad()
    return {
        "shards": shards,
        "activation_bytes": held.peak_bytes,
        "losses": losses,
        "sent_bytes": counted.sent_bytes,
        "payload_bytes": dict(+counted.payload_bytes),
    }


def _part(stage: int, stages: int) -> "nn.Module":
    """The layers of a stage; all of them where there is one."""
    import torch

    from labkit import model

    torch.manual_seed(0)
    net = model.Transformer(
        SMALL["num_layers"], SMALL["dim"], SMALL["num_heads"], max_len=SMALL["seq_len"]
    )
    if stages > 1:
        return model.split(net, stages)[stage]
    return torch.nn.Sequential(*net.layers)


def _groups(part: "nn.Module") -> list[dict]:
    """Whole weights and split ones apart: on a device AdamW takes a group's weights in one
    operator."""
    from torch.distributed.tensor import DTensor

    weights = list(part.parameters())
    split = [each for each in weights if isinstance(each, DTensor)]
    whole = [each for each in weights if not isinstance(each, DTensor)]
    return [{"params": group} for group in (whole, split) if group]


def _split_blocks(part: "nn.Module") -> None:
    """Tensor parallelism of all ranks, as torch has it: each opens attention and MLP with rows of
    their matrices, and closes them with columns. Embedding, norms and head stay whole."""
    import torch
    import torch.distributed as dist
    from torch.distributed import tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    size = dist.get_world_size()
    mesh = dist.init_device_mesh(torch.get_default_device().type, (size,))
    for block in part[1:-1]:
        for weight in (block.qkv.weight, block.qkv.bias):
            # q, k and v of a rank's heads beside each other: (3, N, ...) becomes (N, 3, ...)
            parts = weight.data.view(3, size, -1, *weight.shape[1:])
            weight.data.copy_(parts.transpose(0, 1).reshape(weight.shape).clone())
        block.num_heads //= size
        tensor.parallel.parallelize_module(
            block,
            mesh,
            {
                "qkv": ColwiseParallel(),
                "out": RowwiseParallel(),
                "up": ColwiseParallel(),
                "down": RowwiseParallel(),
            },
        )


def _backward(
    part: "nn.Module", data: "Sequence[Tensor]", stage: int, stages: int, held: "Activations"
) -> float:
    """Forwards of all microbatches, then their backwards; activations go to the next rank, their
    gradients back. Returns the loss, nan where it is another rank's."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    last = stage == stages - 1
    kept = list(_forwards(part, data, stage, stages, held))
    for given, made in kept:
        gradient = None
        if not last:
            gradient = torch.empty_like(made)
            dist.recv(gradient, rank + 1)
        made.backward(gradient)
        if stage:
            dist.send(given.grad, rank - 1)
    return sum(made.item() for _, made in kept) if last else float("nan")


def _forwards(
    part: "nn.Module", data: "Sequence[Tensor]", stage: int, stages: int, held: "Activations"
) -> "Iterator[tuple[Tensor, Tensor]]":
    """Per microbatch what the stage was given and what it made of it: activations, or its share of
    the loss."""
    import torch
    import torch.distributed as dist

    from labkit import model

    rank = dist.get_rank()
    num_microbatches = len(data[0]) if stages > 1 else 1
    microbatches = zip(*(each.chunk(num_microbatches) for each in data), strict=True)
    for index, (tokens, targets) in enumerate(microbatches):
        given = tokens.clone()
        if stage:
            given = torch.empty(*tokens.shape, SMALL["dim"])
            dist.recv(given, rank - 1)
            given.requires_grad_()
        with held.chunk(index):
            made = part(given)
            if stage == stages - 1:
                made = model.loss(made, targets.clone()) / num_microbatches
        if stage < stages - 1:
            dist.send(made.detach(), rank + 1)
        yield given, made


def _average(weights: "Sequence[Tensor]", group: object) -> None:
    """The mean of the gradients over the replicas, in one message."""
    import torch
    import torch.distributed as dist

    flat = torch.cat([weight.grad.flatten() for weight in weights])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    pieces = flat.split([weight.numel() for weight in weights])
    for weight, piece in zip(weights, pieces, strict=True):
        weight.grad.copy_(piece.view_as(weight))
