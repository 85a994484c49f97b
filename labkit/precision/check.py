"""The exercises of chapter 05, precision and memory. Every answer runs on real ranks; bytes are
live bytes."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.check import exercise, faults, hint, on_ranks, over_budget, status, unlike, wrong
from labkit.precision.scaler_check import scaler_step
from labkit.precision.survives_check import surviving
from labkit.words import say, to_say

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = [
    "accumulate_tokens",
    "checkpoint_blocks",
    "hint",
    "scaled_step",
    "scaler_step",
    "status",
    "surviving",
]


class _Step(NamedTuple):
    """A case of ``scaled_step``."""

    scale: float
    """the loss scale"""
    size: float
    """of an element of the gradient"""
    rate: float
    """the learning rate"""
    max_norm: float
    """where it is clipped"""
    lengths: tuple[int, ...]
    """of the ranks' slices"""
    bad: float | None
    """what one element of rank 1 becomes"""


_STEPS = {
    to_say("small gradients"): _Step(2.0**16, 2e-8, 1e5, 1e3, (40, 24), None),
    to_say("an infinity on rank 1"): _Step(1024.0, 1.0, 0.1, 1e9, (16, 16, 16), float("inf")),
    to_say("a NaN on rank 1"): _Step(512.0, 1.0, 0.1, 1e9, (9, 8), float("nan")),
    to_say("clipped"): _Step(256.0, 1.0, 0.5, 2.0, (30, 25, 1), None),
    to_say("clipped, an empty slice"): _Step(64.0, 1.0, 0.5, 5.0, (20, 12, 0), None),
}
# width and hidden width of the blocks
_CHAINS = (
    ((8, 32),) * 5,
    ((8, 64), (8, 8), (8, 48), (8, 8), (8, 24), (8, 8)),
    ((8, 96), (8, 16), (8, 16), (8, 16)),
    ((4, 40), (32, 40), (4, 40), (32, 40), (8, 40)),
    ((8, 40), (8, 24), (8, 32), (8, 96)),
)


