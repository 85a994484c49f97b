"""An exercise of chapter 05, precision and memory: which weights an update moves."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from labkit.check import exercise, on_ranks, wrong
from labkit.precision.formats import survives
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, dtype

__all__ = ["surviving"]
_CASES = (("bfloat16", 3e-4), ("bfloat16", 3e-5), ("float16", 1e-4), ("float32", 1e-7))
"""the name of the format, and the rate"""


@exercise
def surviving(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(weights, rate, dtype)`` says of each weight, rounded to ``dtype``, whether it is
    another number once ``rate`` is subtracted and the result rounded.

    ``weights`` is an fp32 tensor of both signs; the answer is a tensor of bools of its length.
    """
    for case, fault in on_ranks(1, _asked, answer)[0]:
        yield wrong("{case}: {fault}", case=case, fault=fault)


# --- in the rank ---


def _asked(answer: Callable) -> list[tuple[str, str]]:
    """What is wrong in each case, with the case."""
    import torch

    sizes = torch.logspace(-4, 0.5, 300)
    weights = torch.cat([sizes, -sizes])
    found = []
    for name, rate in _CASES:
        fault = _fault(answer, weights, rate, getattr(torch, name))
        if fault:
            found.append((say("{name}, rate {rate:g}", name=name, rate=rate), fault))
    return found


def _fault(answer: Callable, weights: "Tensor", rate: float, dtype: "dtype") -> str:
    """What is wrong with an answer, or nothing. Left out are weights at the border, where it counts
    whether ``rate`` is rounded to ``dtype`` too."""
    import torch

    told = answer(weights.clone(), rate, dtype)
    if not isinstance(told, torch.Tensor) or told.shape != weights.shape:
        return say(
            "you return no tensor with an answer for each of {num} weights", num=len(weights)
        )
    right = survives(weights, rate, dtype)
    clear = right == survives(weights, 0.99 * rate, dtype)
    clear &= right == survives(weights, 1.01 * rate, dtype)
    off = clear & (told.bool() != right)
    if not off.any():
        return ""
    weight = weights[off][0].item()
    if right[off][0]:
        return say("the weight {weight:.4g} moves; you say that it does not", weight=weight)
    return say("the weight {weight:.4g} stands still; you say that it moves", weight=weight)
