"""Causes add up to the whole, and each disturbance is blamed on its own cause."""

from dataclasses import replace

import numpy as np
import pytest

from labkit.pipeline.difference import message_us, residual, words
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
    for message in (0.0, 70.0):
        predicted = simulate(SCHEDULES[name](4, 8), replace(COST, message_us=message))
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


def test_mistakes_are_named():
    one, other = (simulate(SCHEDULES["gpipe"](2, m), COST) for m in (2, 3))
    with pytest.raises(ValueError, match="of one configuration; only one of these holds 0B2"):
        residual(one, other)
    with pytest.raises(ValueError, match="none does"):
        message_us(simulate(SCHEDULES["gpipe"](1, 2), COST))
