"""LLaMA-13B on four cards: the plan as it is written, and what would fit."""

import pytest

from labkit.case_studies import llama, picture

WRITTEN = llama.as_written().plan
ON_HOST = WRITTEN.but(offload="optimizer", recipe="mixed")


def case(plan):
    """A plan as a case: only its numbers count here."""
    return llama.Case(name={"en": "a plan", "zh": "一个方案"}, plan=plan)


def test_the_plan_as_written_dies_by_its_states_alone():
    """16 bytes a parameter, shared by four, are more than 40 GB before anything is computed."""
    case = llama.as_written()
    params = case.plan.shape.params
    assert case.plan.memory().state_bytes == pytest.approx(16 * params / 4)
    assert case.plan.memory().state_bytes > case.plan.cluster.device_bytes
    assert case.over_bytes > 12e9 and "It dies" in case.told("en")


def test_every_card_of_fsdp_lacks_as_much():
    rows = llama.as_written().devices()
    assert [row["card"] for row in rows] == [0, 1, 2, 3]
    assert len({row["over_bytes"] for row in rows}) == 1


def test_stages_of_a_pipeline_hold_each_their_own():
    case = llama.as_written()
    piped = llama.Case(name=case.name, plan=case.plan.but(zero=0, pp=2))
    held = [row["held_bytes"] for row in piped.devices()]
    assert held[0] == held[1] != held[2] == held[3]
    assert max(held) == piped.held_bytes


def test_shorter_sequences_save_nothing_that_matters_and_three_other_ways_do():
    shorter = WRITTEN.but(mbs=1, seq=512)
    others = [WRITTEN.but(recipe="bf16"), WRITTEN.but(gpus=8), WRITTEN.but(gpu="A100 80 GB")]
    assert case(shorter).over_bytes > 0
    assert all(case(plan).over_bytes <= 0 for plan in [ON_HOST, *others])


def test_what_leaves_the_cards_lies_on_the_host_and_takes_its_time():
    host = case(ON_HOST)
    params = host.plan.shape.params
    assert host.host_bytes == pytest.approx(18 * params)  # Adam 12, gradients 4 + 2
    again = 16 * (2 + 2) * params / 4  # a microbatch's gradients go down, and come up
    moved = 4 * params / 4 + 2 * params / 4
    updated = 30 * params / (1e3 * llama.HOST_GB_PER_S)

    def taken_us(num_bytes):
        return num_bytes / 1e3 / llama.LINK_GB_PER_S + updated

    assert llama.host_us(host.plan, host.plan.layout) == pytest.approx(taken_us(again + moved))
    by_megatron = host.plan.but(zero=1)
    assert llama.host_us(by_megatron, by_megatron.layout) == pytest.approx(taken_us(moved))
    written = llama.as_written().plan
    assert llama.host_us(written, written.layout) == 0.0


def test_cases_draw_themselves():
    assert llama.as_written().picture().summary
    assert "a plan" in picture.drawn([llama.as_written(), case(ON_HOST)]).summary
    with pytest.raises(ValueError, match="a list of Case"):
        picture.drawn([])


def test_a_length_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="seq is a whole number"):
        llama.as_written(0)


def test_with_adam_on_the_host_four_stages_take_half_of_deepspeed_s_step():
    """As chapter 20 says of four cards of 40 GB."""
    stages = ON_HOST.but(zero=0, pp=4, mbs=1, recompute="none", recipe="")
    by_stages = case(stages).row()
    by_deepspeed = case(ON_HOST).row()
    assert by_stages["held_bytes"] == pytest.approx(29.8e9, rel=0.01)
    assert by_stages["host_bytes"] == pytest.approx(12 * stages.shape.params)
    assert by_stages["step_us"] > stages.time().step_us
    assert by_deepspeed["step_us"] / by_stages["step_us"] == pytest.approx(1.92, abs=0.03)


def test_every_layout_that_a_program_runs_has_a_row_the_fastest_first():
    rows = llama.layouts("A100 40 GB", 1024)
    steps_us = [row["step_us"] for row in rows]
    assert steps_us == sorted(steps_us)
    assert {row["room_bytes"] for row in rows} == {0.9 * 40e9}
    asked = WRITTEN.but(zero=0, mbs=1, recompute="none", recipe="")
    for row in rows[::20]:
        plan = asked.but(**{"sp": row["layout"].get("tp", 1) > 1} | row["layout"])
        assert plan.offload == row["offload"]
        assert plan.memory().peak_bytes == row["memory_bytes"]
        assert llama.step_us(plan) == pytest.approx(row["step_us"])
    programs = {(row["program"], row["offload"]) for row in rows}
    assert programs == {
        ("FSDP", "none"),
        ("DeepSpeed", "optimizer"),
        ("Megatron-LM", "none"),
        ("Megatron-LM", "optimizer"),
    }
    by_deepspeed = [row["layout"] for row in rows if row["program"] == "DeepSpeed"]
    assert not any("tp" in layout or "pp" in layout for layout in by_deepspeed)
    with pytest.raises(ValueError, match="seq is a whole number"):
        llama.layouts("A100 40 GB", 0)


def test_the_option_keeps_a_shard_of_the_gradients_and_sends_more_often():
    plan = WRITTEN.but(gpus=8)
    without, option = llama.with_option(plan)
    assert option["memory_bytes"] == plan.memory().peak_bytes
    assert option["waits for messages_us"] == llama.between_us(plan) < 0.1e6
    assert option["step_us"] == llama.step_us(plan)
    assert without["waits for messages_us"] is None is without["step_us"]
    assert (without["gradients travel"], option["gradients travel"]) == (1, 8)
    more = without["gradients_bytes"] - option["gradients_bytes"]
    assert without["memory_bytes"] - option["memory_bytes"] == pytest.approx(more)
    assert without["memory_bytes"] == pytest.approx(52.9e9, rel=0.002)
    for wrong in (plan.but(zero=0), "a plan"):
        with pytest.raises(ValueError, match="of zero 3"):
            llama.with_option(wrong)
