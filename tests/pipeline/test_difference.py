"""Causes add up to the whole, and each disturbance is blamed on its own cause."""

from dataclasses import replace

import numpy as np
import pytest

from labkit.pipeline.difference import gap_us, message_us, overheads_us, residual, words
from labkit.pipeline.schedule import posts
from labkit.pipeline.schedules import SCHEDULES
from labkit.pipeline.simulation import Cost, simulate
from labkit.timeline import busy_us

COST = Cost(forward_us=1000.0)


def idle_us(timeline):
    return timeline.num_ranks * timeline.span_us - busy_us(timeline).sum()


def moved(timeline, rows, start_us, end_us):
    """The same with the starts and ends of some rows later."""
    return replace(
        timeline,
        start_us=timeline.start_us + rows * start_us,
        end_us=timeline.end_us + rows * end_us,
    )


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_as_predicted_leaves_nothing_to_explain(name):
    for message, gap, post in ((0.0, 0.0, 0.0), (70.0, 0.0, 0.0), (70.0, 30.0, 20.0)):
        cost = replace(COST, message_us=message, gap_us=gap, post_us=post)
        predicted = simulate(SCHEDULES[name](4, 8), cost)
        for cause, us in residual(predicted, predicted).items():
            assert us == pytest.approx(0, abs=1e-6), cause


@pytest.mark.parametrize("name", SCHEDULES)
def test_causes_add_up_to_the_difference_in_idle_time(name):
    schedule = SCHEDULES[name](4, 8)
    predicted = simulate(schedule, COST)
    rng = np.random.default_rng(0)
    slower = Cost(forward_us=tuple(rng.uniform(900, 1500, schedule.num_stages)), message_us=55.0)
    measured = simulate(schedule, slower)
    why = residual(predicted, measured)
    total = why.pop("total")
    assert total == pytest.approx(idle_us(measured) - idle_us(predicted))
    assert sum(why.values()) == pytest.approx(total)
    assert abs(why["durations"]) > 1 and why["runtime"] == pytest.approx(0)


def test_slower_messages_are_blamed_on_messages():
    quick = simulate(SCHEDULES["gpipe"](4, 8), replace(COST, message_us=50.0))
    slow = simulate(SCHEDULES["gpipe"](4, 8), replace(COST, message_us=90.0))
    why = residual(quick, slow)
    assert why["messages"] + why["start-up"] == pytest.approx(why["total"]) and why["messages"] > 0
    assert why["durations"] == pytest.approx(0) and why["runtime"] == pytest.approx(0)


def test_one_disturbance_has_one_cause():
    predicted = simulate(SCHEDULES["gpipe"](4, 8), COST)
    very_last = predicted.label == "0B7"  # nobody waits for it
    # the last rank and, through it, everyone's backwards
    last_rank = (predicted.rank == 3) | (predicted.kind == "B")
    for measured, cause in (
        (moved(predicted, very_last, 0, 300), "durations"),
        (moved(predicted, very_last, 300, 300), "runtime"),
        (moved(predicted, last_rank, 300, 300), "start-up"),
    ):
        why = residual(predicted, measured)
        assert why["total"] == pytest.approx(why[cause]) and why["total"] > 0, cause


def test_words_name_the_largest_cause_first_and_leave_small_ones_out():
    why = {
        "durations": 40.0,
        "messages": 2_000.0,
        "start-up": 500.0,
        "runtime": -1_000.0,
        "total": 1_540.0,
    }
    assert words(why) == (
        "The ranks together idled 1.54 ms more than predicted: messages slower than predicted: "
        "2.00 ms; time between actions (the loss, waits for sends, Python): -1.00 ms; ranks that "
        "began late: 500 us."
    )


def test_the_cost_of_a_message_is_read_off_a_timeline():
    timeline = simulate(SCHEDULES["gpipe"](4, 4), replace(COST, message_us=70.0))
    assert message_us(timeline) == pytest.approx(70)


@pytest.mark.parametrize("name", ["interleaved_1f1b", "interleaved_zb", "zb_h1"])
def test_what_the_runtime_costs_is_read_off_a_timeline(name):
    cost = replace(COST, message_us=90.0, gap_us=30.0, post_us=20.0)
    found = overheads_us(simulate(SCHEDULES[name](3, 6), cost))
    assert found["gap_us"] == pytest.approx(30) and found["post_us"] == pytest.approx(20)
    assert found["message_us"] == pytest.approx(90, abs=20)  # a wait may hide in a pause


def test_one_pause_for_all_is_too_long_where_nothing_is_posted():
    """Why a pause is a line: what is read off one schedule holds for another mix of pauses."""
    cost = replace(COST, message_us=90.0, gap_us=30.0, post_us=60.0)
    seen = simulate(SCHEDULES["interleaved_zb"](2, 2), cost)
    truth = simulate(SCHEDULES["interleaved_zb"](2, 8, 3), cost)
    one_pause = {"message_us": message_us(seen), "gap_us": gap_us(seen)}
    spans_us = {}
    for kind, read in (("line", overheads_us(seen)), ("one", one_pause)):
        again = simulate(SCHEDULES["interleaved_zb"](2, 8, 3), replace(COST, **read))
        spans_us[kind] = abs(again.span_us - truth.span_us)
    assert spans_us["line"] < 0.1 * spans_us["one"]


def test_a_message_is_posted_at_both_its_ends():
    for name in SCHEDULES:
        schedule = SCHEDULES[name](4, 8)
        messages = simulate(schedule, replace(COST, message_us=1.0))
        num_messages = int((messages.lane == "comm").sum())
        last = {order[-1] for order in schedule.orders}
        found = posts(schedule)
        assert sum(found.values()) <= 2 * num_messages <= sum(found.values()) + len(last)


def test_mistakes_are_named():
    one, other = (simulate(SCHEDULES["gpipe"](2, m), COST) for m in (2, 3))
    with pytest.raises(ValueError, match="of one configuration; only one of these holds 0B2"):
        residual(one, other)
    with pytest.raises(ValueError, match="none does"):
        message_us(simulate(SCHEDULES["gpipe"](1, 2), COST))
