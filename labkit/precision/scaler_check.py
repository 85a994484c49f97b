"""An exercise of chapter 05, precision and memory: what a loss scaler does after a backward."""

import copy
from collections.abc import Callable, Iterator, Sequence

from labkit.check import exercise, on_ranks, wrong
from labkit.words import say

__all__ = ["scaler_step"]
_BAD = {"inf": float("inf"), "-inf": -float("inf"), "NaN": float("nan")}
# the optimizer, the first scale, the interval, and the gradients of each step
_STORIES = (
    ("SGD", 1024.0, 2, ("good",) * 5),
    ("SGD", 64.0, 3, ("good", "good", "inf", "good", "good", "good", "good")),
    ("Adam", 2.0**15, 2, ("good", "NaN", "good", "-inf", "inf", "good", "good")),
    ("Adam", 1.0, 1, ("good", "good", "NaN")),
)


@exercise
def scaler_step(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(optimizer, scale, num_good, interval)`` divides the gradients by ``scale`` and steps
    if all are finite; returns the next scale and the next number of good steps in a row.

    Infinity or NaN: no step, half the scale, count from 0. ``interval`` good ones: twice the scale,
    count from 0. A weight may have no gradient.
    """
    for case, fault in on_ranks(1, _followed, answer)[0]:
        yield wrong("{case}: {fault}", case=case, fault=fault)


# --- in the rank ---


def _followed(answer: Callable) -> list[tuple[str, str]]:
    """The first fault of each story, with its case."""
    found = []
    for name, scale, interval, grads in _STORIES:
        number, fault = _told(answer, name, scale, interval, grads)
        if fault:
            case = say(
                "{name}, scale {scale:g}, interval {interval}, gradients {grads}",
                name=name,
                scale=scale,
                interval=interval,
                grads=", ".join(grads[: number + 1]),
            )
            found.append((case, fault))
    return found


def _told(
    answer: Callable, name: str, scale: float, interval: int, grads: Sequence[str]
) -> tuple[int, str]:
    """The step at which an answer goes wrong and what is wrong there; or the number of steps, and
    nothing."""
    import torch

    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(size)) for size in (3, 2, 4)]
    right = copy.deepcopy(weights)
    options = {"momentum": 0.9} if name == "SGD" else {}
    mine, theirs = (
        getattr(torch.optim, name)(each, lr=0.1, **options) for each in (weights, right)
    )
    state = (scale, 0)
    for number, kind in enumerate(grads):
        for ours, reference in zip(weights[:2], right[:2], strict=True):  # the third has none
            reference.grad = torch.randn_like(reference)
            ours.grad = reference.grad * state[0]
        if kind != "good":
            weights[1].grad[-1] = _BAD[kind]
        else:
            theirs.step()
        after = tuple(map(float, answer(mine, *state, interval)))
        state = _next(*state, interval, kind == "good")
        if not all(map(torch.allclose, weights, right)):
            return number, say("the weights are not the right ones")
        if after != state:
            return number, say(
                "you return {after}; it should be {state}",
                after=after,
                state=tuple(map(float, state)),
            )
    return len(grads), ""


def _next(scale: float, num_good: int, interval: int, good: bool) -> tuple[float, int]:
    """The scale and the count after a step."""
    if not good:
        return scale / 2, 0
    return (scale * 2, 0) if num_good + 1 == interval else (scale, num_good + 1)
