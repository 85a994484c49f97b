"""The exercises of chapter 15's second half: what is right passes, each way to be wrong is told."""

import re

import pytest

from labkit.scaling import check, tune_check


def efficiency(rows):
    speeds = [row["samples"] / row["step_ms"] / row["ranks"] for row in rows]
    return [speed / speeds[0] for speed in speeds]


def as_if_strong(rows):
    return [rows[0]["step_ms"] / row["step_ms"] / row["ranks"] for row in rows]


def as_if_weak(rows):
    return [rows[0]["step_ms"] / row["step_ms"] for row in rows]


def largest_of_each(trial, batch):
    found = []
    for recompute in (False, True):
        for microbatch in (16, 8, 4, 2, 1):
            took_ms = trial(microbatch, recompute)
            if took_ms is not None:
                found.append((took_ms, microbatch, recompute))
                break
    return min(found)[1:]


@pytest.mark.parametrize("answer", [as_if_strong, as_if_weak])
def test_an_efficiency_of_one_kind_alone_is_wrong(answer):
    verdict = check.efficiency_of(answer)
    assert verdict.state == "wrong" and "right is" in verdict.counterexample


def test_an_efficiency_by_work_a_rank_is_right():
    assert check.efficiency_of(efficiency).state == "passed"


@pytest.mark.real
@pytest.mark.again
@pytest.mark.alone
def test_the_largest_that_fits_of_each_kind_passes():
    verdict = tune_check.tune(largest_of_each)
    assert verdict.state == "passed", verdict


@pytest.mark.real
@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda trial, batch: (1, False), "fits and takes"),
        pytest.param(lambda trial, batch: (16, False), "does not fit", marks=pytest.mark.again),
    ],
)
def test_a_setting_that_is_slow_or_too_large_is_told(answer, words):
    verdict = tune_check.tune(answer)
    assert verdict.state == "wrong" and re.search(words, verdict.counterexample)


def test_a_microbatch_that_does_not_divide_the_batch_is_refused():
    verdict = tune_check.tune(lambda trial, batch: (trial(5), False))
    assert verdict.state == "wrong" and "divides the batch of 16" in str(verdict)
