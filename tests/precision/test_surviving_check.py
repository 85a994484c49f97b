"""The exercise on updates that survive: right answers pass, typical mistakes are caught."""

import pytest
import torch

from labkit.precision import check

EXERCISES = ("surviving",)
pytestmark = pytest.mark.usefixtures("a_fresh_learner")


def surviving(weights, rate, dtype):
    """The reference."""
    kept = weights.to(dtype)
    return kept - rate != kept


def by_the_gap(weights, rate, dtype):
    """Right as well: the rate is held against half a gap, which is smaller below a power of two."""
    kept = weights.to(dtype).double()
    info = torch.finfo(dtype)
    gap = 2.0 ** kept.abs().log2().floor() * info.eps
    return rate > gap.clamp(min=info.smallest_normal * info.eps) / 2


@pytest.mark.parametrize("answer", [surviving, by_the_gap])
def test_the_arithmetic_passes_and_so_does_the_gap(answer):
    assert check.surviving(answer).state == "passed"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda weights, rate, dtype: weights - rate != weights, "stands still; you say that it"),
        (
            lambda weights, rate, dtype: (
                weights.to(dtype) - torch.full_like(weights, rate) != weights.to(dtype)
            ),
            "stands still; you say that it moves",
        ),
        (
            lambda weights, rate, dtype: (weights - rate).to(dtype) != weights,
            "stands still; you say that it moves",
        ),
        (
            lambda weights, rate, dtype: rate > weights.abs() * torch.finfo(dtype).eps,
            "moves; you say that it does not",
        ),
        (lambda weights, rate, dtype: weights.to(dtype) == weights.to(dtype) - rate, "you say"),
        (lambda weights, rate, dtype: True, "an answer for each of 600 weights"),
        (lambda weights, rate, dtype: torch.tensor([True]), "an answer for each of 600 weights"),
        (lambda weights, rate, dtype: None, "an answer for each of 600 weights"),
    ],
    ids=["no_format", "fp32_rates", "unrounded", "a_whole_gap", "turned", "bool", "one", "none"],
)
def test_a_typical_mistake_gets_its_weight(answer, words):
    verdict = check.surviving(answer)
    assert verdict.state == "wrong", verdict
    assert words in verdict.counterexample, verdict.counterexample


def test_a_master_is_no_weight():
    """The rounded master moves elsewhere than the rounded weight."""
    verdict = check.surviving(
        lambda weights, rate, dtype: (weights - rate).to(dtype) != weights.to(dtype)
    )
    assert verdict.state == "wrong" and "bfloat16, rate " in verdict.counterexample
