"""One small decoder transformer, used by every chapter, and the story it learns.

Shape suffixes: B batch, T time (position), D model dimension, H heads, K dimension of a head, V
vocabulary.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STORY = Path(__file__).resolve().parent.parent / "data" / "story.txt"
VOCAB_SIZE = 256


class Embed(nn.Module):
    """Token plus learned position."""

    def __init__(self, dim: int, vocab_size: int, max_len: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(max_len, dim)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """(B, T) of token ids to (B, T, D)."""
        position_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        return self.token(tokens_BT) + self.position(position_T)


class Block(nn.Module):
    """Pre-norm: causal attention, then an MLP of four times the width, each added to the stream."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        x_BTD = x_BTD + self.attend(self.norm1(x_BTD))
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))

    def attend(self, x_BTD: Tensor) -> Tensor:
        """Each position looks at itself and the ones before it."""
        B, T, _ = x_BTD.shape
        qkv = self.qkv(x_BTD).chunk(3, dim=-1)
        q_BHTK, k_BHTK, v_BHTK = (
            each.view(B, T, self.num_heads, -1).transpose(1, 2) for each in qkv
        )
        y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.out(y_BHTK.transpose(1, 2).flatten(2))


class Head(nn.Module):
    """Last norm, then one logit per token of the vocabulary."""

    def __init__(self, dim: int, vocab_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.logits = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) to (B, T, V)."""
        return self.logits(self.norm(x_BTD))


def layers(
    num_layers: int,
    dim: int = 64,
    num_heads: int = 4,
    vocab_size: int = VOCAB_SIZE,
    max_len: int = 128,
) -> list[nn.Module]:
    """Embed, ``num_layers`` blocks, head: a plain list, as DeepSpeed's PipelineModule takes it."""
    if dim % num_heads:
        raise ValueError(
            "heads share the model dimension equally; "
            f"dim={dim} is not a multiple of {num_heads} heads"
        )

    def make() -> nn.ModuleList:
        embed = Embed(dim, vocab_size, max_len)
        blocks = [Block(dim, num_heads) for _ in range(num_layers)]
        return nn.ModuleList([embed, *blocks, Head(dim, vocab_size)])

    return list(drawn(make))


def drawn(make: Callable[[], nn.Module]) -> nn.Module:
    """The module that ``make()`` returns, on the default device, with the same random weights
    whatever that device is: a GPU draws other numbers than a CPU from the same seed. Raises
    ValueError if it is no function that returns a module."""
    device = torch.get_default_device()
    if not callable(make):
        raise ValueError(f"make is a function without arguments; got {make!r}")
    # on the CPU first; a device without bytes needs no numbers
    with torch.device(device if device.type == "meta" else "cpu"):
        made = make()
    if not isinstance(made, nn.Module):
        raise ValueError(f"make has to return a module; got {made!r}")
    return made.to(device)


class Transformer(nn.Module):
    """The layers one after the other: (B, T) of token ids to (B, T, V) of logits."""

    def __init__(
        self,
        num_layers: int,
        dim: int = 64,
        num_heads: int = 4,
        vocab_size: int = VOCAB_SIZE,
        max_len: int = 128,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers(num_layers, dim, num_heads, vocab_size, max_len))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits for the token after each position."""
        x = tokens_BT
        for layer in self.layers:
            x = layer(x)
        return x


def split(model: Transformer, num_stages: int) -> list[nn.Module]:
    """The model cut into stages of consecutive layers: embedding in the first, head in the last,
    blocks spread evenly.

    Nothing is copied. A stage names its layers as the model does: "3.up.weight" there is
    "layers.3.up.weight" here.
    """
    num_blocks = len(model.layers) - 2
    if not 1 <= num_stages <= num_blocks:
        raise ValueError(
            f"a stage holds at least one block; {num_blocks} blocks cannot make {num_stages} "
            f"stages: take 1 to {num_blocks} stages, or a model of more layers"
        )
    cuts = [1 + stage * num_blocks // num_stages for stage in range(num_stages + 1)]
    cuts[0] = 0
    cuts[-1] = len(model.layers)
    return [_stage(model, start, stop) for start, stop in pairwise(cuts)]


def _stage(model: Transformer, start: int, stop: int) -> nn.Sequential:
    """Some consecutive layers, by their numbers in the model."""
    named = [(str(number), model.layers[number]) for number in range(start, stop)]
    return nn.Sequential(OrderedDict(named))


def loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean cross-entropy over all positions, in nats."""
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def story_tokens(
    num_sequences: int, length: int, seed: int = 0, path: Path = STORY
) -> tuple[Tensor, Tensor]:
    """(tokens_BT, targets_BT): random passages of the story as bytes, and the same passages one
    byte further."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: labkit trains on the story in its own repository, so install "
            "it from a clone (pip install -e .), or give story_tokens(path=...) any text file"
        )
    story = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    if length >= len(story):
        raise ValueError(
            f"a passage and the byte after it fit in the story of {len(story)} bytes; got "
            f"length={length}"
        )
    starts_B = np.random.default_rng(seed).integers(0, len(story) - length, num_sequences)
    passages = torch.from_numpy(
        np.stack([story[start : start + length + 1] for start in starts_B])
    ).long()
    passages = passages.to(torch.get_default_device())
    return passages[:, :-1].contiguous(), passages[:, 1:].contiguous()
