"""Each sentence is said where it applies, and nowhere else."""

import re
from functools import partial

import pytest
import torch

import labkit as lab
from labkit import planner, your_own
from labkit.your_own import recorded_steps, verdicts
from labkit.your_own import step as own_step

CLOCK = [10.0, 20.0, 100.0]


@pytest.mark.parametrize(
    ("fitted", "error", "words"),
    [
        ([10.1, 19.8, 99.5], 0.01, " Holding, with at most 10.0 % off on every step: fit.$"),
        ([10.1, 19.8, 109.0], 0.09, " Holding, .*: fit.$"),
        ([10.1, 19.8, 88.0], 0.01, " None is at most 10.0 % off on every step, so none holds.$"),
        ([10.1, 15.0, 99.5], 0.01, "none holds"),
        (
            [10.1, 19.8, 99.5],
            0.24,
            "up to 24.0 % apart, more than 10.0 %. .* can't show .*, and so refuted: planned.$",
        ),
        ([10.1, 19.8, 99.5], 0.26, "can't show .* None misses .* so none is refuted either.$"),
    ],
)
def test_a_forecast_holds_on_every_step_and_no_finer_than_the_clock(fitted, error, words):
    forecasts = {"fit": fitted, "planned": [5.0, 15.0, 70.0]}
    found = your_own.judged(forecasts, CLOCK, error=error)
    assert re.search(words, found.title)
    assert found.heads == ("forecast", "on the kept step", "worst of the others")
    assert found.cells[1] == ("planned", "-30.0 %", "-50.0 %")
    assert len(found.cells) == 2


def test_all_forecasts_that_hold_are_named():
    forecasts = {"fit": CLOCK, "planned": [5.0, 15.0, 70.0], "one factor": CLOCK}
    assert your_own.judged(forecasts, CLOCK, error=0.0).title.endswith(": fit, one factor.")


@pytest.mark.parametrize(
    ("forecasts", "words"),
    [
        (
            {"fit": 88.0, "planned": 70.0},
            'took 100 us. Nearest comes "fit" with 88.0 us, 12.0 % too short',
        ),
        ({"fit": 130.0, "planned": 95.0}, 'comes "planned" with 95.0 us, 5.0 % too short'),
        ({"fit": 104.0, "planned": 95.0}, 'comes "fit" with 104 us, 4.0 % too long'),
    ],
)
def test_the_kept_step_is_told_beside_the_nearest_forecast(forecasts, words):
    times_us = {name: [*CLOCK[:-1], last] for name, last in forecasts.items()}
    assert words in your_own.judged(times_us, CLOCK, error=0.02).title


def test_the_recorded_steps_are_judged_by_a_clock_that_can_judge():
    found = your_own.judged_recorded()
    words = "^Recorded, by a clock whose error is .* Holding, .*: three terms.$"
    assert re.search(words, found.title)
    assert [row[0] for row in found.cells] == ["three terms", "one factor", "planned"]
    assert recorded_steps.clock_error(recorded_steps.steps()) <= verdicts.HOLDS


def test_the_recorded_plan_begins_lower_than_the_fit_and_rises_faster():
    drawn = lab.curves(**your_own.recorded_lines())
    assert drawn.title == "A step, fitted and planned"
    lines = your_own.recorded_lines()
    fit, plan = lines["predicted"]["3 layers"], lines["predicted"]["3 layers, planned"]
    assert plan[8] == 36059.0 and lines["measured"] == {"4 layers": {12: 72035.0}}
    assert fit[0] > 2 * plan[0] and (fit[12] - fit[0]) / 12 < (plan[8] - plan[0]) / 8
    assert f"{fit[0] / plan[0]:.3g} times as high" in your_own.beside_recorded()


def test_three_terms_find_steps_that_follow_the_formula():
    rows = []
    for layers, sequences in recorded_steps.SIZES:
        took_us = 3e3 + layers * (9e3 + 800.0 * sequences)
        rows.append(recorded_steps.Clocked(layers, sequences, 1e3 * layers, took_us, took_us * 1.1))
    forecasts = recorded_steps.forecasts(rows)
    assert forecasts["three terms"] == pytest.approx([row.measured_us for row in rows], rel=1e-3)
    assert forecasts["one factor"][-1] == pytest.approx(2 * forecasts["one factor"][0])
    assert recorded_steps.clock_error(rows) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="give 4 or more: got 3"):
        recorded_steps.forecasts(rows[:3])
    with pytest.raises(ValueError, match="give one: got 0"):
        recorded_steps.clock_error([])


