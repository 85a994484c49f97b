"""Laws of scaling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import scaling

RANKS = st.integers(1, 4096)
SHARE = st.floats(0, 1)
TIME = st.floats(1e-3, 1e9)


@given(TIME, RANKS)
def test_what_loses_nothing_has_the_efficiency_one(one_us, ranks):
    assert scaling.efficiency(one_us, one_us / ranks, ranks) == pytest.approx(1)
    assert scaling.efficiency(one_us, one_us, ranks, "weak") == pytest.approx(1)
    assert scaling.speedup(one_us, one_us, ranks, "weak") == pytest.approx(ranks)


@given(RANKS, SHARE)
def test_amdahl_and_gustafson_lie_between_one_and_all_ranks(ranks, serial):
    for law in (scaling.amdahl, scaling.gustafson):
        assert 1 - 1e-9 <= law(ranks, serial) <= ranks * (1 + 1e-9)
    assert scaling.amdahl(ranks, 0) == pytest.approx(ranks) == scaling.gustafson(ranks, 0)


@given(st.integers(2, 4096), st.floats(1e-4, 1))
def test_karp_and_flatt_read_amdahls_share_back(ranks, serial):
    found = scaling.karp_flatt(scaling.amdahl(ranks, serial), ranks)
    assert found == pytest.approx(serial, abs=1e-9)


@given(RANKS, SHARE)
def test_the_two_laws_are_one_where_their_shares_are_of_the_same_step(ranks, serial):
    """The serial share of the time on one rank is less than that of the time on many."""
    many = serial + (1 - serial) / ranks
    assert scaling.amdahl(ranks, serial) == pytest.approx(
        scaling.gustafson(ranks, serial / many), rel=1e-6
    )


def test_six_operations_a_weight_and_token_and_attentions_own_besides():
    assert scaling.training_flops(7, 10) == 420
    more = scaling.training_flops(7, 10, layers=2, hidden=3, sequence=5)
    assert more == 420 + 10 * 12 * 2 * 3 * 5


@given(st.floats(1, 1e20), TIME, st.floats(1e6, 1e16), st.integers(1, 100))
def test_an_mfu_of_one_is_the_peak(flops, time_us, peak, devices):
    share = scaling.mfu(flops, time_us, peak, devices)
    assert share * peak * devices == pytest.approx(flops / (1e-6 * time_us))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: scaling.efficiency(0, 1, 2), "one_us is a number"),
        (lambda: scaling.efficiency(1, 1, 2, "both"), "a kind of scaling"),
        (lambda: scaling.karp_flatt(1, 1), "ranks is a whole number from 2"),
        (lambda: scaling.amdahl(2, 1.5), "serial is a number"),
        (lambda: scaling.mfu(1, 1, 0), "peak_flops_per_s"),
    ],
)
def test_what_makes_no_sense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
