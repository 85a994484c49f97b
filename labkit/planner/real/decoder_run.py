"""A Shape as a module: the weights that ``tensors`` names, and a forward over them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from labkit.planner.plan.shape import Shape

ROTARY = 10_000.0


class Layer(nn.Module):
    """Attention and an MLP, added to the stream: LLaMA's kind where it is gated, else GPT's."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries = shape.heads * shape.width
        pairs = shape.num_kv_heads * shape.width
        biased = {"bias": not shape.glu}
        self.norm1 = _norm(shape)
        self.q = nn.Linear(shape.hidden, queries, **biased)
        self.k = nn.Linear(shape.hidden, pairs, **biased)
        self.v = nn.Linear(shape.hidden, pairs, **biased)
        self.out = nn.Linear(queries, shape.hidden, **biased)
        self.norm2 = _norm(shape)
        if shape.glu:
            self.gate = nn.Linear(shape.hidden, shape.ffn_width, **biased)
        self.up = nn.Linear(shape.hidden, shape.ffn_width, **biased)
        self.down = nn.Linear(shape.ffn_width, shape.hidden, **biased)

    def forward(self, stream: Tensor) -> Tensor:
        """(B, T, h) to (B, T, h)."""
        stream = stream + self.attend(self.norm1(stream))
        inner = self.norm2(stream)
        if self.shape.glu:
            return stream + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return stream + self.down(F.gelu(self.up(inner)))

    def attend(self, inner: Tensor) -> Tensor:
        """Causal attention over the heads that this rank has."""
        query, key, value = (self._heads(each(inner)) for each in (self.q, self.k, self.v))
        if self.shape.glu:
            query = _rotated(query)
            key = _rotated(key)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key = key.repeat_interleave(groups, 1)
            value = value.repeat_interleave(groups, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _heads(self, columns: Tensor) -> Tensor:
        return columns.unflatten(2, (-1, self.shape.width)).transpose(1, 2)


class Decoder(nn.Module):
    """Embedding, layers, norm, output layer."""

    def __init__(self, shape: Shape, *, recompute: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.recompute = recompute
        self.embed = nn.Embedding(shape.vocab, shape.hidden)
        if shape.positions:
            self.position = nn.Embedding(shape.positions, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) of token ids to (B, T, V) of logits."""
        stream = self.embed(tokens)
        if self.shape.positions:
            stream = stream + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            if self.recompute:
                stream = checkpoint(layer, stream, use_reentrant=False)
            else:
                stream = layer(stream)
        return self.head(self.norm(stream))


def _norm(shape: Shape) -> nn.Module:
    return nn.RMSNorm(shape.hidden) if shape.glu else nn.LayerNorm(shape.hidden)


def _rotated(heads: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, equation 34)."""
    half = heads.shape[-1] // 2
    speeds = ROTARY ** (-torch.arange(half) / half)
    angles = torch.arange(heads.shape[2])[:, None] * speeds
    cosines = angles.cos().to(heads.dtype)
    sines = angles.sin().to(heads.dtype)
    first = heads[..., :half]
    second = heads[..., half:]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
