"""The exercises of chapter 07, FSDP. Answers run on real ranks, at sizes that the chapter does not
show; a choice for rented machines is compared with the planner's quickest."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from reprlib import repr as brief
from typing import TYPE_CHECKING

from labkit.check import (
    exercise,
    faults,
    hint,
    on_ranks,
    over_budget,
    status,
    unlike,
    wrong,
)
from labkit.planner.plan.plan import Plan
from labkit.sharding.partition import rows_elements
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["choose_strategy", "hint", "sharded_step", "status", "train_sharded", "wrap_within"]
_RENTED = (  # model, GPU, GPUs, GPUs of a machine, GB/s of each out of it, sequences of a step
    ("LLaMA 7B", "A100 80 GB", 16, 4, 3, 96),
    ("LLaMA 13B", "A100 80 GB", 16, 4, 12, 192),
    ("LLaMA 13B", "A100 80 GB", 16, 4, 3, 192),
    ("LLaMA 7B", "A100 40 GB", 16, 8, 6, 96),
)
Choice = tuple[str, int, str]
"""a strategy, sequences of a microbatch, what is recomputed"""


@exercise
def sharded_step(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(shards, num_rows, x)`` returns the gradients of this rank's rows of each weight, the
    mean over ranks.

    Weight i has ``num_rows[i]`` rows, of which ``shards[i]`` are this rank's, as ``torch.chunk``
    cuts them: perhaps fewer than others', perhaps none. A layer is ``x = tanh(x @ weight.T)``, the
    loss the mean square of the last x. Budget: two all-gathers of the shards, one reduce-scatter of
    the gradients; one whole weight at a time, with its gradient and their buffers.
    """
    for num_ranks, sizes in ((2, (6, 4, 8)), (3, (5, 7, 2, 4)), (4, (3, 5, 9, 1)), (2, (48,) * 14)):
        run = on_ranks(num_ranks, _step, answer, sizes)
        shown = [*map(str, sizes[1:5]), *(["..."] if len(sizes) > 5 else [])]
        case = say(
            "{num_ranks} ranks, weights of {rows} rows", num_ranks=num_ranks, rows=", ".join(shown)
        )
        yield from faults(case, run)
        _, payload, most, peak, room = run[0]
        for name in {*payload, *most}:
            if payload.get(name, 0) > most.get(name, 0):
                yield over_budget(
                    "{case}: {sent} bytes handed to {name}; {most} are enough",
                    case=case,
                    sent=payload[name],
                    name=name,
                    most=most.get(name, 0),
                )
        if len(sizes) > 5 and peak > room:
            yield over_budget(
                "{case}: at most {peak} bytes live at once; {room} are enough",
                case=case,
                peak=peak,
                room=room,
            )


