"""What a language model is made of, as a planner sees it: sizes in; parameters and products out.

A layer is attention and an MLP (Vaswani et al. 2017); grouped queries, a gated MLP, experts and
tied embeddings are options. Counts are exact where the model follows its kind: with a gated MLP
RMSNorm, rotary positions and no biases (LLaMA); else LayerNorm, learned positions and biases (GPT).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from labkit.planner.models import rows
from labkit.units import check_whole

MOST = 10**7
MOST_TOKENS = 10**9


class Product(NamedTuple):
    """A matrix product of a layer: [rows, inner] x [inner, columns]."""

    name: str
    """qkv, out, up, down, router or head"""
    inner: int
    """what is summed over"""
    columns: int
    """columns of the weight"""
    cut: str
    """"columns" or "rows": which side of the weight tensor parallelism cuts; "" for none"""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder of equal layers."""

    name: str = ""
    """what it is called"""
    layers: int
    """L"""
    hidden: int
    """h: the width of the stream"""
    heads: int
    """a: attention heads"""
    kv_heads: int = 0
    """heads of keys and values (grouped queries); 0: as many as heads"""
    head_dim: int = 0
    """width of a head; 0: hidden / heads"""
    ffn: int = 0
    """width of the MLP; 0: 4 x hidden"""
    glu: bool = False
    """whether the MLP is gated (three matrices instead of two)"""
    vocab: int = 50_257
    """tokens of the vocabulary"""
    tied: bool = True
    """whether the output layer is the embedding"""
    experts: int = 1
    """MLPs in a layer; 1: a dense model"""
    active_experts: int = 1
    """how many of them a token goes through"""
    positions: int = 0
    """learned positions; 0: none"""

    def __post_init__(self) -> None:
        sizes = {
            "layers": self.layers,
            "hidden": self.hidden,
            "heads": self.heads,
            "vocab": self.vocab,
            "experts": self.experts,
            "active_experts": self.active_experts,
        }
        check_whole(1, MOST, **sizes)
        check_whole(0, MOST, kv_heads=self.kv_heads, head_dim=self.head_dim, ffn=self.ffn)
        check_whole(0, MOST, positions=self.positions)
        if not self.head_dim and self.hidden % self.heads:
            raise ValueError(
                f"heads divide the width, or head_dim is given; got {self.heads} heads, "
                f"hidden {self.hidden}"
            )
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"kv_heads divide heads; got {self.num_kv_heads} and {self.heads} heads"
            )
        if self.active_experts > self.experts:
            raise ValueError(
                f"a token goes through as many experts as there are, or fewer; got "
                f"{self.active_experts} of {self.experts}"
            )

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Width of one head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def ffn_width(self) -> int:
        """Width of the MLP."""
        return self.ffn or 4 * self.hidden

    def products(self) -> list[Product]:
        """The matrix products of a layer, an expert's once. The router is not cut."""
        queries = self.heads * self.width
        pairs = 2 * self.num_kv_heads * self.width
        gates = 2 if self.glu else 1
        found = [
            Product("qkv", self.hidden, queries + pairs, "columns"),
            Product("out", queries, self.hidden, "rows"),
            Product("up", self.hidden, gates * self.ffn_width, "columns"),
            Product("down", self.ffn_width, self.hidden, "rows"),
        ]
        if self.experts > 1:
            found.append(Product("router", self.hidden, self.experts, ""))
        return found

    # --- parameters ---

    @property
    def expert_params(self) -> int:
        """Parameters of all MLPs of a layer."""
        one = sum(
            each.inner * each.columns for each in self.products() if each.name in ("up", "down")
        )
        biases = 0 if self.glu else self.ffn_width + self.hidden
        return self.experts * (one + biases)

    @property
    def dense_params(self) -> int:
        """Parameters of a layer outside its MLPs."""
        shared = ("qkv", "out", "router")
        weights = sum(each.inner * each.columns for each in self.products() if each.name in shared)
        if self.glu:
            return weights + 2 * self.hidden
        biases = (self.heads + 2 * self.num_kv_heads) * self.width + self.hidden
        return weights + biases + 4 * self.hidden

    @property
    def layer_params(self) -> int:
        """Parameters of a layer."""
        return self.dense_params + self.expert_params

    @property
    def embedding_params(self) -> int:
        """Parameters of the table of tokens; the output layer has as many where it is not tied."""
        return self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All parameters."""
        norm = self.hidden if self.glu else 2 * self.hidden
        tables = self.embedding_params * (1 if self.tied else 2)
        return self.layers * self.layer_params + tables + self.positions * self.hidden + norm

    def outer_params(self, *, is_first: bool, is_last: bool) -> tuple[float, float]:
        """(cut by tp, whole) parameters of a pipeline stage outside of its layers: tables, with the
        output layer on the last stage, and the last norm."""
        tables = 0
        if is_first:
            tables += self.embedding_params + self.positions * self.hidden
        if is_last and not (is_first and self.tied):
            tables += self.embedding_params
        norm = self.hidden if self.glu else 2 * self.hidden
        return tables, norm if is_last else 0

    def refusals(self, layout: Mapping[str, object]) -> list[str]:
        """What a kind of model can't say of a layout, a sentence each; here nothing."""
        return []

    # --- FLOPs ---

    def layer_flops(self) -> int:
        """FLOPs of a layer's matrix products for one token's forward, attention's own left out: 2
        for each active weight."""
        found = 0
        for each in self.products():
            times = self.active_experts if each.name in ("up", "down") else 1
            found += 2 * times * each.inner * each.columns
        return found

    def attention_flops(self, seq: int, *, causal: bool = False) -> float:
        """FLOPs of a layer's attention for one token's forward: 4 s a d (scores and their
        product with the values), half of it counted where the mask is."""
        check_whole(1, MOST_TOKENS, seq=seq)
        return 4 * seq * self.heads * self.width / (2 if causal else 1)

    def head_flops(self) -> int:
        """FLOPs of the output layer for one token's forward."""
        return 2 * self.hidden * self.vocab

    def token_flops(self, seq: int, *, causal: bool = False) -> float:
        """Model FLOPs of one token, forward and backward: three times the forward's. With causal
        False that is Narayanan et al. 2021, equation 3, without recomputation: 72 l h^2 (1 + s/(6h)
        + V/(12 l h))."""
        layer = self.layer_flops() + self.attention_flops(seq, causal=causal)
        return 3 * (self.layers * layer + self.head_flops())


