"""The order that a pipeline finds by itself: laws of any; and the paper's table 5."""

import itertools
import random

import pytest

from labkit.pipeline import schedules
from labkit.pipeline.schedule import Action, validate
from labkit.pipeline.simulation import Cost, bubble_formula, in_flight, own_bubble, simulate
from labkit.pipeline.zero_bubble import automatic

THIRDS = Cost(forward_us=1.0, backward_us=2.0)


def some_costs(num_ranks: int, count: int) -> list[Cost]:
    chance = random.Random(num_ranks)

    def times() -> tuple[float, ...]:
        return tuple(chance.choice((1.0, 2.0, 3.0, 5.0)) for _ in range(num_ranks))

    return [
        Cost(
            forward_us=times(),
            input_us=times(),
            weight_us=times(),
            message_us=chance.choice((0.0, 0.1, 0.5)),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("num_microbatches", [1, 3, 8, 13])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 6])
def test_any_order_can_run_and_keeps_no_more_than_there_is_room_for(num_ranks, num_microbatches):
    for cost, room in itertools.product(some_costs(num_ranks, 6), (1, 1.5, 2, 3)):
        made = automatic(num_ranks, num_microbatches, cost, most_kept=room * num_ranks)
        validate(made)
        every = itertools.product(range(num_ranks), "FIW", range(num_microbatches))
        actions = list(itertools.chain.from_iterable(made.orders))
        assert sorted(actions) == sorted(itertools.starmap(Action, every))
        assert max(in_flight(made)) <= room * num_ranks


def test_activations_that_the_weights_do_not_need_are_freed_by_the_backward_for_the_input():
    tight = automatic(4, 16, THIRDS, most_kept=6)
    freer = automatic(4, 16, THIRDS, most_kept=6, weight_share=0.25)
    assert max(in_flight(tight)) == 6 < max(in_flight(freer))
    kept = dict.fromkeys(range(4), 0.0)
    adds = {"F": 1.0, "I": -0.75, "W": -0.25}
    for rank, order in enumerate(freer.orders):
        for action in order:
            kept[rank] += adds[action.kind]
            assert kept[rank] <= 6


def test_room_for_p_gives_zb_h1s_bubble_and_for_2p_none():
    for p, m in ((2, 6), (4, 12), (8, 24)):
        first = automatic(p, m, THIRDS, most_kept=p)
        same = schedules.zero_bubble_h1(p, m)
        assert own_bubble(simulate(first, THIRDS)) == pytest.approx(
            bubble_formula(same, cost=THIRDS)
        )
        wide = automatic(p, m, THIRDS, most_kept=2 * p)
        assert own_bubble(simulate(wide, THIRDS)) == pytest.approx(0.0, abs=1e-12)


def test_more_room_is_used_where_forwards_are_short():
    """Four warm-ups of ZB-H2's length are over long before the first backward is there."""
    cost = Cost(forward_us=1.0, input_us=3.0, weight_us=1.0)
    fixed = own_bubble(simulate(schedules.zero_bubble_h2(4, 32), cost))
    found = own_bubble(simulate(automatic(4, 32, cost, most_kept=16), cost))
    assert found < 0.5 * fixed


def test_a_rank_without_room_for_p_is_refused_with_what_it_needs():
    with pytest.raises(ValueError, match="most_kept is 4 or more, got 3"):
        automatic(4, 8, most_kept=3)
    with pytest.raises(ValueError, match="weight_share"):
        automatic(4, 8, most_kept=4, weight_share=1.5)
