"""Laws of a router: every token has k different experts, a capacity is kept and drops the last
ones, what is counted is what ranks exchange."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from labkit.experts import Layer, route, routing
from labkit.timeline import busy_us, step_us

SCORES = arrays.arrays(
    float,
    st.tuples(st.integers(1, 20), st.integers(2, 6)),
    elements=st.floats(-5, 5),
    unique=True,
)


@given(SCORES, st.integers(1, 2))
def test_a_token_goes_to_its_k_likeliest_experts(scores, top_k):
    found = route(scores, top_k)
    for row, chosen in zip(scores, found.chosen, strict=True):
        assert sorted(row)[::-1][:top_k] == row[chosen].tolist()
    assert found.kept.all() and found.load.sum() == top_k * len(scores)
    assert np.allclose(found.probabilities.sum(axis=1), 1)


@given(SCORES, st.integers(1, 2), st.floats(0.1, 3))
def test_a_capacity_is_kept_and_no_more_than_needed_is_dropped(scores, top_k, factor):
    found = route(scores, top_k, factor)
    most = routing.capacity(*scores.shape, top_k, factor)
    assert found.load.max() <= most
    assert (found.load == np.minimum(found.wanted, most)).all()
    assert found.num_dropped == np.maximum(found.wanted - most, 0).sum()


def test_first_choices_come_before_second_ones_and_earlier_tokens_before_later():
    scores = np.array([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0]])
    found = route(scores, 2, 2 / 3)  # two places each
    assert routing.capacity(3, 2, 2, 2 / 3) == 2
    assert found.kept.tolist() == [[True, True], [True, False], [True, False]]


def test_the_loss_is_one_where_all_is_even_and_e_where_one_has_everything():
    even = route(np.zeros((8, 4)) + 1e-9 * np.eye(4)[[0, 1, 2, 3] * 2], 1)
    assert even.auxiliary_loss == pytest.approx(1)
    one = route(np.array([[40.0, 0, 0, 0]] * 8), 1)
    assert one.auxiliary_loss == pytest.approx(4)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (np.zeros(3), r"got the shape \(3,\)"),
        (np.array([[np.nan, 1.0]]), "finite numbers"),
        (np.zeros((0, 2)), r"got the shape \(0, 2\)"),
    ],
)
def test_scores_that_are_none_are_refused(scores, words):
    with pytest.raises(ValueError, match=words):
        route(scores, 1)


@given(st.sampled_from([1, 2]), st.floats(0, 2), st.sampled_from([0.0, 1.0, 1.5]))
def test_what_leaves_some_ranks_comes_to_others(top_k, skew, factor):
    layer = Layer(tokens=16, top_k=top_k, skew=skew, capacity=factor)
    loads = layer.loads()
    assert loads.sum() + layer.dropped() == 4 * 16 * top_k
    assert layer.taken().sum() == loads.sum()
    handed = sum(layer.payload(rank)["all_to_all"] for rank in range(4))
    assert handed == 4 * 8 * 8 + 4 * loads.sum() * layer.hidden * 4


def test_the_busiest_rank_holds_up_the_others():
    layer = Layer(skew=2.0)
    line = layer.predict()
    assert step_us(line) == pytest.approx(3 * 200 * layer.taken().max())
    assert busy_us(line).argmax() == layer.taken().argmax() == 0
    assert step_us(Layer(skew=0.0).predict()) < step_us(line) / 2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"experts": 6}, "6 experts are not dealt to 4 ranks: take a multiple of 4"),
        ({"top_k": 9}, "top_k is"),
        ({"capacity": -1.0}, "capacity is"),
        ({"tokens": 65_536, "experts": 1024}, "take fewer"),
    ],
)
def test_what_is_no_layer_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        Layer(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ranks": 1}, "take 2 ranks or more"),
        ({"ranks": 16, "experts": 16}, "up to 8 ranks; this has 16"),
        ({"hidden": 4096, "ffn": 4096}, "up to 4,194,304 elements"),
    ],
)
def test_what_real_ranks_do_not_take_is_said(given, words):
    layer = Layer(**given)
    assert words in layer.refusal("en") and layer.refusal("zh") != layer.refusal("en")
