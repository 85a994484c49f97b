"""Tensor parallelism by hand: the two functions that stand before a column and after a row, and the
layers between them.

``f`` copies in the forward and sums in the backward; ``g`` sums in the forward and copies in the
backward (Shoeybi et al. 2019, figure 3). Under sequence parallelism ``f`` gathers the tokens of all
ranks and its backward scatters the sums; ``g`` the other way round (Korthikanti et al. 2022, figure
5). Sizes may differ from rank to rank.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from labkit.tensor_parallel import cut
from labkit.tensor_parallel.layer import Layer
from labkit.tensor_parallel.whole_run import WholeBlock

# --- what crosses between ranks ---


def summed(x: Tensor) -> Tensor:
    """The sum over the ranks, on each of them: a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


def gathered(x_BTD: Tensor) -> Tensor:
    """The tokens of all ranks, one rank's after another's."""
    mine = x_BTD.transpose(0, 1).contiguous()
    every = mine.new_empty(len(mine) * dist.get_world_size(), *mine.shape[1:])
    dist.all_gather_single(every, mine)
    return every.transpose(0, 1)


def scattered(x_BTD: Tensor) -> Tensor:
    """This rank's tokens of the sum over the ranks."""
    whole = x_BTD.transpose(0, 1).contiguous()
    mine = whole.new_empty(len(whole) // dist.get_world_size(), *whole.shape[1:])
    dist.reduce_scatter_single(mine, whole)
    return mine.transpose(0, 1)


class Entering(Function):
    """f: before a column. Forward: the stream as it is, or gathered. Backward: each rank's part of
    the stream's gradient, summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sequence_parallel: bool) -> Tensor:
        """The whole stream on every rank."""
        ctx.sequence_parallel = sequence_parallel
        return gathered(x) if sequence_parallel else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The sum of what the ranks' columns say."""
        return (scattered(grad) if ctx.sequence_parallel else summed(grad)), None


class Leaving(Function):
    """g: after a row. Forward: the ranks' summands, summed. Backward: the gradient as it is, or
    gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sequence_parallel: bool) -> Tensor:
        """The stream again: whole, or this rank's tokens."""
        ctx.sequence_parallel = sequence_parallel
        return scattered(x) if sequence_parallel else summed(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Every summand has the gradient of the sum."""
        return (gathered(grad) if ctx.sequence_parallel else grad), None


# --- layers ---


class ColumnParallel(nn.Module):
    """Some features out of a linear layer. It begins a cut part: f stands before it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """The stream to this rank's features."""
        return F.linear(Entering.apply(x, self.sequence_parallel), self.weight, self.bias)


class RowParallel(nn.Module):
    """All features out, of some features in. It ends a cut part: g stands after it, and the bias is
    added once, after the sum."""

    def __init__(self, weight: Tensor, bias: Tensor, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)
        self.sequence_parallel = sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """This rank's features to the stream."""
        return Leaving.apply(F.linear(x, self.weight), self.sequence_parallel) + self.bias


class VocabularyEmbedding(nn.Module):
    """Some words of an embedding: a rank gives zeros for the others', and the sum has them all."""

    def __init__(self, weight: Tensor, words: range, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.words = words
        self.sequence_parallel = sequence_parallel

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Tokens to the stream."""
        others, place = _own(tokens_BT, self.words)
        rows = F.embedding(place, self.weight).masked_fill(others[..., None], 0.0)
        return Leaving.apply(rows, self.sequence_parallel)


def _own(tokens: Tensor, words: range) -> tuple[Tensor, Tensor]:
    """Which tokens are other ranks' words, and where the rest stand in this rank's."""
    others = (tokens < words.start) | (tokens >= words.stop)
    return others, (tokens - words.start).masked_fill(others, 0)


class VocabularyLoss(Function):
    """Mean cross-entropy of logits that each rank has for its own words. Two all-reduces of a few
    numbers a token, instead of a gather of all logits."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, words: range) -> Tensor:
        """The loss, on every rank the same."""
        largest = logits_NV.max(-1).values
        dist.all_reduce(largest, dist.ReduceOp.MAX)  # or exp could overflow
        shifted = logits_NV - largest[:, None]
        others, place = _own(targets_N, words)
        target = shifted.gather(1, place[:, None])[:, 0].masked_fill(others, 0.0)
        both = torch.stack([shifted.exp().sum(-1), target])
        dist.all_reduce(both)
        ctx.save_for_backward(shifted.exp() / both[0][:, None], others, place)
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Softmax less one for the target, each rank for its own words: no message."""
        softmax, others, place = ctx.saved_tensors
        one = (~others).to(softmax.dtype)[:, None]
        return softmax.scatter_add(1, place[:, None], -one) * (grad / len(softmax)), None, None


class CutBlock(nn.Module):
    """A rank's part of ``WholeBlock``. Norms are whole."""

    def __init__(self, step: Layer, whole: WholeBlock, rank: int) -> None:
        super().__init__()
        shape = step.shape()
        parts = {each.name: each for each in step.pieces(rank)}
        mine = {name: piece_of(weight, parts[name]) for name, weight in whole.named_parameters()}
        sp = step.sequence_parallel
        self.queries, self.pairs = cut.heads(shape.heads, shape.num_kv_heads, step.ranks, rank)
        self.in_group = shape.heads // shape.num_kv_heads
        self.head_dim = shape.width
        self.norm1 = whole.norm1
        self.norm2 = whole.norm2
        self.qkv = ColumnParallel(mine["qkv.weight"], mine["qkv.bias"], sp)
        self.out = RowParallel(mine["out.weight"], mine["out.bias"], sp)
        self.up = ColumnParallel(mine["up.weight"], mine["up.bias"], sp)
        self.down = RowParallel(mine["down.weight"], mine["down.bias"], sp)
        self.words = cut.share(step.vocab, step.ranks, rank)
        if step.vocab:
            self.embed = VocabularyEmbedding(mine["embed.weight"], self.words, sp)
            self.head = ColumnParallel(mine["head.weight"], None, sp)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The stream to the stream."""
        x_BTD = x_BTD + self.out(self._attend(self.qkv(self.norm1(x_BTD))))
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))

    def _attend(self, qkv: Tensor) -> Tensor:
        """This rank's heads; each looks at its own head of keys, no message."""
        sizes = [len(each) * self.head_dim for each in (self.queries, self.pairs, self.pairs)]
        q, k, v = (
            each.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for each in qkv.split(sizes, -1)
        )
        looks_at = [head // self.in_group - self.pairs.start for head in self.queries]
        k, v = (each[:, looks_at] for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2)

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy, by the vocabulary's parts."""
        logits = self.head(self(self.embed(tokens_BT)))
        return VocabularyLoss.apply(logits.flatten(0, 1), targets_BT.flatten(), self.words)


def piece_of(weight: Tensor, piece: cut.Piece) -> Tensor:
    """What a rank holds of a whole weight: a new tensor."""
    if piece.dim < 0:
        return weight.detach().clone()
    parts = [weight.detach().narrow(piece.dim, each.start, len(each)) for each in piece.ranges]
    return torch.cat(parts, piece.dim)


def sum_whole_weights(block: CutBlock) -> None:
    """Sequence parallelism: norms, and biases after a row, have seen this rank's tokens only. One
    all-reduce of all their gradients."""
    weights = [*block.norm1.parameters(), *block.norm2.parameters()]
    weights += [block.out.bias, block.down.bias]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    flat = torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(flat)
    for each, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        each.copy_(part.view_as(each))