@exercise
def accumulate_tokens(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(ddp, microbatches)`` leaves the gradient of the mean over all real tokens of all
    ranks in the weights.

    Targets of -100 count for nothing; a microbatch may hold no others. Budget: the gradients once
    and a few numbers sent, and little more than the activations of one microbatch held.
    """
    for lengths in (((5, 9), (2, 16)), ((16, 1, 3), (4, 16, 16), (1, 2, 16)), ((8, 0), (3, 12))):
        case = say(
            "{num_ranks} ranks, real tokens per sequence, by microbatch: {lengths}",
            num_ranks=len(lengths),
            lengths=lengths,
        )
        run = on_ranks(len(lengths), _accumulated, answer, lengths)
        yield from faults(case, run)
        most = max(sent for _, sent, *_ in run)
        whole = run[0][2]
        if most > whole + 64:
            yield over_budget(
                "{case}: {most} bytes handed to collectives; the gradients have {whole}",
                case=case,
                most=most,
                whole=whole,
            )
        held = max(held for *_, held, _ in run)
        one = run[0][4]
        if held > 1.5 * one:
            yield over_budget(
                "{case}: {held} bytes of activations held at once; those of a microbatch have "
                "{one}",
                case=case,
                held=held,
                one=one,
            )


@exercise
def scaled_step(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(master, grad, scale, rate, max_norm)`` makes a step on this rank's fp32 slice;
    returns the next scale.

    ``grad`` is the slice of the averaged gradient times ``scale``, in fp16. It is clipped by the
    norm over all ranks; an infinity or a NaN on any rank stops all of them and halves the scale.
    Budget: 64 bytes.
    """
    for name, step in _STEPS.items():
        run = on_ranks(len(step.lengths), _stepped, answer, name)
        case = say(
            "{name}, slices of {lengths}, scale {scale:g}",
            name=say(name),
            lengths=step.lengths,
            scale=step.scale,
        )
        yield from faults(case, run)
        most = max(sent for _, sent in run)
        if most > 64:
            yield over_budget(
                "{case}: {most} bytes handed to collectives; a few numbers are enough",
                case=case,
                most=most,
            )


@exercise
def checkpoint_blocks(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(kept_bytes, input_bytes, budget_bytes)`` lists the blocks to checkpoint, or None
    where nothing fits.

    The choice is run on a rank and its largest live bytes are held against the budget. Over budget:
    more blocks are recomputed than need be.
    """
    for kept, inputs, budget, chosen, peak, fewest in chain(*on_ranks(2, _checkpointed, answer)):
        case = f"kept_bytes={kept}, input_bytes={inputs}, budget_bytes={budget}"
        if chosen is None and fewest is not None:
            yield wrong(
                "{case}: you say None; it can be done with {fewest} of {blocks} blocks",
                case=case,
                fewest=fewest,
                blocks=len(kept),
            )
        elif chosen is not None and peak is None:
            yield wrong(
                "{case}: {chosen!s:.60} is no list of different blocks",
                case=case,
                chosen=chosen,
            )
        elif chosen is not None and peak > budget:
            yield wrong(
                "{case}: with {chosen} checkpointed the step held {peak} bytes",
                case=case,
                chosen=chosen,
                peak=peak,
            )
        elif chosen is not None and len(chosen) > fewest:
            yield over_budget(
                "{case}: {chosen} recomputes {num} blocks; {fewest} are enough",
                case=case,
                chosen=chosen,
                num=len(chosen),
                fewest=fewest,
            )


# --- in the ranks ---


def _accumulated(
    answer: Callable, lengths: Sequence[Sequence[int]]
) -> tuple[str, int, int, int, int]:
    """What is wrong; bytes handed to collectives, of the gradients, of activations held, of one
    microbatch's."""
    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from labkit.measure import traffic
    from labkit.measure.memory import Activations

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 11))
    every = []
    for row in lengths:
        every.append([_tokens(length) for length in row])
    tokens, targets = (torch.cat(parts) for parts in zip(*chain(*every), strict=True))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    right = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    one = Activations(model.parameters())
    tokens, targets = every[0][0]
    with one.chunk("one"):
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    held = Activations(model.parameters())
    ddp = DistributedDataParallel(model)
    with traffic.count() as counted, held.chunk("all"):
        answer(ddp, every[dist.get_rank()])
    fault = _unlike_all(model, right)
    whole = sum(grad.nbytes for grad in right.values())
    return fault, counted.payload_bytes.total(), whole, held.peak_bytes, one.peak_bytes


def _unlike_all(model: "nn.Module", right: "dict[str, Tensor]") -> str:
    """The first gradient that is wrong, in words, or nothing."""
    import torch

    for name, weight in model.named_parameters():
        grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        found = unlike(grad, right[name], say("that of the mean over all tokens"))
        if found:
            return say("{name}.grad {found}", name=name, found=found)
    return ""


def _tokens(length: int) -> "tuple[Tensor, Tensor]":
    """Two sequences of 16 tokens of which the first ``length`` have a target."""
    import torch

    tokens, targets = torch.randint(11, (2, 2, 16))
    targets[:, length:] = -100
    return tokens, targets


def _stepped(answer: Callable, name: str) -> tuple[str, int]:
    """What is wrong, and the bytes handed to collectives."""
    import torch
    from torch import distributed as dist

    from labkit.measure import traffic

    step = _STEPS[name]
    rank = dist.get_rank()
    torch.manual_seed(len(name))
    whole = (step.scale * step.size * torch.randn(sum(step.lengths))).half()
    weights = 0.01 * torch.randn(sum(step.lengths))
    gradient = whole.double() / step.scale
    factor = min(1.0, step.max_norm / gradient.norm())
    update = (step.rate * factor * gradient).float().split(step.lengths)[rank]
    if step.bad is not None:
        whole[step.lengths[0] + 3] = step.bad
    before = weights.split(step.lengths)[rank]
    master = before.clone()
    mine = whole.split(step.lengths)[rank].clone()
    with traffic.count() as counted:
        after = float(answer(master, mine, step.scale, step.rate, step.max_norm))
    fault = _fault_of_step(step, before, master, update, after)
    return fault, counted.payload_bytes.total()


