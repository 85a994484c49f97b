"""The exercises of chapter 21: a layer that keeps less for its backward, and a module that a cut
changes."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from labkit.check import exercise, hint, limit, over_budget, status, wrong
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["hint", "keep_less", "odd_module", "status"]

SIZES = ((64, 32), (40, 48))
"""tokens, and numbers of each"""
MOST_KEPT = 11
"""numbers for each of the input"""
ROUNDING = 1e-5
"""of a loss; what differs by more is no rounding"""


@exercise
def keep_less(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(up, down, x)`` is x + down(silu(up(x / its root mean square))), of two given layers
    and one row for each token; the second is called with four times as many numbers as ``x`` has.

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
            "one process: {first:.6g}; two stages: {cut:.6g}. The cut did not change it",
            first=first,
            cut=cut,
        )


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

    return x + down(silu(up(x / x.square().mean(-1, keepdim=True).sqrt())))
