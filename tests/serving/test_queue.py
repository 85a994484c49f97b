"""The queue's laws: nobody is forgotten, a slot holds one at a time, a single one is a counter, and
beyond its capacity the queue grows."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.serving import queue
from labkit.serving.load import Load
from labkit.serving.queue import Cost, Request

POLICIES = st.sampled_from(sorted(queue.POLICIES))
COSTS = st.builds(Cost, *(st.floats(1.0, 1e4) for _ in range(3)))


@st.composite
def arrivals(draw):
    gaps = draw(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=12))
    at_us = np.cumsum(gaps).tolist()
    return [Request(n, each, 4, draw(st.integers(1, 9))) for n, each in enumerate(at_us)]


@given(arrivals(), POLICIES, st.integers(1, 5), COSTS, st.floats(0.0, 1e5))
@settings(max_examples=60)
def test_everybody_is_served_once_in_time_and_no_slot_holds_two(
    coming, policy, slots, cost, patience_us
):
    visits = queue.simulate(coming, queue.POLICIES[policy], slots, cost, patience_us)
    assert sorted(each.number for each in visits) == [each.number for each in coming]
    for each in visits:
        assert list(each[3:]) == sorted(each[3:])
        steps = coming[each.number].output - 1
        assert each.first_us - each.admitted_us == pytest.approx(cost.prompt_us(4))
        assert each.last_us - each.first_us >= 0.999 * steps * cost.decode_us(1)
    for slot in range(slots):
        mine = sorted((each for each in visits if each.slot == slot), key=lambda v: v.admitted_us)
        for before, after in itertools.pairwise(mine):
            assert before.left_us <= after.admitted_us


@given(arrivals(), st.integers(1, 5), COSTS)
@settings(max_examples=40)
def test_who_came_first_enters_first_and_continuous_holds_nobody(coming, slots, cost):
    for name, policy in queue.POLICIES.items():
        visits = sorted(queue.simulate(coming, policy, slots, cost))
        entered = [each.admitted_us for each in visits]
        assert entered == sorted(entered)
        if name == "continuous":
            longer = [each for each in visits if each.output > 1]  # one token: at the next step
            assert all(each.left_us == pytest.approx(each.last_us) for each in longer)


def test_one_slot_is_a_queue_at_a_counter():
    """Service times are known, so each begins at the later of its coming and the one before's
    end."""
    cost = Cost(10.0, 100.0, 5.0)
    coming = queue.requests(20, rate=1500.0, prompt=3, output=4, spread=0.7, seed=3)
    free_us = 0.0
    visits = sorted(queue.simulate(coming, queue.continuous, 1, cost))
    for request, visit in zip(coming, visits, strict=True):
        begins_us = max(free_us, request.arrives_us)
        free_us = begins_us + cost.prompt_us(3) + (request.output - 1) * cost.decode_us(1)
        assert visit.left_us == pytest.approx(free_us)


def test_alike_answers_that_come_together_are_served_alike():
    coming = [Request(n, 0.0, 4, 6) for n in range(8)]
    cost = Cost(10.0, 100.0, 5.0)
    ends = []
    for policy in queue.POLICIES.values():
        ends.append([each.left_us for each in sorted(queue.simulate(coming, policy, 4, cost))])
    assert ends[0] == pytest.approx(ends[1])


def test_a_poisson_process_has_its_rate_and_the_lengths_their_mean():
    coming = queue.requests(4000, rate=50.0, prompt=8, output=40, spread=0.8, seed=1)
    gaps = np.diff([each.arrives_us for each in coming])
    assert gaps.mean() == pytest.approx(1e6 / 50, rel=0.05)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # of an exponential
    lengths = np.array([each.output for each in coming])
    assert lengths.mean() == pytest.approx(40, rel=0.05)
    assert np.log(lengths).std() == pytest.approx(0.8, rel=0.05)
    other = queue.requests(4000, rate=5.0, prompt=8, output=40, spread=0.8, seed=1)
    assert [each.output for each in other] == lengths.tolist()


def test_patience_fills_a_batch_and_ends():
    cost = Cost(10.0, 100.0, 5.0)
    coming = [Request(0, 0.0, 1, 3), Request(1, 50.0, 1, 3), Request(2, 5000.0, 1, 3)]
    at_once = sorted(queue.simulate(coming, queue.static, 2, cost))
    waited = sorted(queue.simulate(coming, queue.static, 2, cost, 1000.0))
    late = sorted(queue.simulate(coming, queue.static, 2, cost, 20.0))
    assert at_once[1].admitted_us > waited[1].admitted_us == waited[0].first_us
    assert waited[0].admitted_us == 50.0
    assert late[0].admitted_us == 20.0
    assert waited[2].admitted_us == 5000.0  # the last one: nobody comes any more


def test_below_capacity_the_queue_is_served_and_beyond_it_grows():
    load = Load(requests=400, output=10, seed=2)
    means = []
    for share in (0.3, 0.8, 1.6):
        served = load.but(rate=share * load.capacity()).predict()
        means.append(served.spent_us()["queue"])
    assert means[0] < means[1] / 3
    late = load.but(rate=1.6 * load.capacity()).predict()
    waits = [each.admitted_us - each.arrives_us for each in late.visits]
    assert np.mean(waits[-50:]) > 4 * np.mean(waits[50:100])  # it grows as they come
    assert len(late) / (late.span_us / 1e6) == pytest.approx(load.capacity(), rel=0.1)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (lambda waiting, owed, slots: ([], []), "did neither"),
        (lambda waiting, owed, slots: (waiting, []), "finds a slot"),
        (lambda waiting, owed, slots: (waiting[:1] * 2, []), "named once"),
        (lambda waiting, owed, slots: ([99], []), "who is admitted waits"),
        (lambda waiting, owed, slots: (waiting[: slots - len(owed)], list(owed)), "owes no token"),
    ],
)
def test_a_policy_that_can_t_be_is_told(policy, told):
    coming = [Request(n, 0.0, 2, 3) for n in range(3)]
    with pytest.raises(ValueError, match=told):
        queue.simulate(coming, policy, 2, Cost(1.0, 1.0, 1.0))
