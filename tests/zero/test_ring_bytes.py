"""What a ring sends for the bytes handed to collectives, and columns of them beside each other."""

import pytest

from labkit import collectives
from labkit.zero import ring_bytes


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("call", ["all_reduce", "reduce_scatter", "all_gather"])
def test_it_is_what_our_own_ring_sends(call, ranks):
    handed = 64 // ranks if call == "all_gather" else 64
    steps = collectives.plan(call, "ring", ranks)
    sent = sum(len(each.chunks) for step in steps.steps for each in step if each.src == 0)
    due = sent * 64 / steps.num_chunks
    assert ring_bytes.on_a_ring({call: handed}, ranks) * (ranks - 1) / ranks == due


def test_stage_1_by_default_sends_one_and_a_half_times_as_much():
    plain = ring_bytes.on_a_ring({"all_reduce": 400}, ranks=4)
    assert ring_bytes.on_a_ring({"all_reduce": 400, "all_gather": 100}, ranks=4) == 1.5 * plain
    assert ring_bytes.on_a_ring({}, ranks=4) == 0


def test_a_collective_with_another_factor_is_refused():
    with pytest.raises(ValueError, match="all_to_all"):
        ring_bytes.on_a_ring({"all_to_all": 8}, ranks=2)


def test_a_step_in_models_counts_an_all_gather_whole_and_leaves_norms_out():
    handed = {"all_reduce": 8, "all_gather": 134_912, "reduce_scatter": 539_648}
    due = {"all_gather": 1, "reduce_scatter": 1}
    assert ring_bytes.in_models(handed, model_bytes=539_648, ranks=4) == due
    with pytest.raises(ValueError, match="model_bytes"):
        ring_bytes.in_models(handed, model_bytes=0, ranks=4)
    with pytest.raises(ValueError, match="by collective"):
        ring_bytes.in_models({"all_reduce": "8"}, model_bytes=8, ranks=4)


def test_columns_become_rows():
    columns = {"ours": {"ZeRO 0": 6, "ZeRO 3": 9}, "theirs": {"ZeRO 0": 8}, "none": {}}
    due = {"ZeRO 0": {"ours": 6, "theirs": 8}, "ZeRO 3": {"ours": 9}}
    assert ring_bytes.in_rows(columns) == due
    with pytest.raises(ValueError, match="column"):
        ring_bytes.in_rows({"theirs": {"ZeRO 0": -1}})
    with pytest.raises(ValueError, match="column"):
        ring_bytes.in_rows({"theirs": 3})
