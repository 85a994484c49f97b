"""Shards say who holds what: their law, their normal form, and what they refuse."""

import numpy as np
import pytest

from labkit import shards
from labkit.shards import PADDING, UNUSED, differences, from_rows, tiling_faults


def held(*rows, num_ranks=2, origin="predicted"):
    """Rows of (rank, kind, tensor, start, stop), in float32 on the cpu unless they say more."""
    full = [(*row, *("float32", "cpu")[len(row) - 5 :]) for row in rows]
    return from_rows(full, num_ranks=num_ranks, origin=origin)


def test_slices_that_touch_are_one_and_empty_ones_are_none():
    pieces = held(
        (0, "parameter", "w", 4, 7), (0, "parameter", "w", 0, 4), (1, "parameter", "w", 7, 7)
    )
    assert pieces.rows() == [(0, "parameter", "w", 0, 7, "float32", "cpu")]


def test_pieces_that_do_not_touch_stay_apart():
    assert len(held((0, "parameter", "w", 0, 3), (0, "parameter", "w", 4, 7))) == 2


def test_padding_has_a_size_and_no_place():
    two = held(
        (0, "master", PADDING, 10, 12), (0, "master", PADDING, 3, 4), (1, "master", UNUSED, 5, 9)
    )
    assert two.rows() == [
        (0, "master", PADDING, 0, 3, "float32", "cpu"),
        (1, "master", UNUSED, 0, 4, "float32", "cpu"),
    ]


def test_bytes_are_counted_by_kind_category_and_device():
    some = held(
        (0, "parameter", "w", 0, 10, "bfloat16"),
        (1, "parameter", "w", 10, 20, "bfloat16"),
        (0, "master", "w", 0, 10),
        (0, "exp_avg", "w", 0, 10, "float32", "host"),
        num_ranks=3,
    )
    assert {kind: each.tolist() for kind, each in some.bytes_by().items()} == {
        "parameter": [20, 20, 0],
        "master": [40, 0, 0],
        "exp_avg": [40, 0, 0],
    }
    assert some.bytes_by("category")["optimizer"].tolist() == [80, 0, 0]
    assert some.bytes_by("device")["host"].tolist() == [40, 0, 0]
    assert some.rank_bytes.tolist() == [100, 20, 0]


def test_every_category_has_its_kinds_and_no_other():
    held = {"parameters", "gradients", "optimizer", "buffers", "cache"}
    assert set(shards.CATEGORIES.values()) == held


@pytest.mark.parametrize(
    "rows, fault",
    [
        (
            [(0, "parameter", "w", 0, 6), (1, "parameter", "w", 6, 9)],
            "element 9 of w is held by 0 ranks",
        ),
        (
            [(0, "parameter", "w", 0, 6), (1, "parameter", "w", 5, 10)],
            "element 5 of w is held by 2 ranks",
        ),
        ([(0, "parameter", "w", 0, 10), (1, "parameter", "v", 0, 1)], "v has no elements [0, 1)"),
        ([(0, "parameter", "w", 0, 11)], "w has no elements [0, 11)"),
    ],
)
def test_a_gap_an_overlap_and_a_stranger_are_named(rows, fault):
    assert fault in " ".join(tiling_faults(held(*rows), {"w": 10}))


def test_replicas_and_slices_tile():
    sliced = [(rank, "parameter", "w", 5 * rank, 5 * rank + 5) for rank in range(2)]
    assert not tiling_faults(held(*sliced), {"w": 10})
    assert not tiling_faults(
        held(*[(rank, "parameter", "w", 0, 10) for rank in range(2)]), {"w": 10}
    )
    assert not tiling_faults(
        held(*sliced, (0, "parameter", PADDING, 0, 3)), {"w": 10, "nothing": 0}
    )


def test_differences_name_both_sides():
    mine = held((0, "parameter", "w", 0, 5))
    theirs = held((0, "parameter", "w", 0, 6), origin="measured")
    assert differences(mine, theirs) == [
        "only predicted: rank 0, parameter w [0, 5) float32 on cpu",
        "only measured: rank 0, parameter w [0, 6) float32 on cpu",
    ]
    assert not differences(mine, theirs, kinds=["gradient"]) and not differences(mine, mine)


@pytest.mark.parametrize(
    "row, rule",
    [
        ((0, "parameter", "w", 3, 2, "float32", "cpu"), "w on rank 0 is [3, 2)"),
        ((5, "parameter", "w", 0, 2, "float32", "cpu"), "ranks are 0 to 1; got 5 to 5"),
        ((0, "parameter", "w", 0, 2, "complex64", "cpu"), "got 'complex64'"),
    ],
)
def test_what_is_no_slice_is_refused(row, rule):
    with pytest.raises(ValueError, match=rule.replace("[", r"\[").replace(")", r"\)")):
        from_rows([row], num_ranks=2, origin="predicted")


def test_an_origin_and_the_lengths_of_columns_are_checked():
    with pytest.raises(ValueError, match="origin of Shards is one of"):
        from_rows([], num_ranks=1, origin="guessed")
    one = held((0, "parameter", "w", 0, 5))
    with pytest.raises(ValueError, match="have one length"):
        shards.replace(one, rank=np.array([0, 1]))


def test_no_rows_are_no_bytes():
    assert held().rank_bytes.tolist() == [0, 0] and held().badge == "predicted"
