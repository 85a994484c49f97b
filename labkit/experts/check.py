"""The exercises of chapter 10, experts. A layer on real ranks is trained with the answer's router;
counted loads, and what the layer has learned, are the judges."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from labkit.check import exercise, faults, hint, on_ranks, status, wrong
from labkit.experts.layer import Layer
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["busy_router", "hint", "status"]

STEPS = 120
LAST = 10
"""steps whose loads, drops and errors are taken"""
RATE = 0.02
"""Adam's learning rate"""
MOST_LOAD = 1.3
"""times an even share"""
MOST_DROPPED = 0.02
"""of all choices"""
MOST_ERROR = 0.12
"""of the targets' mean square; without following the scores an expert has tokens of all kinds"""
_LAYERS = (
    Layer(ranks=2, tokens=256, capacity=1.25, skew=2.0, hidden=16, ffn=16, seed=3),
    Layer(ranks=4, tokens=128, capacity=1.25, skew=2.0, hidden=16, ffn=16),
)


class _Trained(NamedTuple):
    """What came of it on a rank."""

    fault: str
    """why nothing was trained; "" for nothing"""
    loads: list[float]
    """of each expert, all ranks together, in even shares"""
    dropped: float
    """share of the choices"""
    error: float
    """of the output, in the targets' mean square"""
    teaches: bool
    """whether the loss had a gradient in the scores"""


