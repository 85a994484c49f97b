"""Each sentence is said where it applies, and nowhere else."""

import re

import pytest

from labkit import your_own
from labkit.units import format_us

WAIT = "waiting for data"


@pytest.mark.parametrize(
    ("after_us", "words"),
    [
        ({"computing": 3e3, WAIT: 9e3}, "The readers set the pace"),
        ({"computing": 3e3, "waiting for other ranks": 10e3}, "The readers set the pace"),
        ({"computing": 15e3}, "The rest of the step takes longer"),
        ({"computing": 3e3, WAIT: 20e3}, "Neither sets the pace alone"),
    ],
)
def test_the_pace_is_set_by_the_longer_of_two(after_us, words):
    found = your_own.paced({"computing": 8e3, WAIT: 48e3}, after_us, readers=4)
    assert words in found.title
    step_ms = sum(after_us.values()) / 1e3
    assert found.cells[0][0].startswith(f"{step_ms:.1f}") and found.cells[0][1] == "12.0 ms"
    rest_us = step_ms * 1e3 - after_us.get(WAIT, 0.0)
    waited_us = after_us.get("waiting for other ranks", 0.0)
    assert found.cells[0][2:] == ("8.00 ms", *map(format_us, (rest_us, waited_us)))


def test_a_step_that_never_waited_is_refused():
    for none in ({}, {"computing": 3.0}, {WAIT: -1.0}, {WAIT: 0.0}, {3: 4.0}, 5):
        with pytest.raises(ValueError, match="got"):
            your_own.paced(none, {"computing": 3.0}, readers=4)
    with pytest.raises(ValueError, match="readers"):
        your_own.paced({WAIT: 3.0}, {"computing": 3.0}, readers=0)


CLOCK = [10.0, 20.0, 100.0]


@pytest.mark.parametrize(
    ("fitted", "again_us", "words"),
    [
        ([10.1, 19.8, 99.5], 10.1, "0.5 % on the larger step, no more"),
        ([10.1, 19.8, 92.0], 10.1, "within 1.0 % .* off by 8.0 %"),
        ([10.1, 19.8, 99.5], 14.0, "Nothing shown: .* 40.0 %"),
        ([10.1, 15.0, 99.5], 10.1, "Nothing shown: .* 25.0 %"),
    ],
)
def test_a_forecast_is_judged_no_finer_than_clock_and_fit(fitted, again_us, words):
    forecasts = {"fit": fitted, "planned": [5.0, 15.0, 70.0]}
    found = your_own.judged(forecasts, CLOCK, again_us=again_us)
    assert re.search(words, found.title)
    assert found.cells[1] == ("planned", "-50.0 %", "-30.0 %")
    assert found.cells[2][1:] == (f"{10 * again_us - 100:.1f} %", "")


def test_times_that_do_not_match_are_refused():
    for none in ({}, 3, {"fit": [1.0]}, {"fit": [1.0, 2.0, "x"]}):
        with pytest.raises(ValueError, match="got"):
            your_own.judged(none, CLOCK, again_us=10.0)
    for none in ([], [3.0], [3.0, 0.0, 1.0]):
        with pytest.raises(ValueError, match="got"):
            your_own.judged({"fit": [1.0, 2.0, 3.0]}, none, again_us=10.0)
