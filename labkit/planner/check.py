"""The exercises of chapter 01, why distributed. Answers are graded at sizes that the chapter does
not show. ``traffic`` and ``model_state_gb`` are on no page (``spare_hints.json``)."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from labkit.check import exercise, hint, on_ranks, over_budget, status, wrong
from labkit.collectives.algorithms import plan
from labkit.collectives.plans import sent_bytes
from labkit.planner.links import crossing_bytes
from labkit.planner.strategies import Strategy
from labkit.sharding import states
from labkit.units import format_bytes
from labkit.words import say, say_number

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "fewest_ranks",
    "held_bytes",
    "hint",
    "model_state_gb",
    "rank_sends",
    "sharded_bytes",
    "status",
    "traffic",
]
MOST_RANKS = 4096
_STATES = (  # parameters, recipe, stage, ranks
    (3e9, "mixed", 0, 1),
    (3e9, "mixed", 0, 8),
    (7.5e9, "mixed", 1, 64),
    (7.5e9, "mixed", 2, 64),
    (7.5e9, "mixed", 3, 64),
    (2e9, "fp32", 0, 1),
    (2e9, "sgd", 1, 4),
    (2e9, "fp32", 2, 5),
    (2e9, "bf16", 3, 3),
    (2e9, "accumulate", 0, 2),
    (2e9, "accumulate", 2, 6),
)
_FITTING = (  # parameters, bytes of activations, bytes of the device
    (3e9, 5e9, 80e9),
    (7e9, 11e9, 80e9),
    (13e9, 20e9, 80e9),
    (13e9, 8e9, 40e9),
    (70e9, 30e9, 80e9),
    (1e9, 90e9, 80e9),
    (4e9, 15e9, 80e9),
    (175e9, 77e9, 80e9),
    (1e9, 14e9, 32e9),
    (6e9, 1e9, 16e9),
)
_SHARED = ((2, 8), (8, 64), (3, 9), (16, 512), (1, 4))  # ranks, sequences


@exercise
def held_bytes(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(model, optimizer)``: {"parameters": bytes, "gradients": bytes, "optimizer": bytes}
    of a plain model, after a step whose gradients are still there."""
    for dtype in ("float32", "bfloat16"):
        for held, _, mine in on_ranks(1, _held, answer, "plain", dtype):
            yield from _apart(held, mine, say("a plain model, {dtype}", dtype=dtype))


@exercise
def sharded_bytes(answer: Callable) -> Iterator[tuple[str, str]]:
    """The same of what this rank holds, in data parallel (a frozen bias, a weight that two layers
    share) and of a model that ``fully_shard`` has cut.

    Run on real ranks, beside ``sharding.shards``.
    """
    for num_ranks, how, dtype in (
        (2, "data parallel", "float32"),
        (2, "fully_shard", "float32"),
        (4, "fully_shard", "bfloat16"),
    ):
        run = on_ranks(num_ranks, _held, answer, how, dtype)
        for rank, (held, _, mine) in enumerate(run):
            case = say(
                "{how}, {dtype}, {num_ranks} ranks, rank {rank}",
                how=how,
                dtype=dtype,
                num_ranks=num_ranks,
                rank=rank,
            )
            yield from _apart(held, mine, case)


def _apart(held: dict[str, int], mine: dict[str, int], case: str) -> Iterator[tuple[str, str]]:
    """The parts of a bill in which an answer differs."""
    for part, right in held.items():
        if mine.get(part) != right:
            yield wrong(
                "{case}: {part} {mine}; the engine holds {right} bytes",
                case=case,
                part=part,
                mine=mine.get(part),
                right=right,
            )