@exercise
def wrap_within(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(net, budget_bytes)`` calls ``fully_shard`` on an ``nn.Sequential``, in place.

    No unit is larger than ``budget_bytes`` (and no layer is), in as few all-gathers as that allows
    for units of consecutive layers, each gathered for the forward and again for the backward.
    """
    for num_ranks, widths, layers in (
        (2, (8, 16, 16, 8, 32, 8, 8), 2.2),
        (4, (16, 16, 16, 16, 16, 16), 3),
        (2, (8, 8, 8, 64, 8, 8, 8), 1),
        (2, (8, 8, 8), 9),
    ):
        sizes = [4 * (a + 1) * b for a, b in pairwise(widths)]
        budget = int(max(sizes) * layers)
        run = on_ranks(num_ranks, _wrapped, answer, widths, budget)
        case = say(
            "{num_ranks} ranks, layers of {sizes} bytes, budget {budget}",
            num_ranks=num_ranks,
            sizes=", ".join(map(str, sizes)),
            budget=budget,
        )
        yield from faults(case, run)
        _, gathered, calls = run[0]
        if gathered > budget:
            yield over_budget(
                "{case}: {gathered} bytes of parameters gathered at one time",
                case=case,
                gathered=gathered,
            )
        most = 2 * _fewest(sizes, budget)
        if calls > most:
            yield over_budget(
                "{case}: {calls} all-gathers in a step; {most} are enough",
                case=case,
                calls=calls,
                most=most,
            )


@exercise
def train_sharded(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(net, steps, max_norm)`` shards ``net`` in place and trains it by SGD, learning rate
    0.1, momentum 0.9.

    ``steps``: for each update this rank's microbatches (inputs, targets). The gradient is that of
    the mean of the mean-square losses over microbatches and ranks, clipped to ``max_norm`` as a
    whole.
    """
    for num_ranks, num_microbatches, max_norm in ((2, 1, 1e9), (2, 1, 0.05), (3, 2, 0.1)):
        run = on_ranks(num_ranks, _trained, answer, num_microbatches, max_norm)
        for rank, fault in enumerate(run):
            if fault:
                case = say(
                    "{num_ranks} ranks, {num_microbatches} microbatches, max_norm {max_norm:g}",
                    num_ranks=num_ranks,
                    num_microbatches=num_microbatches,
                    max_norm=max_norm,
                )
                yield wrong("{case}, rank {rank}: {fault}", case=case, rank=rank, fault=fault)


@exercise
def choose_strategy(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(plan)`` is the quickest choice that fits: ("FULL_SHARD" or "HYBRID_SHARD", mbs,
    recompute), for a plan of FULL_SHARD on several machines.

    HYBRID_SHARD takes a step of one machine with its part of the sequences, and an all-reduce of
    16-bit gradients between the machines, at half of what their networks have.
    """
    for name, gpu, gpus, per_node, nic, batch in _RENTED:
        plan = Plan(
            model=name, gpu=gpu, gpus=gpus, per_node=per_node, nic_gb_per_s=nic, batch=batch, zero=3
        )
        case = say(
            "{model} on {gpus} x {gpu}, {nic:g} GB/s out of the node, {batch} sequences",
            model=name,
            gpus=gpus,
            gpu=gpu,
            nic=nic,
            batch=batch,
        )
        steps_s = _steps_s(plan)
        mine = answer(plan)
        if mine not in list(steps_s):
            yield wrong(
                "{case}: {mine} is none of the choices that fit", case=case, mine=brief(mine)
            )
        elif steps_s[mine] > min(steps_s.values()):
            yield over_budget(
                "{case}: {mine} takes {taken:.2f} s a step; {best:.2f} s can be had",
                case=case,
                mine=mine,
                taken=steps_s[mine],
                best=min(steps_s.values()),
            )


def _steps_s(plan: Plan) -> dict[Choice, float]:
    """Choice -> seconds of a step, for those that fit."""
    machines = plan.gpus // plan.per_node
    machine = plan.but(gpus=plan.per_node, batch=plan.batch // machines)
    reached = plan.per_node * plan.nic_gb_per_s / 2 * 1e9
    between_s = 2 * (machines - 1) / machines * 2 * plan.shape.params / reached
    most = plan.batch // plan.gpus
    found = {}
    for mbs in (size for size in range(1, most + 1) if most % size == 0):
        for recompute in ("none", "full"):
            for name, one, more_s in (
                ("FULL_SHARD", plan, 0.0),
                ("HYBRID_SHARD", machine, between_s),
            ):
                each = one.but(mbs=mbs, recompute=recompute)
                if each.fits:
                    found[name, mbs, recompute] = each.time().step_us / 1e6 + more_s
    return found


def _fewest(sizes: Sequence[int], budget: int) -> int:
    """Units of consecutive layers: fill each as far as it goes."""
    units = 0
    room = 0
    for size in sizes:
        if size > room:
            units += 1
            room = budget
        room -= size
    return units


# --- in the ranks ---


def _step(answer: Callable, sizes: Sequence[int]) -> tuple[str, dict, dict, int, int]:
    """What is wrong; payload by collective, and what is enough; the most bytes that lived at once,
    and enough."""
    import torch
    from torch import distributed as dist

    from labkit.measure import memory, traffic

    torch.manual_seed(0)
    rank = dist.get_rank()
    size = dist.get_world_size()
    weights = [(torch.randn(b, a) / a**0.5).requires_grad_() for a, b in pairwise(sizes)]
    inputs = torch.randn(2 * size, sizes[0])
    x = inputs
    for weight in weights:
        x = torch.tanh(x @ weight.T)
    gradients = torch.autograd.grad(x.square().mean(), weights)
    right = [_rows_of_rank(gradient, rank, size) for gradient in gradients]
    shards = [_rows_of_rank(weight.detach(), rank, size).clone() for weight in weights]
    with memory.watch() as watched, traffic.count() as counted:
        watched.mark("step")
        given = list(answer(shards, list(sizes[1:]), inputs.chunk(size)[rank].clone()))
    padded = [rows_elements(weight.shape, size) * size * weight.itemsize for weight in weights]
    most = {"all_gather": 2 * sum(padded) // size, "reduce_scatter": sum(padded)}
    room = sum(padded) // size + 6 * max(padded) + 2 * inputs.nbytes // size * len(weights)
    fault = _off(given, right)
    return fault, dict(+counted.payload_bytes), most, watched.footprint().peak_bytes, room


def _rows_of_rank(tensor: "Tensor", rank: int, size: int) -> "Tensor":
    """A rank's rows as ``torch.chunk`` cuts them: none, where there are fewer chunks than ranks."""
    chunks = tensor.chunk(size)
    return chunks[rank] if rank < len(chunks) else tensor[:0]


def _off(given: "list[Tensor]", right: "list[Tensor]") -> str:
    """What is wrong with the first wrong gradient."""
    if len(given) != len(right):
        return say("{given} gradients for {weights} weights", given=len(given), weights=len(right))
    for index, (mine, true) in enumerate(zip(given, right, strict=True)):
        if mine.shape != true.shape:
            return say(
                "gradient {index} has shape {shape}, its shard {shard}",
                index=index,
                shape=tuple(mine.shape),
                shard=tuple(true.shape),
            )
        found = unlike(mine, true, say("the mean over the ranks")) if true.numel() else ""
        if found:
            return say("gradient {index} {found}", index=index, found=found)
    return ""


def _against(net: "nn.Module", right: "nn.Module", work: Callable, kind: str) -> str:
    """What is wrong with the weights or gradients of a sharded model, after ``work`` has been done
    on it."""
    from torch.distributed.tensor import DTensor

    work()
    for (name, mine), true in zip(net.named_parameters(), right.parameters(), strict=True):
        if not isinstance(mine, DTensor):
            return say("{name} is not sharded", name=name)
        if kind == "gradient":
            mine = mine.grad
            true = true.grad
        if mine is None:
            return say("{name} has no gradient", name=name)
        found = unlike(mine.full_tensor(), true, say("that of one process with all samples"))
        if found:
            return say("the {kind} of {name} {found}", kind=kind, name=name, found=found)
    return ""


def _net(widths: Sequence[int]) -> "nn.Sequential":
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def _wrapped(answer: Callable, widths: Sequence[int], budget: int) -> tuple[str, int, int]:
    """What is wrong; the most bytes of parameters gathered at a time; all-gathers in a step."""
    import torch
    from torch import distributed as dist

    from labkit.footprint import PARTS
    from labkit.measure import memory, traffic
    from labkit.sharding import engines

    rank = dist.get_rank()
    size = dist.get_world_size()
    right = _net(widths)
    inputs = torch.randn(4 * size, widths[0])
    right(inputs).square().mean().backward()
    with memory.watch() as watched:
        net = _net(widths)
        answer(net, budget)

        def step() -> None:
            net(inputs.chunk(size)[rank].clone()).square().mean().backward()

        step()
        net.zero_grad()
        watched.mark("step")
        with traffic.count() as counted:
            fault = _against(net, right, step, "gradient")
        engines.claim(watched, net)
    gathered = watched.footprint().num_bytes[:, PARTS.index("gathered")].max()
    calls = counted.calls["all_gather"]
    if not fault:
        calls -= len(list(net.parameters()))  # the comparison gathers, too
    return fault, int(gathered), calls


def _trained(answer: Callable, num_microbatches: int, max_norm: float) -> str:
    """What is wrong with the weights after three updates."""
    import torch
    from torch import distributed as dist
    from torch import nn

    rank = dist.get_rank()
    size = dist.get_world_size()
    net = _net((6, 10, 7, 2))
    right = _net((6, 10, 7, 2))
    samples = torch.randn(3, num_microbatches, size, 4, 8)
    optimizer = torch.optim.SGD(right.parameters(), lr=0.1, momentum=0.9)
    for batch in samples.flatten(1, 3):
        optimizer.zero_grad()
        nn.functional.mse_loss(right(batch[:, :6]), batch[:, 6:]).backward()
        nn.utils.clip_grad_norm_(right.parameters(), max_norm)
        optimizer.step()
    steps = []
    for batch in samples:
        steps.append([(each[rank, :, :6], each[rank, :, 6:]) for each in batch])
    return _against(net, right, lambda: answer(net, steps, max_norm), "weight")
