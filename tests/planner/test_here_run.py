"""The planner on this machine's own ranks: what a case is as a plan, and that real steps are
real. How near predictions come is a matter of a quiet machine: benchmarks/planner.py."""

from dataclasses import replace

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


@pytest.mark.alone
def test_speeds_are_read_by_all_ranks_at_once():
    found = here_run.speeds(2)
    assert 1e-4 < found.tflops < 100
    assert found.hbm_gb_per_s > 0.1
    assert set(found.links) == {"all_reduce", "all_gather", "reduce_scatter"}
    assert found.node_link == found.links["all_reduce"]
    for alpha_us, bandwidth in found.links.values():
        assert alpha_us >= 1
        assert bandwidth > 1e-3
    assert found.adam_bytes > 16  # a parameter, its gradient and two moments in fp32
    assert found.per_node == 2 and not found.hides
    assert found.fp32_share == 1


def test_where_cores_compute_and_send_nothing_hides_and_each_collective_has_its_own_speed():
    links = {"all_reduce": (10.0, 4.0), "all_gather": (10.0, 2.0), "reduce_scatter": (10.0, 1.0)}
    here = replace(NEAR, links=links, hides=False)
    plan = here_run.plan(Case(engine="fsdp", **SMALL), here)
    assert plan.layout.num_microbatches == 1
    group = plan.layout.group("dp")
    layer = 4 * plan.shape.layer_params
    root = 4 * plan.layout.root_params(plan.shape, 0)
    sent_us = 0.0
    for name, num_bytes in (
        ("all_gather", (layer, layer, layer, layer, root)),
        ("reduce_scatter", (layer, layer, root)),
    ):
        alpha_us, bandwidth = links[name]
        sent_us += sum(alpha_us + each / 2 / bandwidth / 1e3 for each in num_bytes)
    assert plan.time().parts()["gather"] == pytest.approx(sent_us)
    beside = here_run.plan(Case(engine="fsdp", **SMALL), replace(here, hides=True))
    assert beside.time().parts()["gather"] < sent_us
    assert group.us("reduce_scatter", 1e6, plan.cluster, 1.0) == pytest.approx(10 + 500)


def test_a_speed_that_was_read_in_fp32_is_the_peak_of_a_plan_in_fp32_and_of_its_mfu():
    read = replace(NEAR, sms=0, fp32_share=1.0)
    as_a_card = replace(read, tflops=2 * NEAR.tflops, fp32_share=0.5)
    plan, same = (here_run.plan(Case(engine="ddp", **SMALL), each) for each in (read, as_a_card))
    assert plan.time().step_us == same.time().step_us
    assert plan.mfu() == pytest.approx(2 * same.mfu())
    assert gpu("A100").fp32_share == 0.5  # TF32


def test_adams_step_is_in_a_case_but_the_pipelines():
    for engine in here_run.ENGINES:
        case = Case(engine=engine, microbatches=2, **SMALL)
        times = [
            here_run.plan(case, replace(NEAR, adam_bytes=num_bytes)).time().optimizer_us
            for num_bytes in (30.0, 120.0)
        ]
        assert times[1] == pytest.approx(4 * times[0])
        assert (times[0] == 0) == (engine == "pipeline")


def test_real_steps_are_timed():
    cases = [Case(engine=engine, microbatches=2, **SMALL) for engine in here_run.ENGINES]
    found = here_run.steps(cases, rounds=1)
    assert all(100 < step_us < 6e7 for step_us in found)
