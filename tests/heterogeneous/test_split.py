"""Dealing by speed: every deal is whole and sums to the batch, and no deal beats the fastest."""

import itertools
import math

import numpy as np
import pytest

from labkit import heterogeneous
from labkit.heterogeneous import split
from labkit.timeline import COMM, COMPUTE, bubble, step_us

CASES = [((1, 3), 64), ((1, 2, 4), 37), ((1, 10), 8), ((5,), 3), ((2, 2, 2), 0), ((0.3, 7), 6)]


@pytest.mark.parametrize("word", split.SPLITS)
@pytest.mark.parametrize("speeds, batch", CASES)
def test_a_deal_is_whole_and_is_the_batch(word, speeds, batch):
    samples = split.dealt(word, speeds, batch)
    assert sum(samples) == batch and min(samples) >= 0
    assert all(isinstance(each, int) for each in samples)


@pytest.mark.parametrize("speeds, batch", CASES)
def test_by_speed_is_within_a_sample_of_the_share(speeds, batch):
    shares = batch * np.array(speeds) / sum(speeds)
    assert np.abs(np.array(split.by_speed(speeds, batch)) - shares).max() < 1


@pytest.mark.parametrize("seed", range(20))
def test_no_deal_is_faster_than_the_fastest(seed):
    draw = np.random.default_rng(seed)
    speeds = tuple(draw.uniform(0.2, 5, size=3))
    batch = int(draw.integers(1, 12))
    tried = (each for each in itertools.product(range(batch + 1), repeat=3) if sum(each) == batch)
    least = min(split.step_time(each, speeds) for each in tried)
    assert split.step_time(split.fastest(speeds, batch), speeds) == pytest.approx(least)
    for word in split.SPLITS:
        assert split.step_time(split.dealt(word, speeds, batch), speeds) >= least - 1e-12


def test_rounded_shares_may_be_slower_than_the_fastest():
    assert split.by_speed((1, 10), 8) == (1, 7)
    assert split.fastest((1, 10), 8) == (0, 8)


def test_weights_are_shares_of_the_batch():
    assert split.weights((16, 48)) == (0.25, 0.75)
    assert split.weights((0, 3), 3) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"got \(1, 2\) for a batch of 4"):
        split.weights((1, 2), 4)
    with pytest.raises(ValueError, match="one or more"):
        split.weights((0, 0))


def test_one_to_three_takes_half_the_time_of_an_equal_deal():
    equal = heterogeneous.Step(split="equal", link_ms=0.0).predict()
    by_speed = heterogeneous.Step(link_ms=0.0).predict()
    assert step_us(equal) == pytest.approx(96_000) and step_us(by_speed) == pytest.approx(48_000)


@pytest.mark.parametrize("word", split.SPLITS)
@pytest.mark.parametrize("speeds, batch", [case for case in CASES if case[1]])
def test_the_idle_share_is_that_of_the_timeline(word, speeds, batch):
    step = heterogeneous.Step(speeds=speeds, batch=batch, split=word, link_ms=0.0)
    assert step.idle_share() == pytest.approx(bubble(step.predict()))


def test_an_all_reduce_begins_with_each_rank_and_ends_after_the_last():
    step = heterogeneous.Step(split="equal", link_ms=5.0)
    found = step.predict()
    messages = found.select(found.lane == COMM)
    assert messages.start_us.tolist() == [96_000, 32_000]
    assert set(messages.end_us) == {101_000}
    backward = found.select((found.lane == COMPUTE) & (found.kind == "backward"))
    assert (backward.end_us - backward.start_us).tolist() == pytest.approx([64_000, 64_000 / 3])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"speeds": ()}, "ranks"),
        ({"speeds": (1, 0)}, "speed of rank 1"),
        ({"speeds": (1, math.nan)}, "speed of rank 1"),
        ({"batch": 0}, "batch"),
        ({"split": "fair"}, "a split is one of equal, by speed, fastest, probed"),
        ({"sample_ms": 0}, "sample_ms"),
        ({"link_ms": -1}, "link_ms"),
    ],
)
def test_what_is_no_step_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        heterogeneous.Step(**options)


def test_titles_say_the_deal():
    step = heterogeneous.Step()
    assert step.title("en") == "16+48 samples at speeds 1:3"
    assert "64" in step.but(split="probed").title("zh")
