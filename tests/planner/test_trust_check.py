"""The exercises of chapter 19: right answers pass, typical mistakes are caught, wasteful ones are
told so."""

import pytest

from labkit import planner
from labkit.check import chapters
from labkit.planner import trust_check as check
from labkit.planner.trust.fit import predicted_us

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("four_runs", "honest_error")


def four(measure):
    settings = ((8, 1), (8, 4), (64, 1), (64, 4))
    return planner.fit([measure(gpus, mbs, batch=256) for gpus, mbs in settings])


def test_four_runs_that_differ_in_both_are_enough():
    assert check.four_runs(four).state == "passed"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (((8, 1, 16), (8, 1, 64), (8, 4, 64), (8, 4, 256)), "a slow network: 512 GPUs"),
        (((64, 1, 64), (64, 1, 128), (64, 1, 256), (64, 1, 512)), "slow products: 512 GPUs, mbs 4"),
        (((8, 1, 64), (64, 1, 128)), "slow in both: 512 GPUs"),
    ],
    ids=["one machine", "one sequence", "two runs"],
)
def test_runs_that_differ_in_too_little_do_not_tell_the_rest(settings, says):
    def answer(measure):
        return planner.fit([measure(*setting) for setting in settings])

    verdict = check.four_runs(answer)
    assert verdict.state == "wrong" and says in verdict.counterexample


def test_five_runs_are_over_budget():
    def answer(measure):
        measure(32)
        return four(measure)

    verdict = check.four_runs(answer)
    assert verdict.state == "over budget" and "5 runs; 4 are enough" in verdict.counterexample


@pytest.mark.parametrize(
    ("setting", "says"), [((512, 1), "64 GPUs at most"), ((8, 16, 256), "does not fit")]
)
def test_a_run_that_nobody_can_take_says_why(setting, says):
    verdict = check.four_runs(lambda measure: measure(*setting))
    assert verdict.state == "wrong" and says in verdict.counterexample


def off(found, run):
    return predicted_us(run, found.stack(run)) / run.step_us() - 1


def left_out(runs, fit):
    """The error on each run, by a fit on all others."""
    errors = []
    for run in runs:
        others = [each for each in runs if each is not run]
        errors.append(off(fit(others), run))
    return errors


def test_the_largest_error_on_a_run_left_out_passes():
    def answer(runs, fit):
        return max(abs(error) for error in left_out(runs, fit))

    assert check.honest_error(answer).state == "passed"


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("on what it has seen", "64 GPUs, mbs 1 is off by 75.4 %"),
        ("the mean", "five runs in one machine"),
        ("signed", "five runs in one machine"),
        ("nothing", "you say None"),
    ],
)
def test_an_error_that_is_not_the_largest_on_unseen_runs_is_wrong(mistake, says):
    def answer(runs, fit):
        if mistake == "on what it has seen":
            return max(abs(off(fit(runs), run)) for run in runs)
        errors = left_out(runs, fit)
        if mistake == "the mean":
            return sum(map(abs, errors)) / len(errors)
        return max(errors) if mistake == "signed" else None

    verdict = check.honest_error(answer)
    assert verdict.state == "wrong" and says in verdict.counterexample


def test_what_the_page_says_of_the_three_cases():
    worst = {}
    for case, runs in check._fitted_on():
        seen = max(abs(off(check._fit(runs), run)) for run in runs)
        unseen = max(abs(error) for error in left_out(runs, check._fit))
        worst[case.split()[0]] = (seen, unseen)
    assert worst["five"][0] < 0.02 and worst["five"][1] == pytest.approx(0.75, abs=0.02)
    assert worst["three"][1] == pytest.approx(0.03, abs=0.005)
    assert worst["the"] == pytest.approx((0.09, 0.10), abs=0.006)


def test_the_exercises_stand_under_their_own_chapter():
    assert chapters.exercises()["19 planner"] == ("four_runs", "honest_error")
