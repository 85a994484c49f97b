"""Each sentence is said where it applies, and nowhere else."""

import re

import pytest

from labkit import your_own

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
