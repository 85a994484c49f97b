"""SHARD_GRAD_OP as a plan: between ZeRO 2 and FULL_SHARD in time, above both in memory."""

import pytest

from labkit import fsdp, planner

PLAN = planner.Plan(model="LLaMA 7B", gpus=8, batch=64, recipe="mixed", zero=3)


@pytest.mark.parametrize("network", [{}, {"per_node": 4, "nic_gb_per_s": 12.5}])
def test_its_step_lies_between(network):
    full = PLAN.but(**network)
    zero_2 = full.but(zero=2, stack=full.used)
    _, step_us = fsdp.grad_op(full)
    assert zero_2.time().step_us < step_us < full.time().step_us


def test_it_holds_every_layer_whole():
    memory = PLAN.memory()
    peak_bytes, _ = fsdp.grad_op(PLAN)
    more = (PLAN.shape.layers - 2) * 2 * PLAN.shape.layer_params
    assert peak_bytes == memory.peak_bytes + more
    whole = 2 * PLAN.shape.params  # in place of what is gathered; and a layer's gradients
    without = memory.peak_bytes - memory.parts["gathered"]
    assert without + whole < peak_bytes < without + 1.1 * whole


@pytest.mark.parametrize("changes", [{"zero": 2}, {"pp": 2}, {"recompute": "full"}])
def test_another_plan_is_refused(changes):
    with pytest.raises(ValueError, match="zero=3, pp=1"):
        fsdp.grad_op(PLAN.but(**changes))
