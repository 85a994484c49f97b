"""A part of the small transformer with a KV cache: layers, and of each layer some heads. A token is
computed once; later ones look at its keys and values.

Shape suffixes beside those of ``model``: S slots, L tokens that a slot has room for.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.model import Block, Embed, Head, Transformer
from labkit.planner.plan.shape import Shape
from labkit.tensor_parallel import cut
from labkit.tensor_parallel.by_hand_run import piece_of


class Where(NamedTuple):
    """Which tokens a pass is over."""

    slots: Tensor
    """int64 (B,): where they are kept"""
    places: Tensor
    """int64 (B, T): which of their request's tokens they are"""
    far: int
    """how many tokens of a slot are looked at, at most"""
    seen: Tensor
    """bool (B, 1, T, L): whether a token looks at another one"""


def where(slots: Sequence[int], starts: Sequence[int], num_tokens: int) -> Where:
    """So many tokens from ``starts`` on in each of the slots."""
    places_BT = torch.tensor(list(starts))[:, None] + torch.arange(num_tokens)
    far = max(starts) + num_tokens
    seen_BTL = torch.arange(far) <= places_BT[..., None]
    return Where(torch.tensor(list(slots)), places_BT, far, seen_BTL[:, None])


class CachedBlock(nn.Module):
    """A rank's heads and MLP features of one block; ``keep`` gives it a cache."""

    def __init__(self, whole: Block, num_ranks: int, rank: int) -> None:
        super().__init__()
        dim = whole.out.weight.shape[0]
        shape = Shape(layers=1, hidden=dim, heads=whole.num_heads, vocab=1)
        parts = {each.name: each for each in cut.layer_pieces(shape, num_ranks, rank)}
        weights = dict(whole.named_parameters())
        self.cut = {name: piece_of(weights[name], parts[name]) for name in parts}
        self.norms = whole.norm1, whole.norm2
        self.num_ranks = num_ranks
        self.head_dim = shape.width
        queries, _ = cut.heads(shape.heads, shape.heads, num_ranks, rank)
        self.num_heads = len(queries)
        self.keep(0, 0)

    def keep(self, slots: int, room: int) -> None:
        """A new cache, with room for so many tokens in each slot."""
        held = (self.num_heads, slots, room, self.head_dim)
        self.keys_HSLK = torch.zeros(held)
        self.values_HSLK = torch.zeros(held)

    def forward(self, x_BTD: Tensor, at: Where) -> Tensor:
        """(B, T, D) to (B, T, D): these tokens, those before them from the cache."""
        norm1, norm2 = self.norms
        x_BTD = x_BTD + self._row("out", self._attend(norm1(x_BTD), at))
        return x_BTD + self._row("down", F.gelu(self._column("up", norm2(x_BTD))))

    def _attend(self, x_BTD: Tensor, at: Where) -> Tensor:
        """Keeps these tokens' keys and values, then looks at all up to them."""
        parts = self._column("qkv", x_BTD).chunk(3, dim=-1)
        q_HBTK, k_HBTK, v_HBTK = (self._by_head(each) for each in parts)
        self.keys_HSLK[:, at.slots[:, None], at.places] = k_HBTK
        self.values_HSLK[:, at.slots[:, None], at.places] = v_HBTK
        keys, values = (
            each[:, at.slots, : at.far].transpose(0, 1)
            for each in (self.keys_HSLK, self.values_HSLK)
        )
        y_BHTK = F.scaled_dot_product_attention(
            q_HBTK.transpose(0, 1), keys, values, attn_mask=at.seen
        )
        return y_BHTK.transpose(1, 2).flatten(2)

    def _by_head(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (-1, self.head_dim)).permute(2, 0, 1, 3)

    def _column(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.cut[f"{name}.weight"], self.cut[f"{name}.bias"])

    def _row(self, name: str, x: Tensor) -> Tensor:
        """Every rank has a summand: one all-reduce, then the bias."""
        y = F.linear(x, self.cut[f"{name}.weight"])
        if self.num_ranks > 1:
            dist.all_reduce(y)
        return y + self.cut[f"{name}.bias"]


class CachedModel:
    """Some layers of a transformer, cut among ``num_ranks`` ranks; the embedding and the head,
    where they are among them, are whole on each."""

    def __init__(self, layers: Sequence[nn.Module], num_ranks: int = 1, rank: int = 0) -> None:
        self.layers: list[nn.Module] = []
        for each in layers:
            is_block = isinstance(each, Block)
            self.layers.append(CachedBlock(each, num_ranks, rank) if is_block else each)
        self.blocks = [each for each in self.layers if isinstance(each, CachedBlock)]

    def keep(self, slots: int, room: int) -> None:
        """A new cache in every layer, with room for so many tokens in each slot."""
        for each in self.blocks:
            each.keep(slots, room)

    @property
    def cache_bytes(self) -> int:
        """What the storages of this rank's keys and values take."""
        storages = [each.untyped_storage() for each in self.caches()]
        return sum(each.nbytes() for each in storages)

    def caches(self) -> list[Tensor]:
        """Keys and values of each layer."""
        found: list[Tensor] = []
        for each in self.blocks:
            found += [each.keys_HSLK, each.values_HSLK]
        return found

    @torch.no_grad()
    def through(self, x: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """Tokens (B, T), or what the layers before made of them (B, T, D), into these slots, the
        first of them at ``starts``. Returns (B, T, D), or (B, T, V) from the head."""
        at = where(slots, starts, x.shape[1])
        for layer in self.layers:
            if isinstance(layer, CachedBlock):
                x = layer(x, at)
            elif isinstance(layer, Embed):
                x = layer.token(x) + layer.position(at.places)
            else:
                x = layer(x)
        return x

    def next_tokens(self, x: Tensor, slots: Sequence[int], starts: Sequence[int]) -> Tensor:
        """The likeliest token after the last one of each, (B,)."""
        return likeliest(self.through(x, slots, starts))


def likeliest(logits_BTV: Tensor) -> Tensor:
    """The token after the last place, (B,)."""
    return logits_BTV[:, -1].argmax(dim=-1)


def transformer(num_layers: int, dim: int, heads: int, room: int, seed: int) -> Transformer:
    """The whole model, the same on every rank. Its weights are as they are drawn; the head's are
    made larger, or rounding might choose between tokens that are nearly as likely."""
    torch.manual_seed(seed)
    whole = Transformer(num_layers, dim, heads, max_len=room + 1)
    head = whole.layers[-1]
    assert isinstance(head, Head)
    with torch.no_grad():
        head.logits.weight *= 4.0
    return whole


@torch.no_grad()
def without_cache(whole: Transformer, prompt_T: Tensor, num_tokens: int) -> list[int]:
    """One request on one process, every token computed anew for every next one: what a cache must
    not change."""
    tokens = prompt_T[None]
    for _ in range(num_tokens):
        following = likeliest(whole(tokens))
        tokens = torch.cat([tokens, following[:, None]], dim=1)
    return tokens[0, len(prompt_T) :].tolist()
