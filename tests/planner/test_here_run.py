"""The planner on this machine's own ranks: what a case is as a plan, and that real steps are
real. How near predictions come is a matter of a quiet machine: benchmarks/planner.py."""

import pytest
import torch

from labkit import model, planner
from labkit.planner.plan.cluster import gpu
from labkit.planner.real import here_run
from labkit.planner.real.here_run import Case

SMALL = {"layers": 2, "dim": 64, "seq": 16}
NEAR = gpu("A100")


@pytest.mark.parametrize("engine", here_run.ENGINES)
def test_a_case_is_the_plan_of_the_same_step(engine):
    case = Case(engine=engine, microbatches=2, **SMALL)
    plan = here_run.plan(case, NEAR)
    with torch.device("meta"):
        net = model.Transformer(case.layers, case.dim, case.heads, max_len=case.seq)
    assert plan.shape.params == sum(each.numel() for each in net.parameters())
    assert plan.layout.num_microbatches == 2
    assert (plan.pp, plan.layout.dp) == ((2, 1) if engine == "pipeline" else (1, 2))
    assert plan.zero == (3 if engine == "fsdp" else 0)


def test_a_step_is_fitted_as_a_published_row_is():
    rows = []
    for layers in (2, 4):
        case = Case(engine="ddp", layers=layers, dim=64, seq=16)
        rows.append(here_run.row(case, NEAR, 1e5 * layers))
    found = planner.fit(rows)
    assert len(found.moved) == 1
    assert rows[1].step_us() == 4e5


def test_speeds_are_read_by_all_ranks_at_once():
    found = here_run.speeds(2)
    assert 1e-4 < found.tflops < 100
    assert found.hbm_gb_per_s > 0.1
    alpha_us, bandwidth = found.node_link
    assert alpha_us >= 1
    assert bandwidth > 1e-3
    assert found.per_node == 2


def test_real_steps_are_timed():
    cases = [Case(engine=engine, microbatches=2, **SMALL) for engine in here_run.ENGINES]
    found = here_run.steps(cases, rounds=1)
    assert all(100 < step_us < 6e7 for step_us in found)
