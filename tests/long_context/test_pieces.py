"""Laws of a cut sequence: every piece lies somewhere, every pair is computed once, all ranks of a
balanced ring do as much in every round, bytes are those of the tensors."""

import importlib.util
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.collectives.network import Link
from labkit.long_context import Attention, dealt, pieces, rounds
from labkit.timeline import bubble, step_us

RANKS = st.integers(1, 12)


@given(RANKS, st.booleans())
def test_every_piece_lies_on_one_rank(ranks, balanced):
    held = list(itertools.chain(*dealt(ranks, balanced=balanced)))
    assert sorted(held) == list(range(2 * ranks))


@given(RANKS, st.booleans(), st.booleans())
def test_every_pair_is_computed_once_in_some_round(ranks, balanced, causal):
    held = dealt(ranks, balanced=balanced)
    found = []
    for number, rank in itertools.product(range(ranks), range(ranks)):
        found += pieces.pairs(held[rank], held[(rank - number) % ranks], causal=causal)
    every = itertools.product(range(2 * ranks), repeat=2)
    assert sorted(found) == [pair for pair in every if not causal or pair[1] <= pair[0]]


@given(RANKS)
def test_all_ranks_of_a_balanced_ring_do_two_pairs_in_every_round(ranks):
    assert (rounds(ranks, causal=True, balanced=True) == 2).all()


@given(RANKS, st.booleans(), st.booleans())
def test_all_rounds_together_are_the_whole_table(ranks, balanced, causal):
    size = 2 * ranks
    whole = size * size / 2 if causal else size * size
    assert rounds(ranks, causal=causal, balanced=balanced).sum() == whole


def test_neighbours_leave_the_first_ranks_idle():
    table = rounds(4, causal=True, balanced=False)
    assert table.sum(axis=0).tolist() == [2, 6, 10, 14]
    assert table[1].tolist() == [0, 4, 4, 4] and table[3].tolist() == [0, 0, 0, 4]


@pytest.mark.parametrize("way", ["ring", "ulysses"])
@pytest.mark.parametrize("causal", [True, False])
def test_without_messages_a_pass_is_the_work_at_its_pace(way, causal):
    attention = Attention(way=way, causal=causal)
    line = attention.predict()
    assert bubble(line) == pytest.approx(0, abs=1e-9)
    each = attention.rounds().sum(axis=0)
    assert step_us(line) == pytest.approx(each.max() * 20_000 * (1 + pieces.BACKWARD))


def test_an_unbalanced_ring_takes_nearly_twice_as_long():
    balanced, not_balanced = (Attention(ranks=8, balanced=each) for each in (True, False))
    ratio = step_us(not_balanced.predict()) / step_us(balanced.predict())
    assert ratio == pytest.approx(30 / 16)  # the last rank's pairs over anybody's


def test_messages_hide_under_a_forward_and_gradients_do_not():
    slow = Attention(ranks=4, link=Link(alpha_us=10_000.0, bandwidth_gb_per_s=1.0))
    free = slow.but(link=None)
    takes_us = slow.link.us(2 * slow.tensor_bytes())
    assert takes_us < 2 * 20_000
    assert step_us(slow.predict()) - step_us(free.predict()) == pytest.approx(4 * takes_us)


def test_bytes_are_those_of_the_tensors():
    ring = Attention(ranks=4, sequence=64, heads=8, head_dim=16, batch=2)
    assert ring.tensor_bytes() == 4 * 2 * 8 * 16 * 16
    assert ring.payload() == {"send": 20 * ring.tensor_bytes()}
    assert ring.but(way="ulysses").payload() == {"all_to_all": 8 * ring.tensor_bytes()}
    assert ring.but(ranks=1).payload() == {}
    assert ring.but(ranks=8).kept_bytes() * 2 == ring.kept_bytes()
    assert ring.but(ranks=8).pass_bytes() * 2 == ring.pass_bytes(), "an nth, where scores are few"
    assert ring.but(way="ulysses").pass_bytes() is None
    assert sum(ring.predict().num_bytes) == 0, "without a link no message is drawn"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"way": "spiral"}, "a way is one of ring, ulysses; got 'spiral'"),
        ({"sequence": 100}, "100 tokens are no 8 pieces: take a multiple of 8"),
        ({"way": "ulysses", "heads": 6}, "6 heads are not dealt to 4 ranks"),
        ({"engine": "deepspeed"}, "a ring is by hand, DeepSpeed has Ulysses"),
        ({"engine": "torch"}, "an engine is one of by hand, deepspeed"),
        ({"ranks": 0}, "ranks is a whole number"),
        ({"pair_ms": -1.0}, "pair_ms is"),
    ],
)
def test_what_can_not_be_dealt_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Attention(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": 1}, "take 2 ranks or more"),
        ({"ranks": 16}, "up to 8 ranks; this has 16"),
        ({"sequence": 1 << 19}, "up to 4,194,304 elements"),
        ({"link": Link(alpha_us=1.0, bandwidth_gb_per_s=1.0)}, "take link=None"),
    ],
)
def test_what_real_ranks_do_not_take_is_said(given, words):
    attention = Attention(**given)
    assert words in attention.refusal("en")
    with pytest.raises(ValueError, match=r"\w"):
        attention.run()
    assert attention.refusal("zh") != attention.refusal("en")


def test_without_deepspeed_its_ulysses_is_refused_in_words(monkeypatch):
    by_deepspeed = Attention(way="ulysses", engine="deepspeed")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert by_deepspeed.refusal("en") == "DeepSpeed is not installed here: make env installs it"
    assert by_deepspeed.but(engine="by hand").refusal("en") is None


def test_the_shape_of_a_table_is_rounds_by_ranks():
    assert Attention(ranks=4).rounds().shape == (4, 4)
    found = Attention(ranks=4, way="ulysses").rounds()
    assert found.shape == (1, 4) and np.unique(found).tolist() == [8.0]
