"""Which slice of which weight each rank holds when a layer is cut among ranks.

The papers write Y = XA: **column parallel** gives each rank some columns of A, so some features of
Y; **row parallel** gives each rank some rows of A, and the features of X that meet them, so every
rank has a summand of all of Y. A column and then a row need one sum for both (Shoeybi et al. 2019,
section 3). torch stores A transposed, (features out, features in): columns of the paper are
dimension 0 there, rows are dimension 1.

Sizes that do not divide are cut as even as may be: the first ranks have one more. Attention is cut
between heads, never inside one; with grouped queries a rank also holds every head of keys and
values that its queries look at, so several ranks may hold the same one.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from labkit.planner.plan.shape import Shape
from labkit.units import MOST_RANKS, check_whole

MOST = 10**8


class Piece(NamedTuple):
    """What a rank holds of one weight."""

    name: str
    """the weight, as the whole layer calls it"""
    shape: tuple[int, ...]
    """of the whole weight"""
    dim: int
    """the dimension that is cut; -1: none, the rank holds all of it"""
    ranges: tuple[range, ...]
    """what it holds along that dimension, in this order"""

    @property
    def num_elements(self) -> int:
        """How many elements the rank holds."""
        if self.dim < 0:
            return prod(self.shape)
        held = sum(map(len, self.ranges))
        return prod(self.shape) // self.shape[self.dim] * held

    def slices(self) -> Iterator[tuple[int, int]]:
        """[start, stop) of the flattened weight, in the order in which the rank holds them."""
        if self.dim < 0:
            yield 0, prod(self.shape)
            return
        inner = prod(self.shape[self.dim + 1 :])
        row = inner * self.shape[self.dim]
        for first in range(0, prod(self.shape), row):
            for each in self.ranges:
                if each:
                    yield first + each.start * inner, first + each.stop * inner


def share(size: int, num_ranks: int, rank: int) -> range:
    """A rank's part of ``size`` things in a row, as even as may be: the first ranks have one more.
    Raises ValueError for a rank that there is not."""
    check_whole(0, MOST, size=size)
    check_whole(1, MOST_RANKS, num_ranks=num_ranks)
    check_whole(0, num_ranks - 1, rank=rank)
    each, more = divmod(size, num_ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


def heads(num_heads: int, num_kv_heads: int, num_ranks: int, rank: int) -> tuple[range, range]:
    """A rank's heads of queries, and the heads of keys and values that these look at. Raises
    ValueError where groups of queries are not equal."""
    check_whole(1, MOST, num_heads=num_heads, num_kv_heads=num_kv_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"as many queries look at each head of keys, so kv heads divide heads; got "
            f"{num_kv_heads} and {num_heads}"
        )
    queries = share(num_heads, num_ranks, rank)
    in_group = num_heads // num_kv_heads
    if not queries:
        return queries, range(0)
    return queries, range(queries.start // in_group, queries[-1] // in_group + 1)


def qkv_rows(
    num_heads: int, num_kv_heads: int, head_dim: int, num_ranks: int, rank: int
) -> tuple[range, range, range]:
    """A rank's part of one weight that holds queries, keys and values, each head after head: ranges
    of its features out."""
    check_whole(1, MOST, head_dim=head_dim)
    queries, pairs = heads(num_heads, num_kv_heads, num_ranks, rank)
    keys_at = num_heads * head_dim
    values_at = keys_at + num_kv_heads * head_dim
    return (
        _scaled(queries, head_dim),
        _scaled(pairs, head_dim, keys_at),
        _scaled(pairs, head_dim, values_at),
    )


def _scaled(each: range, by: int, at: int = 0) -> range:
    return range(at + by * each.start, at + by * each.stop)


def shared_heads(shape: Shape, num_ranks: int) -> int:
    """How many heads of keys and values lie on more than one rank."""
    seen: dict[int, int] = {}
    for rank in range(min(num_ranks, shape.heads)):
        for head in heads(shape.heads, shape.num_kv_heads, num_ranks, rank)[1]:
            seen[head] = seen.get(head, 0) + 1
    return sum(times > 1 for times in seen.values())


def layer_pieces(shape: Shape, num_ranks: int, rank: int) -> list[Piece]:
    """What a rank holds of a layer with LayerNorm and biases, as ``model.Block`` has it."""
    hidden = shape.hidden
    queries = shape.heads * shape.width
    rows = qkv_rows(shape.heads, shape.num_kv_heads, shape.width, num_ranks, rank)
    columns = (share(shape.ffn_width, num_ranks, rank),)
    num_rows = queries + 2 * shape.num_kv_heads * shape.width
    return [
        *_whole("norm1", hidden),
        *_whole("norm2", hidden),
        Piece("qkv.weight", (num_rows, hidden), 0, rows),
        Piece("qkv.bias", (num_rows,), 0, rows),
        Piece("out.weight", (hidden, queries), 1, rows[:1]),
        Piece("out.bias", (hidden,), -1, ()),
        Piece("up.weight", (shape.ffn_width, hidden), 0, columns),
        Piece("up.bias", (shape.ffn_width,), 0, columns),
        Piece("down.weight", (hidden, shape.ffn_width), 1, columns),
        Piece("down.bias", (hidden,), -1, ()),
    ]


def _whole(name: str, hidden: int) -> list[Piece]:
    """A norm: every rank holds all of it."""
    return [Piece(f"{name}.weight", (hidden,), -1, ()), Piece(f"{name}.bias", (hidden,), -1, ())]


def vocabulary_pieces(shape: Shape, num_ranks: int, rank: int) -> list[Piece]:
    """What a rank holds of the embedding and of the output layer: some words of the vocabulary."""
    words = (share(shape.vocab, num_ranks, rank),)
    table = (shape.vocab, shape.hidden)
    return [Piece("embed.weight", table, 0, words), Piece("head.weight", table, 0, words)]


def rank_elements(pieces: list[Piece]) -> int:
    """Elements of all that a rank holds."""
    return sum(each.num_elements for each in pieces)


def placed(pieces: list[Piece]) -> list[tuple[str, int, int]]:
    """(weight, start, stop) of every slice that a rank holds."""
    found = []
    for each in pieces:
        found += [(each.name, start, stop) for start, stop in each.slices()]
    return found