@exercise
def busy_router(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(scores, top_k)`` is a router: (chosen, weights, loss).

    ``scores``: (tokens, experts), the product of this rank's tokens with the router's matrix.
    ``chosen``: whole numbers, (tokens, top_k), of each token's experts, all different.
    ``weights``: how much of each its output has, as many; a token's sum to 1. ``loss``: a number
    that is added to the layer's own.

    A layer of 8 experts that starts with some favourites is trained with it for 120 steps on real
    ranks. In the last ten the busiest expert may get 1.3 times an even share of the choices, a
    capacity of 1.25 may drop 2 % of them, and the output's error is at most 0.12 of the targets'
    mean square: tokens are of 8 kinds, and experts that get all kinds learn none of them well. What
    is wrong is drawn as the load of each expert.
    """
    for layer in _LAYERS:
        case = say("{ranks} ranks, {experts} experts", ranks=layer.ranks, experts=layer.experts)
        run = on_ranks(layer.ranks, _train, answer, layer, hang_s=25)
        yield from faults(case, run)
        yield from _idle(case, _Trained(*run[0]))


def _idle(case: str, done: _Trained) -> Iterator[tuple[str, str]]:
    """What is short of the bounds."""
    drawn = _drawn(done)
    if not max(done.loads) <= MOST_LOAD:
        yield wrong(
            "{case}: the busiest expert gets {load:.2f} times an even share; {most} times is "
            "enough\n{drawn}",
            case=case,
            load=max(done.loads),
            most=MOST_LOAD,
            drawn=drawn,
        )
    if not done.dropped <= MOST_DROPPED:
        yield wrong(
            "{case}: {dropped:.1%} of the choices are dropped; {most:.0%} is enough\n{drawn}",
            case=case,
            dropped=done.dropped,
            most=MOST_DROPPED,
            drawn=drawn,
        )
    if not done.error <= MOST_ERROR:
        yield wrong(
            "{case}: the output's error is {error:.2f} of the targets' mean square; experts "
            "that follow the scores, with a loss that does not outweigh the output, come to "
            "less than {most}\n{drawn}",
            case=case,
            error=done.error,
            most=MOST_ERROR,
            drawn=drawn,
        )


def _drawn(done: _Trained) -> str:
    """A bar for each expert, ten signs for an even share."""
    lines = []
    for expert, load in enumerate(done.loads):
        name = say("expert {expert}", expert=expert)
        lines.append(f"{name}  {'#' * round(10 * load)}  {load:.2f}")
    if not done.teaches:
        lines.append(
            say(
                "The loss has no gradient in the scores, so it teaches the router nothing: counts "
                "have none, and the probabilities of a token always sum to 1."
            )
        )
    return "\n".join(lines)


# --- in the ranks ---


def _train(answer: Callable, layer: Layer) -> tuple:
    """One rank: what ``_Trained`` has."""
    import torch
    import torch.distributed as dist

    from labkit.experts import whole_run

    torch.set_num_threads(1)
    torch.manual_seed(layer.seed)
    centres_ED = 1.5 * torch.randn(layer.experts, layer.hidden)
    maps_EDD = torch.randn(layer.experts, layer.hidden, layer.hidden) / layer.hidden**0.5
    router = 0.1 * torch.randn(layer.hidden + 1, layer.experts)
    router[-1] = -layer.skew * torch.arange(1, layer.experts + 1).log()
    me = dist.get_rank()
    mine = [router, *(each.chunk(layer.ranks)[me].clone() for each in whole_run.weights(layer))]
    weights = [each.requires_grad_() for each in mine]
    adam = torch.optim.Adam(weights, lr=RATE)
    torch.manual_seed(1000 * (layer.seed + 1) + me)
    seen = torch.zeros(layer.experts + 2)
    teaches = False
    for number in range(STEPS):
        kind_T = torch.randint(layer.experts, (layer.tokens,))
        x_TD = centres_ED[kind_T] + torch.randn(layer.tokens, layer.hidden)
        wanted_TD = torch.einsum("td,tde->te", x_TD, maps_EDD[kind_T])
        scores_TE = x_TD @ router[:-1] + router[-1]
        given = answer(scores_TE, layer.top_k)
        if number == 0:
            fault = _first_fault(_fault(given, layer))
            if fault:
                return fault, [], 0.0, 0.0, False
            teaches = _teaches(given[2], scores_TE)
        counts = _step(layer, x_TD, wanted_TD, given, weights)
        adam.step()
        adam.zero_grad()
        if number >= STEPS - LAST:
            seen += counts
    dist.all_reduce(seen)
    num_choices = LAST * layer.ranks * layer.tokens * layer.top_k
    loads = (seen[:-2] * layer.experts / num_choices).tolist()
    dropped, error = (seen[-2:] / torch.tensor([num_choices, LAST * layer.ranks])).tolist()
    return "", loads, dropped, error, teaches


def _step(
    layer: Layer, x_TD: "Tensor", wanted_TD: "Tensor", given: tuple, weights: "list[Tensor]"
) -> "Tensor":
    """Forward and backward, gradients of the mean loss of all ranks; this rank's choices of each
    expert, how many were dropped, and its error."""
    import torch
    import torch.distributed as dist

    from labkit.experts import parallel_run, whole_run

    chosen_TK, weight_TK, loss = given
    kept_TK = whole_run.within_capacity(layer, chosen_TK)
    choice = whole_run.Choice(chosen_TK, weight_TK, kept_TK, loss)
    found = parallel_run.dispatched(layer, x_TD, choice, *weights[1:], parallel_run.unpaced)
    error = (found.out - wanted_TD).square().mean() / wanted_TD.square().mean()
    (error + loss).backward()
    dist.all_reduce(weights[0].grad)
    for each in weights:
        each.grad /= layer.ranks
    counts_E = torch.bincount(chosen_TK.flatten(), minlength=layer.experts)
    return torch.cat([counts_E, torch.stack([(~kept_TK).sum(), error.detach()])])


def _first_fault(mine: str) -> str:
    """A fault of any rank: all of them stop for it."""
    import torch.distributed as dist

    every = [""] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return next(filter(None, every), "")


def _fault(given: tuple, layer: Layer) -> str:
    """Why what a router gave is no choice of experts."""
    import torch

    chosen, weights, loss = given
    shape = (layer.tokens, layer.top_k)
    for name, each in (("chosen", chosen), ("weights", weights)):
        if not isinstance(each, torch.Tensor) or each.shape != shape:
            return say(
                "{name} is a tensor of the shape {shape}; got {given}",
                name=name,
                shape=shape,
                given=tuple(each.shape) if isinstance(each, torch.Tensor) else each,
            )
    if chosen.dtype != torch.int64 or not ((chosen >= 0) & (chosen < layer.experts)).all():
        return say(
            "chosen has whole numbers from 0 to {last}; got {given}",
            last=layer.experts - 1,
            given=chosen[0].tolist(),
        )
    if (chosen.sort(-1).values.diff(dim=-1) == 0).any():
        return say("a token goes to different experts; one of them goes to the same twice")
    if not torch.allclose(weights.sum(-1), torch.ones(layer.tokens), atol=1e-4):
        return say(
            "a token's weights sum to 1; these sum to {total:.3g}", total=float(weights[0].sum())
        )
    if torch.as_tensor(loss).numel() != 1:
        return say(
            "the loss is one number; got the shape {shape}", shape=(*torch.as_tensor(loss).shape,)
        )
    return ""


def _teaches(loss: "Tensor", scores_TE: "Tensor") -> bool:
    """Whether a loss has a gradient in the scores."""
    import torch

    if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
        return False
    (found,) = torch.autograd.grad(loss, scores_TE, retain_graph=True, allow_unused=True)
    return found is not None and bool((found.abs() > 1e-8).any())
