"""Synchronous, bounded and asynchronous training on one wall clock."""

from dataclasses import replace

import pytest

from labkit import heterogeneous

TRAINING = heterogeneous.Training(seconds=0.6)


@pytest.fixture(scope="module")
def trained():
    return {way: replace(TRAINING, way=way).run()[0] for way in ("synchronous", "asynchronous")}


def test_who_waits_is_never_late_and_who_does_not_learns_from_more(trained):
    waits = trained["synchronous"]
    goes_on = trained["asynchronous"]
    assert waits["latest"] == 0 and goes_on["latest"] > 0
    assert goes_on["updates"] > 1.3 * waits["updates"]
    assert waits["updates"] % 3 == 0  # whole rounds of three workers
    for told in trained.values():
        seconds = list(told["losses"])
        assert seconds == sorted(seconds) and seconds[0] == 0 and seconds[-1] <= 0.6
        assert 0 < told["accuracy"] < 1


def test_a_bound_is_kept():
    told = replace(TRAINING, way="bounded", bound=1, hiccup=0.3).run()[0]
    assert told["updates"] > 0 and told["mean lateness"] <= told["latest"] <= 2 * 3


@pytest.mark.again
def test_dealt_by_speed_a_synchronous_training_takes_more_steps(trained):
    told = replace(TRAINING, split="by speed").run()[0]
    assert told["latest"] == 0 and told["updates"] > 1.3 * trained["synchronous"]["updates"]


@pytest.mark.parametrize(
    "options, words",
    [
        ({"way": "late"}, "a way is one of"),
        ({"speeds": ()}, "workers"),
        ({"hiccup": 2}, "hiccup"),
        ({"seconds": 0}, "seconds"),
        ({"speeds": (1, 100), "split": "fastest", "batch": 3}, "every worker has a sample"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        heterogeneous.Training(**options)
