"""The exercises of chapter 15's second half: what is right passes, each way to be wrong is told."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from labkit.scaling import check

END = object()


def efficiency(rows):
    speeds = [row["samples"] / row["step_ms"] / row["ranks"] for row in rows]
    return [speed / speeds[0] for speed in speeds]


def as_if_strong(rows):
    return [rows[0]["step_ms"] / row["step_ms"] / row["ranks"] for row in rows]


def as_if_weak(rows):
    return [rows[0]["step_ms"] / row["step_ms"] for row in rows]


def ahead(batches):
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, END)
        while (batch := coming.result()) is not END:
            coming = pool.submit(next, batches, END)
            yield batch


def in_turn(batches):
    yield from batches


def all_at_once(batches):
    yield from list(batches)


def backwards(batches):
    yield from reversed(list(batches))


def silent(batches):
    try:
        yield from ahead(batches)
    except Exception:
        return


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
def test_one_batch_ahead_passes():
    verdict = check.prefetch(ahead)
    assert verdict.state == "passed", verdict


@pytest.mark.real
@pytest.mark.parametrize(
    "answer, state, words",
    [
        (in_turn, "over budget", "C"),
        pytest.param(all_at_once, "wrong", "lie ready at once", marks=pytest.mark.again),
        pytest.param(backwards, "wrong", "right is", marks=pytest.mark.again),
        pytest.param(silent, "wrong", "error of the source", marks=pytest.mark.again),
    ],
)
def test_a_feed_that_is_no_prefetch_is_told(answer, state, words):
    verdict = check.prefetch(answer)
    assert verdict.state == state
    assert re.search(words, verdict.counterexample)


@pytest.mark.real
@pytest.mark.again
@pytest.mark.alone
def test_the_largest_that_fits_of_each_kind_passes():
    verdict = check.tune(largest_of_each)
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
    verdict = check.tune(answer)
    assert verdict.state == "wrong" and re.search(words, verdict.counterexample)


def test_a_microbatch_that_does_not_divide_the_batch_is_refused():
    verdict = check.tune(lambda trial, batch: (trial(5), False))
    assert verdict.state == "wrong" and "divides the batch of 16" in str(verdict)
