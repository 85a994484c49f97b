"""Blocks of a transformer as the papers count what they keep for the backward: GPT's with dropout,
its attention stored or not; LLaMA's, its norm one operator or several."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model import Block
from labkit.units import check_whole, check_word

KINDS = ("gpt", "gpt_stored", "llama", "llama_fused")
"""with flash attention; with the attention matrix stored; with RMSNorm as torch has it on a CPU, in
several operators; with a norm that is one operator"""


def block(kind: str, width: int = 128, heads: int = 4) -> nn.Module:
    """A block in bf16 that takes (batch, length, width). Raises ValueError for a kind that is none
    of KINDS, and for a width that the heads can't share."""
    check_word(kind, KINDS, "a block")
    check_whole(1, 65_536, width=width, heads=heads)
    if width % heads:
        raise ValueError(
            f"heads share the width equally; {width} is not a multiple of {heads}: take another"
        )
    if kind.startswith("gpt"):
        made = _Gpt(width, heads, stored=kind.endswith("stored"))
    else:
        made = _Llama(width, heads, one_operator=kind.endswith("fused"))
    return made.bfloat16()


def _dropout(x: Tensor) -> Tensor:
    """Keeps a mask of one byte per element, as the operator of a GPU does."""
    kept = torch.rand_like(x) > 0.1
    return x * kept / 0.9


class _Gpt(Block):
    """Attention and an MLP of four times the width, dropout after both."""

    def __init__(self, width: int, heads: int, *, stored: bool) -> None:
        super().__init__(width, heads)
        self.stored = stored

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        q, k, v = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        if self.stored:
            y = _dropout((q @ k.mT).softmax(-1)) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        x = x + _dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + _dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class _Llama(Block):
    """RMSNorm and SwiGLU, no dropout. Rotary positions are left out: nothing is kept for them."""

    def __init__(self, width: int, heads: int, *, one_operator: bool) -> None:
        super().__init__(width, heads)
        norm: Any = nn.LayerNorm if one_operator else nn.RMSNorm
        hidden = 43 * width // 16  # LLaMA 7B: 11008 for 4096
        self.norm1 = norm(width)
        self.norm2 = norm(width)
        self.gate = nn.Linear(width, hidden)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))
