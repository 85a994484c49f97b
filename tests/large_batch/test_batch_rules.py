"""Laws of the theory of large batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import large_batch
from labkit.large_batch.rules import Critical, Noise


@given(st.integers(2, 500), st.floats(0, 1))
def test_warm_up_rises_to_the_whole_rate_and_the_cosine_falls_towards_nothing(num_steps, warmup):
    factors = np.array([large_batch.warmup_cosine(s, num_steps, warmup) for s in range(num_steps)])
    rising = round(warmup * num_steps)
    assert np.all((factors > 0) & (factors <= 1)) and factors.max() == pytest.approx(1)
    assert np.all(np.diff(factors[:rising]) > 0) and np.all(np.diff(factors[rising:]) < 0)
    if rising < num_steps:
        assert factors[rising] == 1
        assert factors[-1] < 0.5 or num_steps - rising < 3


@given(st.floats(1, 1e4), st.floats(0.1, 1e4))
def test_a_fit_finds_the_law_that_made_the_steps(fewest, critical):
    law = Critical(fewest, critical)
    batches = [2, 8, 32, 128, 1024]
    found = large_batch.fit(batches, [law.steps(batch) for batch in batches])
    assert found.fewest_steps == pytest.approx(fewest, rel=1e-6)
    assert found.critical_batch == pytest.approx(critical, rel=1e-6)


def test_at_the_critical_batch_both_steps_and_samples_are_twice_their_least():
    law = Critical(100, 64)
    assert law.steps(64) == 200
    assert law.samples(64) == pytest.approx(2 * law.samples(1e-6))


@given(st.integers(1, 64), st.integers(2, 16))
def test_noise_comes_out_of_what_two_batches_expect(small, times):
    """E|g|² = |G|² + tr Σ / B, for a batch of B."""
    true = Noise(variance=12.0, square=0.5)
    squares = [true.square + true.variance / batch for batch in (small, small * times)]
    found = large_batch.noise(*squares, small, small * times)
    assert found == pytest.approx(true) and found.scale == pytest.approx(24)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: large_batch.warmup_cosine(10, 10), "step"),
        (lambda: large_batch.fit([8, 8], [1, 2]), "two batches or more"),
        (lambda: large_batch.noise(1, 1, 8, 8), "a small batch with a larger one"),
        (lambda: large_batch.Training(batch=33, ranks=2), "a batch is dealt evenly"),
        (lambda: large_batch.Training(optimizer="adagrad"), "an optimizer is one of"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(call, words):
    with pytest.raises(ValueError, match=words):
        call()
