"""What a search hands out as plans, and a stack as a row."""

from labkit.planner.plan import stacks
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import search
from labkit.planner.plan.stacks import STACKS


def test_the_fastest_of_each_kind_and_of_the_frontier_come_as_plans():
    found = search(Plan(gpus=8, batch=64))
    plans = found.frontier_plans(3)
    assert [plan.layout for plan in plans] == [each.layout for each in found.frontier()[:3]]
    steps = [plan.time().step_us for plan in plans]
    assert plans[0] == found.best and steps == sorted(steps)
    kinds = found.by_kind()
    assert set(kinds) == {"cut", "shards", "copies"} and next(iter(kinds.values())) == found.best
    for kind, plan in kinds.items():
        alike = [each for each in found.fitting if each.layout.kind == kind]
        assert plan.layout == alike[0].layout


def test_a_stack_is_a_row_of_its_constants_and_its_error():
    row = STACKS["fsdp-a100"].row()
    assert row.pop("stack") == "fsdp-a100" and row.pop("error") == STACKS["fsdp-a100"].spread
    assert len(row) == len(stacks.CONSTANTS)
    assert all(row[name] == getattr(STACKS["fsdp-a100"], name) for name in stacks.CONSTANTS)
