"""The exercises of several axes: right answers pass, each usual mistake is named."""

import math

import pytest

from labkit.mesh_3d import check


def by_strides(sizes, axis):
    names = list(sizes)
    stride = math.prod(list(sizes.values())[names.index(axis) + 1 :])
    found = []
    for rank in range(math.prod(sizes.values())):
        if rank // stride % sizes[axis] == 0:
            found.append(range(rank, rank + sizes[axis] * stride, stride))
    return found


def test_groups_by_strides_pass_in_any_order():
    assert check.groups(by_strides).state == "passed"
    assert check.groups(lambda sizes, axis: by_strides(sizes, axis)[::-1]).state == "passed"


def test_an_order_from_the_other_end_is_named():
    verdict = check.groups(lambda sizes, axis: by_strides(dict(reversed(sizes.items())), axis))
    assert verdict.state == "wrong"
    assert "pp 2 x dp_shard 2 x tp 2, along pp: got [[0, 1]" in verdict.counterexample
    assert "right is [[0, 4]" in verdict.counterexample


def asked(ask):
    """Fifteen questions, and the fastest that leaves room."""
    best = None
    for layout in (
        {"pp": 4, "zero": 1},
        {"tp": 2, "pp": 4},
        {"tp": 2, "pp": 2, "zero": 1},
        {"tp": 4, "pp": 2},
        {"tp": 2, "zero": 3},
    ):
        for mbs in (4, 2, 1):
            try:
                told = ask(**layout, mbs=mbs)
            except ValueError:
                continue
            has_room = told["memory_gb"] <= 0.9 * told["gpu_gb"]
            if has_room and (best is None or told["step_s"] < best[0]):
                best = told["step_s"], {**layout, "mbs": mbs}
    return best[1]


@pytest.mark.real
def test_a_plan_by_fifteen_questions_passes_and_trains():
    verdict = check.hybrid_plan(asked)
    assert verdict.state == "passed", verdict


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ({"tp": 2, "pp": 2, "zero": 1, "mbs": 4}, "GB; of a GPU's"),  # as printed: "ample room"
        ({"pp": 8}, "has one axis"),
        ({"tp": 2, "pp": 2, "zero": 2}, "zero is 0, 1 or 3"),
        ({"tp": 2, "pp": 2, "stage": 2}, "a layout has tp, pp, zero"),
    ],
)
def test_plans_that_are_none_are_told_why(layout, told):
    verdict = check.hybrid_plan(lambda ask: layout)
    assert verdict.state == "wrong"
    assert told in verdict.counterexample, verdict


@pytest.mark.again
def test_a_slow_plan_and_many_questions_are_over_budget(monkeypatch):
    monkeypatch.setattr(check, "_CASES", check._CASES[1:2])  # the one that is not trained
    verdict = check.hybrid_plan(lambda ask: {"tp": 4, "pp": 2, "recompute": "full"})
    assert verdict.state == "over budget"
    assert "more than the planner's fastest with room" in verdict.counterexample
    verdict = check.hybrid_plan(lambda ask: [asked(ask), asked(ask)][0])
    assert "30 questions; 16 are enough" in verdict.counterexample


@pytest.mark.a_few(1)
@pytest.mark.parametrize("layout", [{"tp": 2, "pp": 4}, {"pp": 4, "zero": 1}, {"tp": 2, "zero": 3}])
def test_a_toy_has_the_same_axes_on_eight_ranks(layout):
    step = check.toy(layout)
    assert step.ranks == 8 and step.refusal("en") is None
    assert (step.tp, step.pp) == (layout.get("tp", 1), layout.get("pp", 1))
    assert (step.dp_shard > 1) == bool(layout.get("zero"))
