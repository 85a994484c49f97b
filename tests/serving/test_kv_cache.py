"""The cache's formula against published sizes and against real tensors' shapes; the two phases at a
GPU's rates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.planner.plan.cluster import gpu
from labkit.planner.plan.shape import Shape, from_name
from labkit.serving import kv_cache, phases
from labkit.serving.generation import Generation

OPT_13B = Shape(layers=40, hidden=5120, heads=40)
STORY = from_name("LLaMA 7B")
A100 = gpu("A100 80 GB")


def test_a_token_of_opt_13b_has_the_800_kb_that_vllm_s_paper_says():
    assert kv_cache.token_bytes(OPT_13B) == 800 * 1024
    assert kv_cache.cache_bytes(OPT_13B, 2048) == 1600 * 2**20  # "up to 1.6 GB"


def test_grouped_queries_keep_a_quarter():
    grouped = Shape(layers=32, hidden=4096, heads=32, kv_heads=8)
    whole = Shape(layers=32, hidden=4096, heads=32)
    assert kv_cache.token_bytes(grouped) * 4 == kv_cache.token_bytes(whole)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 9), st.integers(0, 5000))
def test_ranks_hold_the_whole_once_unless_heads_are_too_few(kv_heads, group, ranks, tokens):
    shape = Shape(layers=3, hidden=8 * kv_heads * group, heads=kv_heads * group, kv_heads=kv_heads)
    parts = [kv_cache.cache_bytes(shape, tokens, ranks=ranks, rank=rank) for rank in range(ranks)]
    whole = kv_cache.cache_bytes(shape, tokens)
    assert max(parts) == kv_cache.fullest_bytes(shape, tokens, ranks=ranks)
    assert max(parts) <= whole <= sum(parts)
    if group == 1:
        assert sum(parts) == whole


def test_what_fits_beside_the_weights_and_one_more_does_not():
    for ranks in (1, 2, 4):
        num = kv_cache.room(STORY, 40e9, 2048, ranks=ranks)
        used = kv_cache.weight_bytes(STORY, ranks=ranks)
        each = kv_cache.cache_bytes(STORY, 2048, ranks=ranks)
        assert used + num * each <= 36e9 < used + (num + 1) * each
    assert kv_cache.room(STORY, 10e9, 2048) == 0


def test_messages_stand_behind_computing_and_reading_which_hide_each_other():
    one = phases.Phase(compute_us=3.0, memory_us=5.0, messages_us=2.0, num_tokens=2)
    assert (one.total_us, one.token_us, one.bound) == (7.0, 3.5, "memory")


def test_prefill_waits_for_compute_decode_for_memory_and_on_many_ranks_for_messages():
    prefill = phases.prefill(STORY, 512, A100)
    decode = phases.decode(STORY, 512, A100)
    assert (prefill.bound, decode.bound) == ("compute", "memory")
    assert phases.decode(STORY, 512, A100, ranks=8).bound == "messages"
    assert decode.token_us > 100 * prefill.token_us


def test_the_compute_is_two_flops_a_weight_and_the_memory_every_byte_once():
    found = phases.prefill(STORY, 2048, A100)
    flops = (
        2 * (STORY.params - STORY.embedding_params) * 2048
    )  # no product with the table of tokens
    attention = 4 * 1024 * 4096 * STORY.layers * 2048
    head = 2 * STORY.hidden * STORY.vocab * 2047  # of the last token alone
    assert found.compute_us == pytest.approx((flops + attention - head) / 312e6, rel=1e-3)
    step = phases.decode(STORY, 1000, A100, batch=8)
    due = 2 * STORY.params + 8 * kv_cache.cache_bytes(STORY, 1000)
    assert step.memory_us == pytest.approx(due / (A100.hbm_gb_per_s * 1e3))


def test_a_batch_shares_the_reading_of_weights():
    alone = phases.decode(STORY, 128, A100)
    batch = phases.decode(STORY, 128, A100, batch=16)
    assert batch.token_us < alone.token_us / 8


def test_the_ways_of_an_answer_hold_the_same_bytes_together():
    whole = Generation(way="alone", ranks=1).predict().num_bytes.sum()
    for way in ("tensor", "pipeline"):
        for ranks in (2, 3, 4):
            cut = Generation(way=way, ranks=ranks)
            held = cut.predict()
            assert held.num_bytes.sum() == whole
            assert held.rank_bytes.tolist() == [cut.cache_bytes(rank) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: kv_cache.cache_bytes(STORY, -1), "tokens is a whole number"),
        (lambda: kv_cache.room(STORY, 40e9, 0), "tokens is a whole number"),
        (lambda: kv_cache.room(STORY, 40e9, 1, kept_free=2.0), "kept_free is a number"),
        (lambda: phases.decode(STORY, 0, A100), "context is a whole number"),
        (lambda: Generation(way="alone", ranks=2), "give ranks=1"),
        (lambda: Generation(way="pipeline", ranks=5), "two stages or more"),
        (lambda: Generation(way="else"), "a way is one of"),
    ],
)
def test_what_can_t_be_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()
