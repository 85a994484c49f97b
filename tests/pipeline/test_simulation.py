"""Laws of simulated time: the closed forms of the literature, dependencies, messages, memory,
linear cost."""

import time
from dataclasses import replace

import numpy as np
import pytest

from labkit.pipeline import schedules
from labkit.pipeline.schedule import Action, parse
from labkit.pipeline.simulation import Cost, bubble_formula, in_flight, own_bubble, simulate
from labkit.timeline import Timeline, bubble

THIRDS = Cost(forward_us=1.0, backward_us=2.0, input_us=1.0, weight_us=1.0)


def times(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """Start and end of every compute span, by label."""
    compute = timeline.select(timeline.lane == "compute")
    spans = zip(compute.start_us.tolist(), compute.end_us.tolist(), strict=True)
    return dict(zip(compute.label.tolist(), spans, strict=True))


def idle_us(timeline: Timeline, work_us: float) -> float:
    return timeline.span_us - work_us


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("backward_us", [0.0, 0.3, 1.0, 2.0, 7.5])
def test_the_bubble_of_gpipe_and_1f1b_is_the_textbooks(name, backward_us):
    """(p-1)/(m+p-1) of all time and (p-1)/m of the ideal, whatever the ratio of backward to
    forward."""
    cost = Cost(forward_us=1.0, backward_us=backward_us)
    for p in (1, 2, 3, 5, 8):
        for m in (1, 2, 4, 9, 16):
            made = schedules.SCHEDULES[name](p, m)
            timeline = simulate(made, cost)
            assert bubble(timeline) == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
            assert bubble(timeline, "ideal") == pytest.approx((p - 1) / m, abs=1e-12)
            assert bubble_formula(made, "total", cost) == pytest.approx(bubble(timeline), abs=1e-12)
            assert bubble_formula(made, "ideal", cost) == pytest.approx(
                bubble(timeline, "ideal"), abs=1e-12
            )


@pytest.mark.parametrize(
    "cost",
    [
        Cost(),
        Cost(forward_us=10.0, backward_us=7.0),
        THIRDS,
        Cost(forward_us=5.0, backward_us=4.0, input_us=3.0, weight_us=1.0),
    ],
)
def test_every_closed_form_is_exact_where_it_is_given(cost):
    compared = set()
    for name, make in schedules.SCHEDULES.items():
        for p, m in ((1, 1), (2, 2), (3, 9), (4, 4), (4, 8), (5, 3)):
            made = make(p, m)
            formula = bubble_formula(made, "total", cost)
            if formula is not None:
                counted = own_bubble if name in ("zb_h2", "zbv") else bubble
                assert counted(simulate(made, cost)) == pytest.approx(formula, abs=1e-12), (
                    name,
                    p,
                    m,
                )
                compared.add(name)
    assert compared - {"zbv"} == {"naive", "gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2"}
    assert ("zbv" in compared) == (len(set(cost.table(1)[kind][0] for kind in "FIW")) == 1)


def test_the_naive_bubble_does_not_fall_with_microbatches():
    for m in (1, 4, 32):
        assert bubble(simulate(schedules.naive(4, m))) == pytest.approx(0.75)


def test_1f1b_does_not_shrink_the_bubble_but_the_memory():
    gpipe = schedules.gpipe(4, 16)
    one_f_one_b = schedules.one_f_one_b(4, 16)
    assert bubble(simulate(gpipe)) == pytest.approx(bubble(simulate(one_f_one_b)))
    assert in_flight(gpipe).tolist() == [16] * 4 and in_flight(one_f_one_b).tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize("num_chunks", [1, 2, 3])
def test_interleaving_divides_the_ideal_bubble_by_the_chunks(num_chunks):
    made = schedules.interleaved_1f1b(4, 8, num_chunks)
    assert bubble(simulate(made), "ideal") == pytest.approx(3 / (num_chunks * 8))
    assert bubble_formula(made, "ideal") == pytest.approx(3 / (num_chunks * 8))


def test_the_bubble_of_zb_h1_is_a_third_of_1f1bs_when_forward_input_and_weight_take_as_long():
    """Qi et al. 2023, section 2.1; in general (p-1)(F+I-W), while W is no longer than F and I."""
    for p, m in ((2, 2), (4, 8), (6, 7)):
        assert idle_us(simulate(schedules.zero_bubble_h1(p, m), THIRDS), m * 3.0) == pytest.approx(
            (p - 1) * 1.0
        )
        assert idle_us(simulate(schedules.one_f_one_b(p, m), THIRDS), m * 3.0) == pytest.approx(
            (p - 1) * 3.0
        )
    uneven = Cost(forward_us=3.0, input_us=4.0, weight_us=2.0)
    assert idle_us(simulate(schedules.zero_bubble_h1(4, 8), uneven), 8 * 9.0) == pytest.approx(
        3 * (3.0 + 4.0 - 2.0)
    )
    assert (
        bubble_formula(schedules.zero_bubble_h1(4, 8), cost=replace(uneven, weight_us=3.5)) is None
    )


def test_the_bubble_of_zb_h2_is_none_when_forward_input_and_weight_take_as_long():
    """Qi et al. 2023, section 2.2; in general (p-1)(F+I-2W), while W is no longer than F and I."""
    uneven = Cost(forward_us=3.0, input_us=4.0, weight_us=2.0)
    for p, m in ((2, 3), (4, 8), (6, 11)):
        made = schedules.zero_bubble_h2(p, m)
        assert own_bubble(simulate(made, THIRDS)) == pytest.approx(0.0, abs=1e-12)
        idle = 3.0 * (p - 1)
        assert own_bubble(simulate(made, uneven)) == pytest.approx(idle / (9 * m + idle))
    assert bubble_formula(schedules.zero_bubble_h2(4, 6), cost=THIRDS) is None
    assert bubble_formula(made, cost=replace(uneven, weight_us=3.5)) is None


def test_an_own_bubble_leaves_out_the_beginning_and_the_end_of_others():
    line = simulate(schedules.gpipe(2, 1), Cost(forward_us=1.0, backward_us=2.0))
    assert own_bubble(line) == bubble(line) == 0.5
    assert own_bubble(line.select(line.rank == 1)) == 0.0
    with pytest.raises(ValueError, match="a share of time"):
        own_bubble(simulate(schedules.gpipe(2, 1), Cost(forward_us=0.0)))


def test_zbv_is_idle_only_for_its_staggered_start():
    """No rank waits between its first and its last action when F = I = W; rank r starts r forwards
    late."""
    made = schedules.zbv(4, 8)
    timeline = simulate(made, THIRDS)
    for rank in range(4):
        mine = timeline.select(timeline.rank == rank)
        assert mine.start_us.min() == rank and mine.span_us == 2 * 8 * 3
    assert bubble_formula(made, cost=THIRDS) == 0.0
    assert bubble(timeline) == pytest.approx(3 / (2 * 8 * 3 + 3))
    assert bubble_formula(made, cost=Cost(forward_us=2.0, backward_us=2.0)) is None


def test_no_closed_form_where_the_literature_gives_none():
    assert bubble_formula(schedules.interleaved_zero_bubble(4, 8)) is None
    assert bubble_formula(schedules.interleaved_1f1b(4, 10)) is None
    assert bubble_formula(schedules.zbv(4, 4), cost=THIRDS) is None
    assert bubble_formula(schedules.gpipe(2, 4), cost=Cost(forward_us=(1.0, 2.0))) is None
    assert bubble_formula(replace(schedules.gpipe(2, 4), name="mine")) is None
    with pytest.raises(ValueError, match="total"):
        bubble_formula(schedules.gpipe(2, 4), "all")


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_no_action_starts_before_what_it_needs_has_arrived_and_no_rank_does_two_at_once(name):
    made = schedules.SCHEDULES[name](4, 8)
    cost = Cost(forward_us=tuple(1.0 + s for s in range(made.num_stages)), message_us=0.7)
    at = times(simulate(made, cost))
    assert len(at) == sum(map(len, made.orders))
    for rank, order in enumerate(made.orders):
        free = 0.0
        for action in order:
            arrivals = [free]
            for need in needed(action, made.num_stages):
                kind = need.kind if str(need) in at else "B"
                late = 0.0 if made.stage_rank[need.stage] == rank else 0.7
                arrivals.append(at[str(need._replace(kind=kind))][1] + late)
            assert at[str(action)][0] == pytest.approx(max(arrivals))
            free = at[str(action)][1]


def needed(action: Action, num_stages: int) -> list[Action]:
    """All that an action needs by the mathematics of back-propagation, redundant needs included."""
    stage, kind, microbatch = action
    if kind == "W":
        return [Action(stage, "I", microbatch)]
    if kind == "F":
        return [Action(stage - 1, "F", microbatch)] if stage else []
    later = [Action(stage + 1, "I", microbatch)] if stage + 1 < num_stages else []
    return [Action(stage, "F", microbatch), *later]


def test_a_message_delays_its_consumer_and_not_its_sender():
    at = times(
        simulate(schedules.gpipe(2, 2), Cost(forward_us=10.0, backward_us=20.0, message_us=3.0))
    )
    assert at["0F0"] == (0.0, 10.0) and at["0F1"] == (10.0, 20.0)
    assert at["1F0"] == (13.0, 23.0) and at["1F1"] == (23.0, 33.0)
    assert at["1B0"] == (33.0, 53.0) and at["0B0"] == (56.0, 76.0)


def test_messages_stand_on_the_comm_lane_of_their_sender():
    timeline = simulate(schedules.gpipe(2, 1), Cost(forward_us=10.0, message_us=(3.0, 4.0)))
    sent = timeline.select(timeline.lane == "comm")
    assert (
        sent.label.tolist() == ["0F0", "1B0"]
        and sent.rank.tolist() == [0, 1]
        and set(sent.kind) == {"send"}
    )
    assert (sent.end_us - sent.start_us).tolist() == [3.0, 4.0]
    assert timeline.origin == "simulated" and not len(
        simulate(schedules.gpipe(2, 1)).select(np.array([False] * 4))
    )


def test_neighbours_on_one_rank_send_no_message():
    """At the bottom of the V, the last rank hands stage p-1's output to stage p itself."""
    at = times(simulate(schedules.zbv(2, 4), Cost(forward_us=1.0, message_us=5.0)))
    assert at["1F0"][1] == at["2F0"][0]
    alone = simulate(schedules.zbv(1, 4), Cost(message_us=5.0))
    assert set(alone.lane) == {"compute"} and bubble(alone) == 0.0


def test_defaults_of_cost():
    assert Cost(forward_us=10.0).table(1) == {
        "F": [10.0],
        "B": [20.0],
        "I": [10.0],
        "W": [10.0],
        "message": [0.0],
    }
    uneven = Cost(forward_us=(1.0, 3.0), backward_us=4.0, weight_us=(1.0, 2.0), message_us=5)
    assert uneven.table(2) == {
        "F": [1.0, 3.0],
        "B": [4.0, 4.0],
        "I": [2.0, 2.0],
        "W": [1.0, 2.0],
        "message": [5.0] * 2,
    }


@pytest.mark.parametrize(
    "cost", [Cost(forward_us=(1.0, 2.0, 3.0)), Cost(forward_us=-1.0), Cost(weight_us=(1.0, -2.0))]
)
def test_a_cost_of_wrong_length_or_below_zero_is_refused(cost):
    with pytest.raises(ValueError, match="2 stages"):
        simulate(schedules.gpipe(2, 2), cost)


def test_an_order_that_deadlocks_is_refused_with_the_grid():
    with pytest.raises(ValueError, match="deadlock") as raised:
        simulate(parse("rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1F1 1B0 1B1"))
    assert ">0B0<" in str(raised.value) and "rank 1" in str(raised.value)


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_in_flight_reads_the_same_from_order_and_from_time(name):
    made = schedules.SCHEDULES[name](4, 8)
    timeline = simulate(made, Cost(message_us=100.0))
    shuffled = timeline.select(np.random.default_rng(0).permutation(len(timeline)))
    assert in_flight(timeline).tolist() == in_flight(made).tolist() == in_flight(shuffled).tolist()
    assert in_flight(made).dtype == np.int64 and in_flight(made).shape == (4,)


@pytest.mark.a_few(1)
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_64_stages_and_1024_microbatches_simulate_in_ten_times_the_second_they_should_take(name):
    made = schedules.SCHEDULES[name](64, 1024)
    began = time.process_time()
    timeline = simulate(made)
    assert time.process_time() - began < 10.0
    assert len(timeline) == 2 * 64 * 1024 and bubble(timeline) == pytest.approx(63 / (1024 + 63))


def test_cost_grows_linearly_in_actions():
    """Eight times the actions within twenty-four times the time: quadratic would take
    sixty-four."""

    def seconds(num_microbatches: int) -> float:
        made = schedules.one_f_one_b(16, num_microbatches)
        took = []
        for _ in range(3):
            began = time.process_time()
            simulate(made)
            took.append(time.process_time() - began)
        return min(took)

    assert seconds(1024) < 24 * seconds(128)