def _fault_of_step(
    step: _Step, before: "Tensor", master: "Tensor", update: "Tensor", after: float
) -> str:
    """What is wrong with a step from ``before`` to ``master`` and with the scale after it, or
    nothing."""
    import torch

    if step.bad is None:
        found = unlike(before - master, update, say("the right one"))
        if found:
            return say("the update of master {found}", found=found)
    elif not torch.equal(master, before):
        return say("master was changed, though rank 1 has to skip")
    right = step.scale if step.bad is None else step.scale / 2
    return "" if after == right else say("the next scale is {after:g}", after=after)


def _checkpointed(
    answer: Callable,
) -> list[tuple[list[int], list[int], int, Any, int | None, int | None]]:
    """Cases of this rank: kept and input bytes as measured, budget, the choice, its peak when run,
    fewest blocks."""
    from torch import distributed as dist

    rows = []
    for sizes in _CHAINS[dist.get_rank() :: 2]:
        blocks = _blocks(sizes)
        inputs = [5 * 4 * width for width, _ in sizes]
        kept = [_peak([block], ()) for block in blocks]
        best = _least_peaks(blocks)
        for budget in (*dict.fromkeys(best), best[0] - 4, best[-1] - 4):
            chosen = answer(list(kept), list(inputs), budget)
            peak = _peak(blocks, chosen) if _is_choice(chosen, len(blocks)) else None
            if chosen is not None and peak is None:
                chosen = str(chosen)  # rubbish may not travel
            fewest = next((num for num, least in enumerate(best) if least <= budget), None)
            rows.append((kept, inputs, budget, chosen, peak, fewest))
    return rows


def _blocks(sizes: Sequence[tuple[int, int]]) -> "nn.ModuleList":
    """A chain of blocks, each given by its width and its hidden width; the last one ends 8 wide."""
    from torch import nn

    blocks = nn.ModuleList()
    for (width, hidden), (after, _) in pairwise([*sizes, (8, 0)]):
        blocks.append(nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, after)))
    return blocks


def _least_peaks(blocks: "nn.ModuleList") -> list[int]:
    """By the number of blocks that are checkpointed, none to all: the least peak of all choices."""
    best = []
    for num in range(len(blocks) + 1):
        choices = combinations(range(len(blocks)), num)
        best.append(min(_peak(blocks, chosen) for chosen in choices))
    return best


def _is_choice(chosen: object, num_blocks: int) -> bool:
    """Whether an answer is a list of different blocks."""
    if not isinstance(chosen, list):
        return False
    return len(chosen) == sum(number in chosen for number in range(num_blocks))


def _peak(blocks: "Sequence[nn.Module]", chosen: Sequence[int]) -> int:
    """The most bytes of activations alive during a step, recomputations included."""
    import torch

    from labkit.measure.memory import Activations

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, block: "nn.Module", x: "Tensor") -> "Tensor":
            ctx.block = block
            ctx.save_for_backward(x)
            with torch.no_grad():
                return block(x)

        @staticmethod
        def backward(ctx: Any, grad: "Tensor") -> tuple:
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad(), held.chunk("again"):
                y = ctx.block(x)
            y.backward(grad)
            return None, x.grad

    held = Activations(chain.from_iterable(block.parameters() for block in blocks))
    x = torch.ones(5, blocks[0][0].in_features).requires_grad_()
    with held.chunk("forward"):
        for number, block in enumerate(blocks):
            x = Recompute.apply(block, x) if number in chosen else block(x)
        total = x.sum()
    total.backward()
    return held.peak_bytes
