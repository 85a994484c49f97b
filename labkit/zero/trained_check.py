"""Trainings of a few steps and what they hold: the ranks' side of the exercises of chapter 06."""

from collections.abc import Callable
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from labkit.sharding import run as sharding_run
from labkit.sharding.step import Step
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn

STEPS = 3


def sharded(answer: Callable, widths: tuple[int, ...]) -> dict[str, Any]:
    """Trains with the answer, and alone with everybody's data; weighs the states of every optimizer
    that steps."""
    from torch import distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from labkit.measure import traffic

    rank = dist.get_rank()
    size = dist.get_world_size()
    calls: list[int] = []
    held: dict[int, int] = {}
    model = _net(widths)
    batches = [_drawn(step, size, 5, widths[0]) for step in range(STEPS)]

    def weigh(optimizer: Any, *_: Any) -> None:
        tensors = chain.from_iterable(state.values() for state in optimizer.state.values())
        held[id(optimizer)] = sum(each.nbytes for each in tensors)

    def backward(step: int) -> None:
        calls.append(step)
        model(batches[step][rank]).square().mean().backward()

    hook = register_optimizer_step_post_hook(weigh)
    with traffic.count() as counted:
        answer(model, backward, STEPS)
    hook.remove()
    alone = _net(widths)
    _adamw(alone, lambda step: alone(batches[step]).square().mean().backward(), 0.01, 0.01)
    sizes = [weight.nbytes for weight in model.parameters()]
    fault = _unlike(dict(model.named_parameters()), alone)
    if len(calls) != STEPS:
        fault = say("backward was called {times} times, not {steps}", times=len(calls), steps=STEPS)
    return {
        "fault": fault,
        "held_bytes": sum(held.values()),
        "volume": _volume(counted.payload_bytes, size) / STEPS,
        "total_bytes": sum(sizes),
        "largest_bytes": max(sizes),
    }


def _drawn(seed: int, *shape: int) -> "Tensor":
    """Random numbers on this rank's device, the same on every rank."""
    import torch

    device = torch.get_default_device()
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed))


def _net(widths: tuple[int, ...]) -> "nn.Module":
    """Layers of these widths, the same on every rank."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(widths)))


def _adamw(model: "nn.Module", backward: Callable, rate: float, decay: float) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(step)
        optimizer.step()


def _volume(payload: dict[str, int], size: int) -> float:
    """What a rank has to send for these calls, on average over the ranks: each at its lower
    bound."""
    part = (size - 1) / size
    factors = {
        "all_reduce": 2 * part,
        "reduce_scatter": part,
        "reduce": part,
        "broadcast": part,
        "all_to_all": part,
        "all_gather": size - 1,
        "gather": part,
        "scatter": part,
        "send": 1,
    }
    return sum(factors.get(name, 0) * num_bytes for name, num_bytes in payload.items())


def _unlike(mine: "dict[str, Tensor]", alone: "nn.Module") -> str:
    """The first weight that is not the one-process training's."""
    for name, weight in alone.named_parameters():
        off = (mine[name] - weight).abs().max().item()
        if not off < 2e-4:
            return say(
                "after {steps} steps {name} is off the one-process weights by {off:.1e}",
                steps=STEPS,
                name=name,
                off=off,
            )
    return ""


def payloads(steps: list[Step]) -> list[dict[str, int]]:
    """What a step of each live engine hands to its collectives, by kind."""
    from torch import distributed as dist

    from labkit import model
    from labkit.measure import traffic

    told = []
    for step in steps:
        net = model.Transformer(step.layers, step.dim, step.heads, max_len=step.seq_len)
        trainer = sharding_run.wrap(step, net)
        batch = model.story_tokens(1, step.seq_len, seed=dist.get_rank())
        trainer.train(step.microbatches, *batch)
        with traffic.count() as counted:
            trainer.train(step.microbatches, *batch)
        told.append(dict(counted.payload_bytes))
    return told


def zero3(
    config: dict, global_batch: int, rate: float, decay: float
) -> tuple[str, tuple[int, int], int, int]:
    """What is wrong with the weights; the engine's batch and microbatch; bytes of parameters here,
    and of all."""
    import deepspeed
    from torch import distributed as dist

    from labkit.sharding import engines

    widths = (16, 64, 4)
    data = [5 * _drawn(step, global_batch, widths[0]) for step in range(STEPS)]
    alone = _net(widths)
    _adamw(
        alone,
        lambda step: alone(data[step]).square().sum(1).mean().mul(9**step).backward(),
        rate,
        decay,
    )
    engine = deepspeed.initialize(model=_net(widths), config=config)[0]
    batch = engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()
    for step in range(STEPS):
        for piece in data[step].split(batch[1])[dist.get_rank() :: dist.get_world_size()]:
            engine.backward(engine(piece).square().sum(1).mean() * 9**step)
            engine.step()
    held = engines.shards(engine)
    kept = int(held.num_bytes[held.kind == "parameter"].sum())
    named = dict(engine.module.named_parameters())
    with deepspeed.zero.GatheredParameters(list(named.values())):
        fault = _unlike(
            {name: weight.detach().float().clone() for name, weight in named.items()}, alone
        )
    return fault, batch, kept, 4 * sum(weight.numel() for weight in alone.parameters())
