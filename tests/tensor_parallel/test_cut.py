"""Who holds which slice: nothing is left out, nothing inside a head is cut, torch's own cut
agrees."""

import collections
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.planner.plan.shape import Shape
from labkit.tensor_parallel import cut

RANKS = st.integers(1, 9)


@st.composite
def shapes(draw):
    kv_heads = draw(st.integers(1, 6))
    heads = kv_heads * draw(st.integers(1, 4))
    return Shape(
        layers=1,
        heads=heads,
        kv_heads=kv_heads,
        hidden=heads * draw(st.integers(1, 5)),
        ffn=draw(st.integers(1, 40)),
        vocab=draw(st.integers(1, 40)),
    )


@given(st.integers(0, 50), RANKS)
def test_shares_partition_and_differ_by_one_at_most(size, num_ranks):
    shares = [cut.share(size, num_ranks, rank) for rank in range(num_ranks)]
    assert [*chain.from_iterable(shares)] == [*range(size)]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(st.integers(1, 50), RANKS)
def test_the_rule_is_torch_s_tensor_split(size, num_ranks):
    split = torch.arange(size).tensor_split(num_ranks)
    mine = [[*cut.share(size, num_ranks, rank)] for rank in range(num_ranks)]
    assert mine == [each.tolist() for each in split]


@given(shapes(), RANKS)
def test_every_element_is_held_and_only_shared_heads_are_held_twice(shape, num_ranks):
    held = collections.Counter()
    sizes = {}
    for rank in range(num_ranks):
        pieces = cut.layer_pieces(shape, num_ranks, rank)
        pieces += cut.vocabulary_pieces(shape, num_ranks, rank)
        for name, start, stop in cut.placed(pieces):
            held.update((name, at) for at in range(start, stop))
        sizes |= {each.name: torch.Size(each.shape).numel() for each in pieces}
    whole = {name for name in sizes if "norm" in name or name in ("out.bias", "down.bias")}
    once = shape.num_kv_heads == shape.heads or not cut.shared_heads(shape, num_ranks)
    for name, size in sizes.items():
        times = {held[name, at] for at in range(size)}
        if name in whole:
            assert times == {num_ranks}
        elif once or not name.startswith("qkv"):
            assert times == {1}
        else:
            assert min(times) == 1 < max(times)


@given(shapes(), RANKS)
def test_a_rank_has_the_keys_that_its_queries_look_at_and_no_others(shape, num_ranks):
    in_group = shape.heads // shape.num_kv_heads
    for rank in range(num_ranks):
        queries, pairs = cut.heads(shape.heads, shape.num_kv_heads, num_ranks, rank)
        assert {*pairs} == {head // in_group for head in queries}


@given(shapes(), RANKS)
def test_the_rows_of_queries_keys_and_values_are_whole_heads(shape, num_ranks):
    width = shape.width
    for rank in range(num_ranks):
        sizes = (shape.heads, shape.num_kv_heads, shape.num_kv_heads)
        given = (shape.heads, shape.num_kv_heads, width, num_ranks, rank)
        at = 0
        for rows, heads in zip(cut.qkv_rows(*given), sizes, strict=True):
            assert rows.start % width == rows.stop % width == 0
            assert not rows or at <= rows.start < rows.stop <= at + heads * width
            at += heads * width


@given(shapes(), RANKS)
def test_slices_are_the_elements_that_torch_would_give(shape, num_ranks):
    for rank in range(num_ranks):
        for piece in cut.layer_pieces(shape, num_ranks, rank):
            whole = torch.arange(torch.Size(piece.shape).numel()).view(piece.shape)
            if piece.dim >= 0:
                parts = [whole.narrow(piece.dim, each.start, len(each)) for each in piece.ranges]
                whole = torch.cat(parts, piece.dim)
            told = [*chain.from_iterable(range(*each) for each in piece.slices())]
            assert len(told) == whole.numel() == piece.num_elements
            assert sorted(told) == sorted(whole.flatten().tolist())


def test_columns_then_rows_keep_the_features_of_a_rank_together():
    shape = Shape(layers=1, hidden=12, heads=4, vocab=1)
    for rank in range(3):
        held = {each.name: each for each in cut.layer_pieces(shape, 3, rank)}
        assert held["up.weight"].ranges == held["down.weight"].ranges == held["up.bias"].ranges
        assert (held["up.weight"].dim, held["down.weight"].dim) == (0, 1)
        assert held["qkv.weight"].ranges[0] == held["out.weight"].ranges[0]


def test_llama_70b_on_16_ranks_shares_each_head_of_keys_between_two():
    shape = Shape(layers=1, hidden=8192, heads=64, kv_heads=8)
    assert cut.heads(64, 8, 16, 5) == (range(20, 24), range(2, 3))
    assert (cut.shared_heads(shape, 8), cut.shared_heads(shape, 16)) == (0, 8)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: cut.share(4, 2, 2), "rank is a whole number"),
        (lambda: cut.share(-1, 2, 0), "size is a whole number"),
        (lambda: cut.heads(6, 4, 2, 0), "kv heads divide heads"),
        (lambda: cut.qkv_rows(4, 4, 0, 2, 0), "head_dim is a whole number"),
    ],
)
def test_what_is_no_cut_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()
