"""Each sentence is said where it applies, and nowhere else."""

import re
from functools import partial

import pytest
import torch

import labkit as lab
from labkit import planner, your_own
from labkit.your_own import verdicts

CLOCK = [10.0, 20.0, 100.0]


@pytest.mark.parametrize(
    ("fitted", "again_us", "words"),
    [
        ([10.1, 19.8, 99.5], 10.1, "0.5 % off on the larger step, .* holds"),
        ([10.1, 19.8, 102.0], 10.5, "2.0 % off .* within the limit of 5.0 %: .* holds"),
        ([10.1, 19.8, 107.0], 10.8, "7.0 % off .* within the limit of 8.0 %: .* holds"),
        ([10.1, 19.8, 92.0], 10.1, "8.0 % off .* more than the limit of 5.0 %; up to 1.0 %"),
        ([10.8, 19.8, 92.5], 10.1, "7.5 % off .* more than the limit of 5.0 %; up to 8.0 %"),
        ([10.1, 19.8, 99.5], 14.0, "clock again: the clock is off by 40.0 %"),
        ([10.1, 15.0, 99.5], 10.1, "clock again: .* the fit by 25.0 %"),
    ],
)
def test_a_forecast_is_judged_by_a_limit_and_no_finer_than_the_clock(fitted, again_us, words):
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


@pytest.mark.parametrize(
    ("now_us", "words"),
    [
        (
            (5e3, 20e3),
            "9.00 ms to 20.0 ms, longer than 12.0 ms, .* 4 readers.* moved. Of the wait 5.00",
        ),
        ((6e3, 7e3), "to 7.00 ms, shorter than 12.0 ms, .* So the readers set the pace"),
        ((3e3, 12.5e3), "about as long as 12.0 ms, .* too close"),
    ],
)
def test_the_pace_is_set_by_the_longer_of_two(now_us, words):
    assert re.search(words, your_own.bottleneck((48e3, 9e3), now_us, readers=4))
    for none in ((1.0,), (1.0, 2.0, 3.0), 3, (1.0, "x")):
        with pytest.raises(ValueError, match="got"):
            your_own.bottleneck(none, now_us, readers=4)


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (
            2.1,
            "up to 50.0 % apart, and two clockings of one step differ by 5.0 %: no single factor",
        ),
        (1.5, "Stop and clock again: .* differs by 25.0 %"),
    ],
)
def test_one_factor_is_refuted_by_no_less_than_the_clock(again, words):
    assert re.search(words, your_own.one_factor([2.0, 3.0, 2.5], again=again))
    assert "too close" in your_own.one_factor([2.0, 2.05, 2.1], again=2.1)
    for none in ([2.0], [2.0, 0.0], "no"):
        with pytest.raises(ValueError, match="got"):
            your_own.one_factor(none, again=again)


@pytest.mark.parametrize(
    ("ends_us", "words"),
    [
        (
            (10e3, 90e3),
            "10.0 ms planned, 27.0 ms .* 12: 90.0 ms planned, 75.0 ms .* near 6:",
        ),
        ((10e3, 70e3), "do not cross"),
        ((30e3, 90e3), "do not cross"),
    ],
)
def test_a_plan_is_right_by_luck_where_its_line_crosses_the_fits(ends_us, words):
    first, last = ends_us
    planned = {(4, s): first + (last - first) * s / 12 for s in (2, 6, 12)}
    assert re.search(words, your_own.beside_fit([3e3, 6e3, 1e3], planned, twice_us=(9.0, 9.5)))
    told = your_own.beside_fit([3e3, 6e3, 1e3], planned, twice_us=(9.0, 12.0))
    assert told.startswith("Stop and clock again")
    for none in ({(4, 2): 1.0}, {(4, 2): 1.0, (3, 2): 1.0}, 3):
        with pytest.raises(ValueError, match="got"):
            your_own.beside_fit([3e3, 6e3, 1e3], none, twice_us=(9.0, 9.5))


def layers_of(count, sequences):
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, count, enable_nested_tensor=False)
    return net, torch.randn(sequences, 16, 64)


def test_what_a_fit_moves_is_said_of_the_plan():
    gpu = planner.gpu("A100 40 GB")
    steps = []
    for size in ((1, 2), (3, 2), (1, 8), (3, 8)):
        make = partial(layers_of, *size)
        steps.append(your_own.Step(make=make, engine="fsdp", ranks=2, split=True))
    times_us = [3 * each.plan(gpu=gpu).time().step_us for each in steps]
    own, shown = your_own.fitted(steps, times_us, gpu=gpu, again_us=times_us[0])
    begun = steps[0].plan(gpu=gpu).used
    assert own.fitted_on == 4
    assert shown.heads == ("constant", "before", "after", "what the plan now assumes")
    assert {row[0] for row in shown.cells} == {"matmul", "layer_us"}
    assert own.layer_us > begun.layer_us
    assert "a layer takes more time beside its work than planned" in shown.cells[1]
    _, shown = your_own.fitted(steps, times_us, gpu=gpu, again_us=2 * times_us[0])
    assert shown.title.startswith("Stop and clock again")
    assert {row[-1] for row in shown.cells} == {"-"}
    for none in ([], steps[:1], [3, 4, 5, 6]):
        with pytest.raises(ValueError, match="got"):
            your_own.fitted(none, times_us, gpu=gpu, again_us=1.0)


def test_a_share_above_one_is_explained():
    assert "no share any more" in verdicts._says("matmul", 0.6, 1.2)
    assert verdicts._says("matmul", 0.6, 0.8) == "products are faster than planned"
    assert verdicts._says("nic", 0.6, 0.5) == "messages are slower than planned"
    assert verdicts._says("layer_us", 200.0, 100.0).startswith("a layer takes less time")


SEEN = {(2, 4): 23e3, (1, 2): 11e3, (3, 8): 40e3}


def test_a_fit_is_drawn_with_the_step_that_it_has_not_seen():
    planned = {(4, 2): 20e3, (4, 12): 70e3}
    given = your_own.fit_lines([3e3, 6e3, 1e3], SEEN | {(4, 12): 75e3}, planned)
    assert list(given["fitted"]) == ["1 layer", "2 layers", "3 layers"]
    assert given["measured"] == {"4 layers": {12: 75e3}}
    assert given["predicted"]["4 layers, planned"] == {0: 10e3, 2: 20e3, 12: 70e3}
    assert given["predicted"]["4 layers"] == {0: 3e3 + 4 * 6e3, 12: 3e3 + 4 * 18e3}
    lab.curves(**given)
    for three, clock in (([1.0, 2.0], SEEN), ([1.0] * 3, {(1, 2): 3.0}), ([1.0] * 3, {3: 1.0})):
        with pytest.raises(ValueError, match="got"):
            your_own.fit_lines(three, clock, SEEN)
