"""The exercises of chapter 15's second half: what is right passes, each way to be wrong is told."""

import pytest

from labkit.scaling import check


def efficiency(rows):
    speeds = [row["samples"] / row["step_ms"] / row["ranks"] for row in rows]
    return [speed / speeds[0] for speed in speeds]


def as_if_strong(rows):
    return [rows[0]["step_ms"] / row["step_ms"] / row["ranks"] for row in rows]


def as_if_weak(rows):
    return [rows[0]["step_ms"] / row["step_ms"] for row in rows]


@pytest.mark.parametrize("answer", [as_if_strong, as_if_weak])
def test_an_efficiency_of_one_kind_alone_is_wrong(answer):
    verdict = check.efficiency_of(answer)
    assert verdict.state == "wrong" and "right is" in verdict.counterexample


def test_an_efficiency_by_work_a_rank_is_right():
    assert check.efficiency_of(efficiency).state == "passed"
