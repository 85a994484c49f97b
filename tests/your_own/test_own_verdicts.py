"""Each sentence is said where it applies, and nowhere else."""

import re

import pytest

import labkit as lab
from labkit import your_own

CLOCK = [10.0, 20.0, 100.0]


@pytest.mark.parametrize(
    ("fitted", "again_us", "words"),
    [
        ([10.1, 19.8, 99.5], 10.1, "0.5 % off on the larger step, .* holds"),
        ([10.1, 19.8, 102.0], 10.5, "no more than the clock, which is off by 5.0 %"),
        ([10.1, 19.8, 92.0], 10.1, "8.0 % off .* only up to 1.0 %"),
        ([10.1, 19.8, 99.5], 14.0, "Nothing shown: the clock is off by 40.0 %"),
        ([10.1, 15.0, 99.5], 10.1, "Nothing shown: .* the fit by 25.0 %"),
    ],
)
def test_a_forecast_is_judged_no_finer_than_clock_and_fit(fitted, again_us, words):
    forecasts = {"fit": fitted, "planned": [5.0, 15.0, 70.0]}
    found = your_own.judged(forecasts, CLOCK, again_us=again_us)
    assert re.search(words, found.title)
    assert found.cells[1] == ("planned", "-50.0 %", "-30.0 %")
    assert len(found.cells) == 2


def test_times_that_do_not_match_are_refused():
    for none in ({}, 3, {"fit": [1.0]}, {"fit": [1.0, 2.0, "x"]}):
        with pytest.raises(ValueError, match="got"):
            your_own.judged(none, CLOCK, again_us=10.0)
    for none in ([], [3.0], [3.0, 0.0, 1.0]):
        with pytest.raises(ValueError, match="got"):
            your_own.judged({"fit": [1.0, 2.0, 3.0]}, none, again_us=10.0)


SEEN = {(2, 4): 23e3, (1, 2): 11e3, (3, 8): 40e3}


def test_a_fit_is_drawn_with_the_step_that_it_has_not_seen():
    planned = {(4, 2): 20e3, (4, 12): 70e3}
    given = your_own.fit_lines([3e3, 6e3, 1e3], SEEN | {(4, 12): 75e3}, planned)
    assert list(given["fitted"]) == ["1 layer", "2 layers", "3 layers"]
    assert given["measured"] == {"4 layers": {12: 75e3}}
    assert given["predicted"]["4 layers, planned"] == {2: 20e3, 12: 70e3}
    assert given["predicted"]["4 layers"] == {2: 3e3 + 4 * 8e3, 12: 3e3 + 4 * 18e3}
    lab.curves(**given)
    for three, clock in (([1.0, 2.0], SEEN), ([1.0] * 3, {(1, 2): 3.0}), ([1.0] * 3, {3: 1.0})):
        with pytest.raises(ValueError, match="got"):
            your_own.fit_lines(three, clock, SEEN)