@exercise
def traffic(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(architecture, num_ranks, num_bytes, island_size)`` for an all-reduce of
    ``num_bytes``: what the busiest rank sends, and what all ranks together send from one island of
    neighbours to another, in bytes.

    ``architecture``: "parameter_server" (rank 0 serves, and works too), "ring" (0, 1, 2, ...), or
    "hierarchical" (reduce-scatter in islands, all-reduce across, all-gather in islands). Checked
    against plans, step by step.
    """
    architectures = ("parameter_server", "ring", "hierarchical")
    sizes = ((4, 2), (8, 4), (6, 3), (12, 2), (5, 1), (16, 8), (9, 9))
    what = (say("the busiest rank sends"), say("between islands go"))
    for architecture, (num_ranks, island_size) in product(architectures, sizes):
        options = {"island_size": island_size} if architecture == "hierarchical" else {}
        steps = plan("all_reduce", architecture, num_ranks, **options)
        right = (sent_bytes(steps, 6e6).max(), crossing_bytes(steps, island_size, 6e6))
        mine = tuple(map(float, answer(architecture, num_ranks, 6e6, island_size)))
        for words, ours, true in zip(what, mine, right, strict=True):
            if not abs(ours - true) <= 1e-6 * max(true, 1.0):
                yield wrong(
                    "{architecture}, {num_ranks} ranks, islands of {island_size}, 6 MB: {words} "
                    "{true} in the plan; got {ours}",
                    architecture=architecture,
                    num_ranks=num_ranks,
                    island_size=island_size,
                    words=words,
                    true=format_bytes(true),
                    ours=format_bytes(ours),
                )


@exercise
def fewest_ranks(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_params, activation_bytes, device_bytes)`` is (stage, num_ranks), or None where
    up to 4096 ranks of no stage are enough. Recipe "mixed". Budget: the fewest ranks, and of the
    stages with so many the lowest.
    """
    for params, kept, device in _FITTING:
        case = say(
            "{params:.3g} parameters, {kept} of activations, a device of {device}",
            params=params,
            kept=format_bytes(kept),
            device=format_bytes(device),
        )
        best = _fewest(params, kept, device)
        mine = answer(params, kept, device)
        if mine is None and best is None:
            continue
        if mine is None:
            yield wrong("{case}: {best} fits; got None", case=case, best=_choice(*best))
            continue
        if best is None:
            yield wrong(
                "{case}: no stage fits, on no number of ranks; got {mine}", case=case, mine=mine
            )
            continue
        stage, num_ranks = (int(each) for each in mine)
        takes = sum(states.state_bytes(params, num_ranks, stage).values()) + kept
        if takes > device:
            yield wrong(
                "{case}: {mine} takes {takes} each",
                case=case,
                mine=_choice(num_ranks, stage),
                takes=format_bytes(takes),
            )
        elif (num_ranks, stage) != best:
            yield over_budget(
                "{case}: {mine}; {best} is enough",
                case=case,
                mine=_choice(num_ranks, stage),
                best=_choice(*best),
            )


@exercise
def rank_sends(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(way, ranks, sequences)``: bytes that the busiest rank sends in a step of LLaMA 7B in
    16 bits, the sequences of all ranks together taken one by one. ``way``: "data", "layers" or
    "sharded", of STRATEGIES."""
    for way, (num_ranks, sequences) in product(("data", "layers", "sharded"), _SHARED):
        step = Strategy(
            strategy=way, ranks=num_ranks, batch=sequences, recipe="mixed", one_by_one=True
        )
        right = step.sent_bytes()
        mine = float(answer(way, num_ranks, sequences))
        if not abs(mine - right) <= 1e-3 * right:
            yield wrong(
                "{way!r}, {num_ranks} ranks, {sequences} sequences: {mine:.4g} bytes; a rank sends "
                "{right:.4g}",
                way=way,
                num_ranks=num_ranks,
                sequences=sequences,
                mine=mine,
                right=right,
            )


def _choice(num_ranks: int, stage: int) -> str:
    """An answer in words."""
    return say_number(
        "stage {stage} on {num_ranks} rank",
        "stage {stage} on {num_ranks} ranks",
        num_ranks,
        stage=stage,
        num_ranks=num_ranks,
    )


def _fewest(params: float, kept: float, device: float) -> tuple[int, int] | None:
    """The fewest ranks and the lowest stage with so many; None where nothing fits."""
    found = []
    for stage in states.STAGES:
        num = states.ranks_needed(params, device, stage, extra_bytes=kept, most=MOST_RANKS)
        if num:
            found.append((num, stage))
    return min(found, default=None)


@exercise
def model_state_gb(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_params, recipe, stage, num_ranks)``: GB of model states on each rank, nothing
    padded.

    ``recipe``: "sgd", "fp32", "mixed", "accumulate" or "bf16"; ``stage``: 0 (nothing sharded) to 3.
    The last case is read out of two real ranks.
    """
    for params, recipe, stage, num_ranks in _STATES:
        kinds = states.state_bytes(params, num_ranks, stage, recipe)
        right = sum(kinds.values())
        mine = 1e9 * float(answer(params, recipe, stage, num_ranks))
        case = say(
            "{params:.3g} parameters, {recipe!r}, stage {stage}, {num_ranks} ranks",
            params=params,
            recipe=recipe,
            stage=stage,
            num_ranks=num_ranks,
        )
        if not abs(mine - right) <= 1e-3 * right:
            parts = ", ".join(f"{kind} {format_bytes(num)}" for kind, num in kinds.items())
            yield wrong(
                "{case}: {mine:.4g} GB; a rank holds {right:.4g} GB\n{parts}",
                case=case,
                mine=mine / 1e9,
                right=right / 1e9,
                parts=parts,
            )
    held, num_params, _ = on_ranks(2, _held, lambda *_: {}, "data parallel", "bfloat16")[1]
    mine = 1e9 * float(answer(num_params, "bf16", 0, 2))
    if not abs(mine - sum(held.values())) <= 0.02 * mine:
        yield wrong(
            "{num_params} parameters, 'bf16', on a real rank: {total} bytes, not {mine:.0f}",
            num_params=num_params,
            total=sum(held.values()),
            mine=mine,
        )


# --- in the ranks ---


def _held(answer: Callable, how: str, dtype: str) -> tuple[dict[str, int], int, dict[str, int]]:
    """Bytes by part of the bill, the number of parameters, and the answer's bytes."""
    import torch
    from torch import distributed as dist

    from labkit.sharding import engines

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    model, optimizer = _engine(how, kind)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 8, dtype=kind)).float().square().mean().backward()
        optimizer.step()
    parts = engines.shards(model, optimizer).bytes_by("category")
    rank = dist.get_rank()
    held = {part: int(per_rank[rank]) for part, per_rank in parts.items() if part != "buffers"}
    num_params = sum(parameter.numel() for parameter in model.parameters())
    return held, num_params, {part: int(num) for part, num in answer(model, optimizer).items()}


def _engine(how: str, dtype: object) -> "tuple[nn.Module, object]":
    """A small model and AdamW: plain; in DDP, with a frozen bias and a weight that two layers
    share; or sharded."""
    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model = nn.Sequential(nn.Linear(8, 40), nn.Linear(40, 8), nn.Linear(8, 40)).to(dtype)
    if how == "fully_shard":
        mesh = dist.init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
        for layer in [*model, model]:
            fully_shard(layer, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    if how == "plain":
        return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    model[2].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return ddp, torch.optim.AdamW(model.parameters(), lr=1e-3)
