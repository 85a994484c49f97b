"""The layer on one process, which every engine is held against; and how its weights are filled."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model import Block
from labkit.tensor_parallel.layer import Layer


class WholeBlock(Block):
    """``model.Block`` with heads of keys and values that several heads of queries look at, and an
    MLP of any width."""

    def __init__(self, hidden: int, num_heads: int, num_kv_heads: int, ffn: int) -> None:
        super().__init__(hidden, num_heads)
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden // num_heads
        self.qkv = nn.Linear(hidden, (num_heads + 2 * num_kv_heads) * self.head_dim)
        self.up = nn.Linear(hidden, ffn)
        self.down = nn.Linear(ffn, hidden)

    def attend(self, x_BTD: Tensor) -> Tensor:
        """Each position looks at itself and the ones before it."""
        sizes = [each * self.head_dim for each in (self.num_heads, *[self.num_kv_heads] * 2)]
        q, k, v = (
            each.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for each in self.qkv(x_BTD).split(sizes, -1)
        )
        times = self.num_heads // self.num_kv_heads
        k, v = (each.repeat_interleave(times, 1) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class WholeModel(WholeBlock):
    """An embedding, the block, an output layer: (B, T) of tokens to (B, T, V) of logits."""

    def __init__(self, hidden: int, heads: tuple[int, int], ffn: int, vocab: int) -> None:
        super().__init__(hidden, *heads, ffn)
        self.embed = nn.Embedding(vocab, hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits for the token after each position."""
        return self.head(super().forward(self.embed(tokens_BT)))


def whole(step: Layer) -> WholeBlock:
    """The layer of an experiment, its weights drawn anew with the same numbers every time."""
    shape = step.shape()
    heads = (shape.heads, shape.num_kv_heads)
    if step.vocab:
        made: WholeBlock = WholeModel(step.hidden, heads, shape.ffn_width, step.vocab)
    else:
        made = WholeBlock(step.hidden, *heads, shape.ffn_width)
    draw = np.random.default_rng(0)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            around = 1.0 if name.startswith("norm") and name.endswith("weight") else 0.0
            weight.copy_(_drawn(draw, tuple(weight.shape), 0.1) + around)
    return made


def numbered(step: Layer) -> WholeBlock:
    """The same, each weight holding the numbers of its elements: whoever has a slice of it can be
    asked which."""
    made = whole(step)
    with torch.no_grad():
        for weight in made.parameters():
            numbers = torch.arange(weight.numel(), dtype=weight.dtype)
            weight.copy_(numbers.view_as(weight))
    return made


def batch(step: Layer) -> tuple[Tensor, Tensor]:
    """What goes in, and what the output is held to: tokens and the next ones, or a stream and the
    gradient of its output."""
    draw = np.random.default_rng(1)
    shape = (step.batch, step.sequence)
    if step.vocab:
        tokens = torch.from_numpy(draw.integers(0, step.vocab, (2, *shape)))
        made = tokens.to(torch.get_default_device())
        return made[0].clone(), made[1].clone()
    shape = (*shape, step.hidden)
    return _drawn(draw, shape, 1.0), _drawn(draw, shape, 1.0)


def _drawn(draw: np.random.Generator, shape: tuple[int, ...], spread: float) -> Tensor:
    """Normal numbers on the rank's device, the same on any."""
    numbers = torch.from_numpy(draw.normal(0.0, spread, shape).astype(np.float32))
    return numbers.to(torch.get_default_device())


def qkv_by_rank(made: WholeBlock, order: list[int]) -> WholeBlock:
    """A copy whose rows of queries, keys and values stand in another order: each rank's beside one
    another, for engines that cut a weight into equal runs of rows."""
    moved = copy.deepcopy(made)
    with torch.no_grad():
        for weight, before in zip(moved.qkv.parameters(), made.qkv.parameters(), strict=True):
            weight.copy_(before[order])
    return moved