def test_times_that_do_not_match_are_refused():
    for none in ({}, 3, {"fit": [1.0]}, {"fit": [1.0, 2.0, "x"]}):
        with pytest.raises(ValueError, match="got"):
            your_own.judged(none, CLOCK, error=0.1)
    for none in ([], [3.0], [3.0, 0.0, 1.0]):
        with pytest.raises(ValueError, match="got"):
            your_own.judged({"fit": [1.0, 2.0, 3.0]}, none, error=0.1)
    for none in (-0.1, float("nan"), "x"):
        with pytest.raises(ValueError, match="error"):
            your_own.judged({"fit": CLOCK}, CLOCK, error=none)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (0.05, "up to 50.0 % apart, and two clockings of one step at most 5.0 %: no single factor"),
        (0.24, "up to 50.0 % apart, and two clockings of one step at most 24.0 %: no single"),
        (0.26, "up to 26.0 %: too close to refute"),
    ],
)
def test_one_factor_is_refuted_by_no_less_than_the_clock(error, words):
    assert re.search(words, your_own.one_factor([2.0, 3.0, 2.5], error=error))
    assert "too close" in your_own.one_factor([2.0, 2.05, 2.1], error=0.05)
    for none in ([2.0], [2.0, 0.0], "no"):
        with pytest.raises(ValueError, match="got"):
            your_own.one_factor(none, error=error)


def test_a_plans_line_is_laid_beside_the_fits():
    planned = {(4, s): 10e3 + 2e3 * s for s in (2, 6, 12)}
    three = [3e3, 6e3, 1e3]
    assert your_own.beside_fit(three, planned, error=0.01) == (
        "Planned, the line begins at 10.0 ms and rises by 2.00 ms a sequence; by the fit it begins "
        "at 27.0 ms, 2.7 times as high, and rises by 4.00 ms, 2 times as fast. By the fit one "
        "factor would have to be both numbers at once."
    )
    falling = your_own.beside_fit([3e3, 6e3, -0.5e3], planned, error=0.01)
    assert "-1 times as fast. By the fit one factor" in falling
    alike = your_own.beside_fit([0.0, 5e3, 1e3], planned, error=0.01)
    assert alike.endswith("too close for this clock to tell them apart.")
    unsure = your_own.beside_fit(three, planned, error=0.3)
    assert unsure.endswith("too close for this clock to tell them apart.")
    for none in ({(4, 2): 1.0}, {(4, 2): 1.0, (3, 2): 1.0}, 3):
        with pytest.raises(ValueError, match="got"):
            your_own.beside_fit(three, none, error=0.01)


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
    own, shown = your_own.fitted(steps, times_us, gpu=gpu, error=0.01)
    begun = steps[0].plan(gpu=gpu).used
    assert own.fitted_on == 4
    assert shown.heads == ("constant", "before", "after", "what the plan now assumes")
    assert {row[0] for row in shown.cells} == {"matmul", "layer_us"}
    assert own.layer_us > begun.layer_us
    assert "a layer takes more time beside its work than planned" in shown.cells[1]
    _, shown = your_own.fitted(steps, times_us, gpu=gpu, error=0.5)
    assert shown.title.startswith("Two clockings of one step lie up to 50.0 % apart")
    assert {row[-1] for row in shown.cells} == {"-"}
    for none in ([], steps[:1], [3, 4, 5, 6]):
        with pytest.raises(ValueError, match="got"):
            your_own.fitted(none, times_us, gpu=gpu, error=0.01)


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


def test_a_clock_goes_on_until_its_two_times_are_near(monkeypatch):
    rounds = iter([[10.0, 30.0, 20.0, 31.0], [15.0, 29.0, 12.0, 40.0], [11.0, 33.0, 10.5, 30.0]])
    asked = []

    def in_turns(steps):
        asked.append(steps)
        return next(rounds)

    monkeypatch.setattr(own_step, "in_turns", in_turns)
    assert your_own.clocked_twice("ab", within=0.25) == [(10.0, 12.0), (29.0, 31.0)]
    assert asked == [["a", "b", "a", "b"]] * 2
    rounds = iter([[10.0, 20.0]] * 9)
    assert your_own.clocked_twice("a", within=0.1, rounds=3) == [(10.0, 20.0)]
    assert len(asked) == 5
    for none in ({"within": -1.0}, {"rounds": 0}):
        with pytest.raises(ValueError, match="got"):
            your_own.clocked_twice("a", **none)
