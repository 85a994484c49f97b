"""The exercises of chapter 06, ZeRO. Real ranks, live bytes and DeepSpeed's own engine are the
judges."""

from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.check import exercise, hint, language, on_ranks, status
from labkit.sharding import run as sharding_run
from labkit.sharding import states
from labkit.sharding.step import Step

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "correct_the_textbook",
    "fit",
    "hint",
    "language",
    "same_training",
    "shard_adamw",
    "status",
]

GB = 1e9
STEPS = 3


@exercise
def shard_adamw(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(model, backward, num_steps)`` trains with AdamW(lr=0.01) on the mean gradient of all
    ranks.

    ``backward(step)`` leaves this rank's gradients in ``model``, adding to what is there. Budget:
    live states of about 1/N of the parameters, and no more to send than an all-reduce of the
    gradients. Run on real ranks.
    """
    for num_ranks, widths in (
        (2, (6, 9, 9, 8, 9, 7, 9, 4)),
        (3, (7, 8, 7, 9, 8, 9, 7, 8, 3)),
        (4, (8,) * 12),
    ):
        run = on_ranks(num_ranks, _sharded, answer, widths)
        case = f"{num_ranks} ranks, layers {widths}"
        for rank, result in enumerate(run):
            if result["fault"]:
                yield "wrong", f"{case}, rank {rank}: {result['fault']}"
        total, largest = run[0]["total_bytes"], run[0]["largest_bytes"]
        held = max(result["held_bytes"] for result in run)
        if held > 2 * (total // num_ranks + largest) + 128:
            yield (
                "over budget",
                f"{case}: a rank's optimizer holds {held} bytes; the moments of everything are "
                f"{2 * total}, of a part in {num_ranks} {2 * total // num_ranks}",
            )
        sent = sum(result["volume"] for result in run) / num_ranks
        due = 2 * total * (num_ranks - 1) / num_ranks
        if sent > 1.05 * due + 128:
            yield (
                "over budget",
                f"{case}: a step sends {sent:.0f} bytes per rank; an all-reduce of the gradients "
                f"sends {due:.0f}",
            )


@exercise
def fit(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_params, device_bytes, other_bytes, most_ranks)`` is (num_ranks, stage), or None.

    The fewest ranks on which some stage fits (16 bytes per parameter, and ``other_bytes`` on each
    rank); of the stages that fit there, the lowest.
    """
    for num_params, device_gb, other_gb, most in (
        (7e9, 80, 10, 64),
        (70e9, 80, 10, 64),
        (1.3e9, 24, 2, 8),
        (13e9, 40, 5, 16),
        (175e9, 80, 20, 16),
        (3e9, 80, 8, 4),
        (175e9, 80, 0, 64),
        (2e9, 40, 8, 1),
        (40e9, 79, 79, 8),
    ):
        right = _fewest(num_params, device_gb * GB, other_gb * GB, most)
        given = answer(num_params, device_gb * GB, other_gb * GB, most)
        given = tuple(given) if isinstance(given, list | tuple) else given
        case = (
            f"{num_params / GB:g}B parameters, devices of {device_gb} GB, {other_gb} GB of them "
            f"taken, {most} ranks"
        )
        if given == right:
            continue
        if right is None or given is None or len(given) != 2 or given[1] not in states.STAGES:
            truth = "nothing fits" if right is None else "something does fit"
            yield "wrong", f"{case}: got {given}; {truth}"
        num_ranks, stage = given
        need = sum(states.state_bytes(num_params, num_ranks, stage).values()) / GB + other_gb
        if num_ranks > most:
            yield "wrong", f"{case}: got {num_ranks} ranks"
        if need > device_gb:
            yield "wrong", f"{case}: {num_ranks} ranks at stage {stage} need {need:.1f} GB each"
        better = f"{right[0]} ranks" if right[0] < num_ranks else f"stage {right[1]}"
        yield (
            "over budget",
            f"{case}: {num_ranks} ranks at stage {stage} fit ({need:.1f} GB each); so do {better}",
        )


@exercise
def correct_the_textbook(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_params, num_ranks, stage)`` is the bytes of model states per rank: those of a
    live DeepSpeed engine, averaged over its ranks, what it pads and keeps without need left out."""
    for num_ranks, stage in ((4, 0), (4, 1), (4, 2), (4, 3), (8, 1), (64, 2), (1, 3), (3, 1)):
        mine = float(answer(7e9, num_ranks, stage))
        right = sum(states.state_bytes(7e9, num_ranks, stage).values())
        if abs(mine - right) > 1e-6 * right:
            yield (
                "wrong",
                f"7B, {num_ranks} ranks, stage {stage}: got {mine / GB:.2f} GB, not "
                f"{right / GB:.2f}",
            )
    num_params, live = on_ranks(2, _engines, hang_s=25)[0]
    for stage, num_bytes in live.items():
        mine = float(answer(num_params, 2, stage))
        if abs(mine - num_bytes) > 1e-3 * num_bytes:
            yield (
                "wrong",
                f"{num_params:,} parameters, 2 ranks, stage {stage}: got {mine:,.0f} bytes; a "
                f"live DeepSpeed engine holds {num_bytes:,.0f}",
            )


@exercise
def same_training(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_ranks, global_batch, micro_batch, learning_rate, weight_decay)`` is DeepSpeed's
    configuration, as a dict, for a ZeRO 3 training in fp32 that ends with the weights of torch's
    AdamW in one process."""
    num_ranks = 2
    global_batch = 8
    micro_batch = 2
    rate = 0.01
    decay = 0.1
    config = answer(num_ranks, global_batch, micro_batch, rate, decay)
    if not isinstance(config, dict):
        yield "wrong", f"a configuration is a dict; got {config!r:.60}"
    case = (
        f"{num_ranks} ranks, batch {global_batch} in microbatches of {micro_batch}, rate {rate}, "
        f"decay {decay}"
    )
    fault, batch, held, total = on_ranks(
        num_ranks, _zero3, config, global_batch, rate, decay, hang_s=25
    )[0]
    if batch != (global_batch, micro_batch):
        yield "wrong", f"{case}: the engine's batch is {batch[0]}, its microbatch {batch[1]}"
    if held > 0.6 * total:
        yield (
            "wrong",
            f"{case}: a rank keeps {held} bytes of parameters, of {total}; in stage 3 it keeps "
            "its part",
        )
    if fault:
        yield "wrong", f"{case}: {fault}"


def _fewest(
    num_params: float, device_bytes: float, other_bytes: float, most: int
) -> tuple[int, int] | None:
    """The right answer of ``fit``."""
    options = []
    for stage in states.STAGES:
        num_ranks = states.ranks_needed(
            num_params, device_bytes, stage, extra_bytes=other_bytes, most=most
        )
        if num_ranks is not None:
            options.append((num_ranks, stage))
    return min(options, default=None)


# --- in the ranks ---


def _sharded(answer: Callable, widths: tuple[int, ...]) -> dict[str, Any]:
    """Trains with the answer, and alone with everybody's data; weighs the states of every optimizer
    that steps."""
    import torch
    from torch import distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from labkit.measure import traffic

    rank = dist.get_rank()
    size = dist.get_world_size()
    calls: list[int] = []
    held: dict[int, int] = {}
    model = _net(widths)
    batches = [
        torch.randn(size, 5, widths[0], generator=torch.Generator().manual_seed(step))
        for step in range(STEPS)
    ]

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
    fault = "" if len(calls) == STEPS else f"backward was called {len(calls)} times, not {STEPS}"
    return {
        "fault": fault or _unlike(dict(model.named_parameters()), alone),
        "held_bytes": sum(held.values()),
        "volume": _volume(counted.payload_bytes, size) / STEPS,
        "total_bytes": sum(sizes),
        "largest_bytes": max(sizes),
    }


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
            return f"after {STEPS} steps {name} is off the one-process weights by {off:.1e}"
    return ""


def _engines() -> tuple[int, dict[int, float]]:
    """Parameters, and per stage the bytes of states that two live DeepSpeed engines hold on
    average."""
    import torch
    from torch import distributed as dist

    from labkit import model
    from labkit.sharding import engines
    from labkit.shards import NO_TENSOR

    live = {}
    for stage in (1, 2, 3):
        setting = Step(engine=f"zero{stage}", layers=1, dim=32, heads=2, seq_len=16)
        net = model.Transformer(setting.layers, setting.dim, setting.heads, max_len=setting.seq_len)
        num_params = sum(weight.numel() for weight in net.parameters())
        trainer = sharding_run.wrap(setting, net)
        batch = model.story_tokens(1, setting.seq_len, seed=dist.get_rank())
        seen = []

        def look(_: int, engine: Any = trainer.engine, seen: list = seen) -> None:
            seen.append(engines.shards(engine))

        trainer.train(2, *batch)
        trainer.train(2, *batch, between=look)
        held = seen[0]
        counted = (held.kind != "buffer") & ~np.isin(held.tensor, NO_TENSOR)
        total = torch.tensor(float(held.num_bytes[counted].sum()))
        dist.all_reduce(total)
        live[stage] = total.item() / dist.get_world_size()
    return num_params, live


def _zero3(
    config: dict, global_batch: int, rate: float, decay: float
) -> tuple[str, tuple[int, int], int, int]:
    """What is wrong with the weights; the engine's batch and microbatch; bytes of parameters here,
    and of all."""
    import deepspeed
    import torch
    from torch import distributed as dist

    from labkit.sharding import engines

    widths = (16, 64, 4)
    data = [
        5 * torch.randn(global_batch, widths[0], generator=torch.Generator().manual_seed(step))
        for step in range(STEPS)
    ]
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
