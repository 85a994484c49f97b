"""Expert parallelism by hand: each rank has some experts, and tokens travel to them and back."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from labkit.experts.layer import BACKWARD, Layer
from labkit.experts.whole_run import Choice, choose
from labkit.measure.pace import Pace

Timed = Callable[[str, int], contextlib.AbstractContextManager]
"""Makes a block last as long as so many tokens take, labelled with a way (F or B) and this rank."""


def paced(layer: Layer, pace: Pace) -> Timed:
    """Tokens at the stated pace."""

    def taking(way: str, num_tokens: int) -> contextlib.AbstractContextManager:
        factor = BACKWARD if way == "B" else 1.0
        stated_us = 1e3 * layer.token_ms * num_tokens * factor
        return pace.taking(f"{way}{dist.get_rank()}", stated_us)

    return taking


def unpaced(way: str, num_tokens: int) -> contextlib.AbstractContextManager:
    """As fast as it goes."""
    return contextlib.nullcontext()


class Found(NamedTuple):
    """What a rank has after the layer."""

    out: Tensor
    """its own tokens' outputs"""
    auxiliary_loss: Tensor
    """of its own tokens"""
    load: list[list[int]]
    """from each rank to each of its experts, how many tokens"""
    num_dropped: int
    """of its own tokens' choices"""


def moved(x: Tensor, leaving: list[int], coming: list[int]) -> Tensor:
    """Sends each rank its rows, and returns what comes, one rank's after another's."""
    arrived = x.new_empty(sum(coming), *x.shape[1:])
    dist.all_to_all_single(arrived, x.contiguous(), coming, leaving)
    return arrived


class Move(Function):
    """``moved``; its backward moves the gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, leaving: list[int], coming: list[int]) -> Tensor:
        """So many rows leave to each rank, so many come from each."""
        ctx.back = coming, leaving
        return moved(x, leaving, coming)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of a row goes where the row came from."""
        return moved(grad, *ctx.back), None, None


class _Experts(Function):
    """This rank's experts, forward and backward at their pace."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, up: Tensor, down: Tensor, sizes: list[int], taking: Timed
    ) -> Tensor:
        ctx.taking = taking
        with taking("F", len(x)), torch.enable_grad():
            ctx.inputs = [each.detach().requires_grad_() for each in (x, up, down)]
            x, up, down = ctx.inputs
            parts = zip(x.split(sizes), up, down, strict=True)
            ctx.out = torch.cat([F.gelu(part @ one) @ other for part, one, other in parts])
        return ctx.out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.taking("B", len(grad)):
            grads = torch.autograd.grad(ctx.out, ctx.inputs, grad)
        return *grads, None, None


def experts(
    layer: Layer, x_TD: Tensor, router: Tensor, up: Tensor, down: Tensor, taking: Timed
) -> Found:
    """The layer. ``x_TD``: this rank's tokens; ``up`` and ``down``: its own experts' weights."""
    return dispatched(layer, x_TD, choose(layer, x_TD, router), up, down, taking)


def dispatched(
    layer: Layer, x_TD: Tensor, choice: Choice, up: Tensor, down: Tensor, taking: Timed
) -> Found:
    """The layer behind its router: tokens to the chosen experts and back."""
    kept = choice.kept
    queue = choice.chosen[kept]
    order = queue.argsort(stable=True)  # by expert, and so by the rank that has it
    whose = torch.arange(len(x_TD)).unsqueeze(1).expand_as(kept)[kept][order]
    leaving = torch.bincount(queue, minlength=layer.experts)
    coming = torch.empty_like(leaving)
    dist.all_to_all_single(coming, leaving)  # how many tokens each of my experts gets, by rank
    out_sizes = leaving.view(layer.ranks, -1).sum(1).tolist()
    in_sizes = coming.view(layer.ranks, -1).sum(1).tolist()
    arrived = Move.apply(x_TD[whose], out_sizes, in_sizes)
    load = coming.view(layer.ranks, -1)
    num_mine = load.shape[1]
    whom = torch.arange(num_mine).repeat(layer.ranks).repeat_interleave(coming)
    by_expert = whom.argsort(stable=True)
    sizes = load.sum(0).tolist()
    done = _Experts.apply(arrived[by_expert], up, down, sizes, taking)
    returned = Move.apply(done[by_expert.argsort()], in_sizes, out_sizes)
    weight = choice.weight[kept][order].unsqueeze(1)
    out = torch.zeros_like(x_TD).index_add(0, whose, returned * weight)
    return Found(out, choice.auxiliary_loss, load.tolist(), int((~kept).sum()))
