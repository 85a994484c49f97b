"""Ulysses by hand: an all-to-all turns all heads of a rank's tokens into a rank's heads of all
tokens, attention runs as on one process, and another all-to-all turns back (Jacobs et al. 2023,
arXiv:2309.14509)."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from labkit.long_context.attention import Attention
from labkit.long_context.pieces import work
from labkit.long_context.ring_run import Timed


def swapped(x_BHTD: Tensor, scatter: int, gather: int) -> Tensor:
    """Cuts along one dimension, sends each rank its part, and joins what comes along another."""
    parts = torch.stack(x_BHTD.chunk(dist.get_world_size(), scatter))
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts)
    return torch.cat(arrived.unbind(0), gather)


class Swap(Function):
    """``swapped``; its backward swaps back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scatter: int, gather: int) -> Tensor:
        """Heads are dimension 1, tokens dimension 2."""
        ctx.back = gather, scatter
        return swapped(x, scatter, gather)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of what came goes back to where it came from."""
        return swapped(grad, *ctx.back), None, None


class Paced(Function):
    """The attention between the swaps, forward and backward at the stated pace."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, attention: Attention, taking: Timed
    ) -> Tensor:
        """All tokens, some heads."""
        every = tuple(range(2 * attention.ranks))
        ctx.num_pairs = work(every, every, causal=attention.causal) / attention.ranks
        ctx.taking = taking
        with taking("F", 0, ctx.num_pairs), torch.enable_grad():
            ctx.inputs = [each.detach().requires_grad_() for each in (q, k, v)]
            ctx.out = whole(*ctx.inputs, attention)
        return ctx.out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """By autograd, of what the forward kept."""
        with ctx.taking("B", 0, ctx.num_pairs):
            grads = torch.autograd.grad(ctx.out, ctx.inputs, grad)
        return *grads, None, None


def whole(q: Tensor, k: Tensor, v: Tensor, attention: Attention) -> Tensor:
    """Attention as torch has it, over all tokens that are there."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=attention.causal)


def ulysses(q: Tensor, k: Tensor, v: Tensor, attention: Attention, taking: Timed) -> Tensor:
    """Shapes (batch, heads, tokens of this rank, head_dim)."""
    of_my_heads = [Swap.apply(each, 1, 2) for each in (q, k, v)]
    return Swap.apply(Paced.apply(*of_my_heads, attention, taking), 2, 1)
