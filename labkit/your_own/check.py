"""The exercises of chapter 21: a layer that keeps less for its backward, a module that a cut
changes, and what is wrong with an engine, told from its losses."""

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from labkit.check import exercise, hint, limit, over_budget, status, wrong
from labkit.units import check_word
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["hint", "keep_less", "odd_module", "status", "which_fault"]

SIZES = ((64, 32), (40, 48))
"""tokens, and numbers of each"""
MOST_KEPT = 11
"""numbers for each of the input"""
ROUNDING = 1e-5
"""of a loss; what differs by more is no rounding"""
STEEP = 1.702
"""of CLIP's activation, h * sigmoid(1.702 h)"""
FAULTS = ("right", "forward", "sum", "local")
"""What an engine may be: right; one that computes another loss; one that adds gradients up where
it should average them; one whose ranks keep their own."""
MOST_COMPARED = 2
SAMPLES, WIDTH = 8, 6
"""of the batch of an engine, and numbers of a sample"""


@exercise
def keep_less(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(up, down, x)`` is x + down(a(up(x / its root mean square))) with a(h) =
    h * sigmoid(1.702 h), of two given layers and one row for each token; the second is called with
    four times as many numbers as ``x`` has.

    The gradients of ``x`` and of both layers have to be right too. Budget: at most 11 numbers for
    each of ``x`` are kept for the backward, and no product is computed twice.
    """
    for tokens, width in SIZES:
        case = say("{tokens} tokens of {width} numbers", tokens=tokens, width=width)
        right, mine = (_stepped(each, tokens, width) for each in (_short, answer))
        if not mine.alike("output", right):
            yield wrong("{case}: your output differs from the layer's", case=case)
        elif not mine.alike("gradients", right):
            yield wrong("{case}: the output is right, and a gradient is not", case=case)
        elif mine.kept > MOST_KEPT:
            yield over_budget(
                "{case}: {kept:.1f} numbers kept for each of x; {most} are enough",
                case=case,
                kept=mine.kept,
                most=MOST_KEPT,
            )
        elif mine.flops > right.flops:
            yield over_budget(
                "{case}: {flops:,} operations of products; {most:,} are enough. One of them is "
                "computed twice",
                case=case,
                flops=mine.flops,
                most=right.flops,
            )
        else:
            continue
        return


@exercise
def odd_module(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer()`` is (module, batch), as ``your_own.Step`` takes them: trained in two stages, its
    first loss is not that of one process, and yet nothing in it is random."""
    from labkit.your_own.step import Step

    one = Step(make=answer, engine="ddp", ranks=1)
    with limit(60.0):  # it may start the first ranks
        alone = one.run()[0]
    again, first = alone["loss_alone"], alone["losses"][0]
    if not _alike(again, first):
        yield wrong(
            "one process, one batch, and two losses: {first:.6g}, {again:.6g}. Something in the "
            "module is random",
            first=first,
            again=again,
        )
        return
    with limit(60.0):
        cut = one.but(engine="pipeline", ranks=2).run()[1]["losses"][0]
    if _alike(first, cut):
        yield wrong(
            "one process: {first:.6g}; two stages: {cut:.6g}. The cut did not change it. (Behind a "
            "norm over the samples the mean of squares is about 1, whatever they are)",
            first=first,
            cut=cut,
        )


@exercise
def which_fault(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(compare)`` is one of FAULTS, of an engine of two ranks that are simulated.

    ``compare(optimizer, same)`` trains three steps with "sgd" or "adam" and returns two lists of
    losses, of one process with the whole batch and of the engine (the mean over its ranks);
    ``same`` gives both ranks the same samples. Budget: 2 comparisons.
    """
    for number, fault in enumerate((*reversed(FAULTS), *FAULTS), 1):
        compare = _Compared(fault, number)
        told = answer(compare)
        if told != fault:
            yield wrong(
                "engine {number}: you say {told!r}, it is {fault!r}\n{drawn}",
                number=number,
                told=told,
                fault=fault,
                drawn="\n".join(compare.told) or say("You compared nothing."),
            )
            return
        if compare.count > MOST_COMPARED:
            yield over_budget(
                "engine {number}: {count} comparisons; {most} are enough",
                number=number,
                count=compare.count,
                most=MOST_COMPARED,
            )
            return


class _Compared:
    """What an answer may call, and what came of it."""

    def __init__(self, fault: str, seed: int) -> None:
        self.fault = fault
        self.seed = seed
        self.count = 0
        self.told: list[str] = []

    def __call__(
        self, optimizer: str = "sgd", same: bool = False
    ) -> tuple[list[float], list[float]]:
        import torch

        check_word(optimizer, ("sgd", "adam"), "an optimizer")
        self.count += 1
        torch.manual_seed(self.seed)
        net = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)
        )
        first, second = torch.randn(2, SAMPLES // 2, WIDTH)
        halves = [first, first if same else second]
        one = _losses([net], [torch.cat(halves)], "right", optimizer)
        engine = _losses([net, copy.deepcopy(net)], halves, self.fault, optimizer)
        self._tell(optimizer, same, one, engine)
        return one, engine

    def _tell(self, optimizer: str, same: bool, one: list[float], engine: list[float]) -> None:
        """Both rows of losses, one above the other, and which of them differ."""
        samples = say("the same samples") if same else say("samples of their own")
        self.told.append(f"{optimizer}, {samples}")
        marks = ["" if _alike(*both) else "≠" for both in zip(one, engine, strict=True)]
        for name, losses in ((say("one process"), one), (say("engine"), engine)):
            row = "".join(f"{loss:10.5f}{m:<2}" for loss, m in zip(losses, marks, strict=True))
            self.told.append(f"  {row.rstrip()}  {name}")


def _losses(
    nets: "list[nn.Module]", batches: "list[Tensor]", fault: str, optimizer: str
) -> list[float]:
    """Of three steps of equal copies, each with its own batch: the mean over them."""
    import torch

    nets = [copy.deepcopy(net) for net in nets]
    kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
    optimizers = [kind(net.parameters(), lr=0.05) for net in nets]
    seen = [2 * each if fault == "forward" else each for each in batches]
    found = []
    for _ in range(3):
        losses = [(net(each) - 1).square().mean() for net, each in zip(nets, seen, strict=True)]
        for loss in losses:
            loss.backward()
        found.append(sum(loss.item() for loss in losses) / len(nets))
        if fault != "local":
            _shared(nets, 1 if fault == "sum" else len(nets))
        for each in optimizers:
            each.step()
            each.zero_grad()
    return found


def _shared(nets: "list[nn.Module]", over: int) -> None:
    """Each copy gets the sum of all gradients, divided."""
    for weights in zip(*(net.parameters() for net in nets), strict=True):
        total = sum(each.grad for each in weights) / over
        for each in weights:
            each.grad = total.clone()


def _alike(first: float, second: float) -> bool:
    """Whether two losses are equal but for rounding."""
    return abs(first - second) <= ROUNDING * abs(first)


class _Stepped(NamedTuple):
    """What a forward and its backward gave, and what they took."""

    output: "Tensor"
    gradients: "Tensor"
    """of x and of both layers, in one row"""
    kept: float
    """numbers that autograd held after the forward, for each of x; weights left out"""
    flops: int
    """of all products, forward and backward"""

    def alike(self, what: str, other: "_Stepped") -> bool:
        """Whether the outputs, or the gradients, are equal but for rounding."""
        from torch import allclose

        mine = getattr(self, what)
        its = getattr(other, what)
        return mine.shape == its.shape and allclose(mine, its, rtol=1e-4, atol=1e-5)


def _stepped(answer: Callable, tokens: int, width: int) -> _Stepped:
    """One forward and backward of an answer, on layers and an input that are the same each time."""
    import torch
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    from labkit.measure.memory import Activations

    torch.manual_seed(tokens)
    up = nn.Linear(width, 4 * width)
    down = nn.Linear(4 * width, width)
    x = torch.randn(tokens, width, requires_grad=True)
    learned = [x, *up.parameters(), *down.parameters()]
    held = Activations(learned[1:])
    with FlopCounterMode(display=False) as counted:
        with held.chunk("forward"):
            output = answer(up, down, x)
        kept = held.num_bytes / (x.element_size() * x.numel())
        output.square().sum().backward()
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in learned]
    row = torch.cat([each.flatten() for each in gradients])
    return _Stepped(output.detach(), row, kept, counted.get_total_flops())


def _short(up: "nn.Module", down: "nn.Module", x: "Tensor") -> "Tensor":
    """The layer itself, with its activation as one operator."""
    from torch.nn.functional import silu

    h = up(x / x.square().mean(-1, keepdim=True).sqrt())
    return x + down(silu(STEEP * h) / STEEP)
