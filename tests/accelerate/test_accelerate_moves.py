"""How far runs moved their weights, and into which directions."""

import pytest
import torch

from labkit import accelerate as accelerated

BEFORE = {"a": torch.zeros(2), "b": torch.ones(1)}


def test_a_move_has_a_length_and_an_angle_to_the_first():
    runs = {
        "first": {"b": torch.ones(1), "a": torch.tensor([3.0, 0.0])},
        "longer": {"a": torch.tensor([6.0, 0.0]), "b": torch.ones(1)},
        "across": {"a": torch.tensor([0.0, 0.5]), "b": torch.ones(1)},
        "half way": {"a": torch.tensor([1.0, 1.0]), "b": torch.ones(1)},
        "back": {"a": torch.tensor([-1.0, 0.0]), "b": torch.ones(1)},
    }
    rows = accelerated.moved(BEFORE, runs)
    assert [row["run"] for row in rows] == list(runs)
    assert [row["length"] for row in rows] == pytest.approx([3, 6, 0.5, 2**0.5, 1])
    assert [row["degrees"] for row in rows] == [0, 0, 90, 45, 180]
    assert accelerated.moved(BEFORE, {}) == []


@pytest.mark.parametrize("run", [BEFORE, {"a": torch.ones(2)}, None, {"a": 1, "b": 2}])
def test_what_has_no_direction_is_refused(run):
    with pytest.raises(ValueError, match="named runs that moved them"):
        accelerated.moved(BEFORE, {"run": run})


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="weights and named runs"):
        accelerated.moved(BEFORE, [BEFORE])
