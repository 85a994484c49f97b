"""What leaves a machine, for the four strategies of chapter 07."""

import pytest

from labkit.fsdp import leaving_bytes

WHOLE = 1_200  # bytes of all weights


@pytest.mark.parametrize(
    ("sizes", "payload", "right"),
    [
        ({"shard": 4}, {"all_gather": 600, "reduce_scatter": WHOLE}, 9 / 4),
        ({"shard": 4}, {"all_gather": 300, "reduce_scatter": WHOLE}, 6 / 4),
        (
            {"shard": 2, "replicate": 2},
            {"all_gather": 1_200, "reduce_scatter": WHOLE, "all_reduce": 600},
            1,
        ),
        ({"shard": 1, "replicate": 4}, {"all_reduce": WHOLE}, 6 / 4),
    ],
)
def test_share_of_the_weights_that_leaves_a_machine_of_two(sizes, payload, right):
    assert leaving_bytes(payload, per_machine=2, **sizes) == pytest.approx(right * WHOLE)


def test_one_machine_sends_nothing_out():
    assert leaving_bytes({"all_gather": 300, "reduce_scatter": 900}, shard=4, per_machine=4) == 0


def test_sizes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="shard"):
        leaving_bytes({}, shard=0, per_machine=2)
