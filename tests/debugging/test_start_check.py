"""The exercises of chapter 00: the right answers pass, typical mistakes are caught."""

import pytest
import torch
from torch import distributed as dist

from labkit.debugging import start_check as check

EXERCISES = ("waits", "mean_of_all", "honest_check")
pytestmark = pytest.mark.usefixtures("a_fresh_learner")


def right_waits(seconds):
    ends = [max(step) for step in zip(*seconds, strict=True)]
    return [sum(ends) - sum(mine) for mine in seconds]


def right_mean(numbers):
    both = torch.tensor([sum(numbers), float(len(numbers))])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def right_check():
    rank = dist.get_rank()
    size = dist.get_world_size()
    x = torch.tensor([float(rank + 1)])
    dist.all_reduce(x)
    assert x.item() == size * (size + 1) / 2


@pytest.mark.again
@pytest.mark.parametrize(
    ("name", "answer"),
    [("waits", right_waits), ("mean_of_all", right_mean), ("honest_check", right_check)],
)
def test_the_reference_passes(name, answer):
    verdict = getattr(check, name)(answer)
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def at_the_end_only(seconds):
    """One all-reduce after all steps."""
    totals = [sum(mine) for mine in seconds]
    return [max(totals) - total for total in totals]


def mean_of_means(numbers):
    mean = torch.tensor(sum(numbers) / max(1, len(numbers)))
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def my_own(numbers):
    return sum(numbers) / max(1, len(numbers))


def only_who_has_some(numbers):
    """Hangs where a list is empty."""
    if not numbers:
        return 0.0
    return right_mean(numbers)


def vacuous():
    """Runs to its end."""


def same_everywhere():
    """Adds equal numbers, so that a product looks like a sum."""
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == dist.get_world_size()


def nothing_from_rank_0():
    """Sends the rank, so that a sum without rank 0 is the same."""
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)
    assert x.item() == sum(range(dist.get_world_size()))


def on_rank_0_alone():
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        assert x.item() == sum(range(dist.get_world_size() + 1))


def always_fails():
    raise AssertionError("no")


def two_ranks_only():
    """Its sum is worked out for two ranks."""
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    assert x.item() == 3


@pytest.mark.a_few(3)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("waits", at_the_end_only, "seconds [[1.0, 5.0], [4.0, 2.0]]: the all-reduces end [4.0, "),
        ("waits", lambda seconds: [0.0], "so the ranks wait [0.0, 2.0]; got [0.0]"),
        ("mean_of_all", mean_of_means, "rank 0 should get 3; got 3.75"),
        ("mean_of_all", my_own, "rank 0 should get 3; got 1.5"),
        ("honest_check", vacuous, "all_reduce does nothing, and your check found nothing"),
        ("honest_check", same_everywhere, "multiplies a rank's own numbers by the number of ranks"),
        ("honest_check", nothing_from_rank_0, "all_reduce leaves rank 0 out of the sum"),
        ("honest_check", on_rank_0_alone, "all_reduce gives the sum to rank 0 alone"),
        ("honest_check", always_fails, "2 ranks: all_reduce is right, and rank 0 says Assertion"),
        ("honest_check", two_ranks_only, "3 ranks: all_reduce is right, and rank 0 says"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample, verdict.counterexample


@pytest.mark.usefixtures("short_patience")
def test_a_mean_that_waits_for_who_has_nothing_is_a_verdict():
    verdict = check.mean_of_all(only_who_has_some)
    assert verdict.state == "wrong" and "all_reduce" in verdict.counterexample


def test_the_exercises_stand_under_chapter_00():
    from labkit.check import chapters

    assert chapters.exercises()["00 debugging"] == EXERCISES