def from_config(path: str | Path) -> Shape:
    """A Shape from a Hugging Face ``config.json`` on disk (LLaMA, Mistral, Mixtral, Qwen, GPT-2 and
    what names its sizes as they do). Raises ValueError for a file without them."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        told = f"a model is a config.json that can be read; got {str(path)!r}: {error}"
        raise ValueError(told) from None
    told = told.get("text_config", told) if isinstance(told, dict) else {}

    def first(*names: str, default: object = None) -> object:
        return next((told[name] for name in names if told.get(name) is not None), default)

    needed = {
        "layers": first("num_hidden_layers", "n_layer", "num_layers"),
        "hidden": first("hidden_size", "n_embd", "d_model"),
        "heads": first("num_attention_heads", "n_head", "num_heads"),
        "vocab": first("vocab_size"),
    }
    missing = [name for name, value in needed.items() if not isinstance(value, int)]
    if missing:
        raise ValueError(f"a config.json names {', '.join(needed)}; {path} lacks {missing}")
    is_gpt = "n_embd" in told
    return Shape(
        **needed,
        name=str(first("_name_or_path", "model_type", default=Path(path).parent.name)),
        kv_heads=first("num_key_value_heads", default=0),
        head_dim=first("head_dim", default=0),
        ffn=first("intermediate_size", "n_inner", "ffn_dim", default=0),
        glu=not is_gpt and first("hidden_act", default="silu") in ("silu", "swish"),
        tied=bool(first("tie_word_embeddings", default=is_gpt)),
        experts=first("num_local_experts", "num_experts", "n_routed_experts", default=1),
        active_experts=first("num_experts_per_tok", default=1),
        positions=first("n_positions", default=0) if is_gpt else 0,
    )


def from_name(name: str) -> Shape:
    """A model of data/models.csv by its name, however it is written ("LLaMA 7B", "llama-7b").
    Raises ValueError for one that is not there."""
    for row in rows("models.csv"):
        if plain(row["name"]) == plain(name):
            return _from_row(row)
    known = ", ".join(plain(row["name"], "-") for row in rows("models.csv"))
    raise ValueError(f"a model is a config.json on disk or one of {known}; got {name!r}")


def plain(name: str, dash: str = "") -> str:
    """A name for comparison: small letters and digits, words joined by ``dash``."""
    if not isinstance(name, str) or not isinstance(dash, str):
        raise ValueError(f"a name and its dash are words; got {name!r} and {dash!r}")
    for mark in " _-.":
        name = name.replace(mark, " ")
    return dash.join(name.lower().split())


def _from_row(row: dict[str, str]) -> Shape:
    def whole(column: str) -> int:
        return int(row[column] or 0)

    return Shape(
        name=row["name"],
        layers=whole("layers"),
        hidden=whole("dim"),
        heads=whole("heads"),
        kv_heads=whole("kv_heads"),
        ffn=whole("ffn"),
        glu=row["glu"] == "1",
        vocab=whole("vocab"),
        tied=row["tied"] == "1",
        experts=whole("experts") or 1,
        active_experts=whole("active_experts") or 1,
        positions=0 if row["glu"] == "1" else whole("seq_len"),
    )
