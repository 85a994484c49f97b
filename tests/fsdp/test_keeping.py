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


def test_layers_gathered_once_take_the_memory_of_grad_op_and_about_zero_2s_time():
    full = PLAN.but(per_node=4, nic_gb_per_s=12.5)
    zero_2_us = full.but(zero=2, stack=full.used).time().step_us
    each_bytes, each_us = fsdp.grad_op(full)
    once_bytes, once_us = fsdp.grad_op(full, once=True)
    assert once_bytes == each_bytes
    assert zero_2_us == pytest.approx(once_us, rel=0.01)
    assert once_us < each_us


def test_ways_send_more_the_less_they_keep_and_take_longer_over_a_network():
    one = fsdp.ways(PLAN)
    two = fsdp.ways(PLAN, machines=2, gb_per_s=25)
    assert list(one) == ["ZeRO 1", "ZeRO 2", "gathered once", "SHARD_GRAD_OP", "FULL_SHARD"]
    model_bytes = 7 / 8 * 2 * PLAN.shape.params
    assert [cost.sent_bytes / model_bytes for cost in one.values()] == [2, 9, 9, 16, 24]
    for found in (one, two):
        times_us = [cost.step_us for cost in found.values()]
        assert times_us == sorted(times_us)
    held, _, step_us = one["FULL_SHARD"]
    assert (held, step_us) == (PLAN.memory().peak_bytes, PLAN.time().step_us)
    network = PLAN.but(per_node=4, nic_gb_per_s=12.5)
    assert two["FULL_SHARD"].step_us == network.time().step_us
    assert max(c.step_us for c in one.values()) < 1.02 * min(c.step_us for c in one.values())


@pytest.mark.parametrize(
    ("changes", "how", "told"),
    [
        ({"zero": 0, "pp": 2}, {}, "alone"),
        ({}, {"machines": 3}, "divides 8 cards"),
        ({}, {"machines": 2}, "gb_per_s"),
        ({}, {"machines": 9}, "machines"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, how, told):
    with pytest.raises(ValueError, match=told):
        fsdp.ways(PLAN.but(**changes), **how)
