"""Laws of a schedule as text, and of the faults that validate finds in one."""

import re
from dataclasses import replace

import pytest

from labkit.pipeline import schedules
from labkit.pipeline.schedule import Action, Schedule, parse, phases, validate, walk


def edited(original: Schedule, rank: int, edit) -> Schedule:
    """The schedule with ``edit`` applied to the list of one rank's actions, as a learner would get
    it wrong."""
    orders = [list(order) for order in original.orders]
    edit(orders[rank])
    return replace(original, orders=tuple(map(tuple, orders)))


def fault(wrong: Schedule) -> str:
    with pytest.raises(ValueError) as raised:
        validate(wrong)
    return str(raised.value)


def marked(text: str) -> list[str]:
    return re.findall(r">(\S+)<", text)


def test_an_action_reads_as_it_prints():
    assert str(Action(2, "F", 0)) == "2F0" and Action.parse("12W345") == Action(12, "W", 345)
    for wrong in ("", "F0", "2X0", "2F", "2F0B1", "-1F0"):
        with pytest.raises(ValueError, match="2F0"):
            Action.parse(wrong)


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_a_schedule_reads_as_it_prints(name):
    for num_ranks, num_microbatches in ((1, 1), (2, 4), (4, 8), (3, 3)):
        original = schedules.SCHEDULES[name](num_ranks, num_microbatches)
        assert parse(str(original)) == original


def test_bare_lines_are_a_schedule_too():
    bare = parse("rank 0: 0F0 0F1 0B0 0B1\n\n  rank 1: 1F0 1B0 1F1 1B1")
    assert bare.name == "custom"
    assert bare.num_ranks == bare.num_stages == bare.num_microbatches == 2
    assert bare.stage_rank == (0, 1) and bare.orders == schedules.one_f_one_b(2, 2).orders
    validate(bare)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0F0 0B0",
        "rank 1: 0F0 0B0",
        "rank 0: 0F0 0G0",
        "mine: 2 ranks, 2 stages, 1 microbatches\nrank 0: 0F0 0B0",
    ],
)
def test_text_of_another_form_is_refused(text):
    with pytest.raises(ValueError):
        parse(text)


def test_warm_up_steady_state_and_cooldown_of_the_textbook():
    assert phases(schedules.gpipe(4, 8)) == [(8, 0, 8)] * 4
    assert phases(schedules.one_f_one_b(4, 8)) == [(4, 8, 4), (3, 10, 3), (2, 12, 2), (1, 14, 1)]
    assert phases(schedules.one_f_one_b(4, 2)) == [(2, 0, 2), (2, 0, 2), (2, 0, 2), (1, 2, 1)]
    for make in schedules.SCHEDULES.values():
        made = make(3, 6)
        assert [sum(counts) for counts in phases(made)] == [len(order) for order in made.orders]


def test_walk_never_runs_an_action_before_what_it_needs_and_runs_all():
    made = schedules.zbv(4, 9)
    done = set()
    for rank, action, key, need in walk(made):
        assert need is None or need in done
        assert made.stage_rank[action.stage] == rank
        done.add(key)
    assert len(done) == sum(map(len, made.orders)) == 4 * 2 * 9 * 3


def test_a_backward_before_its_own_forward_is_marked():
    def swap(order):
        order[0], order[1] = order[1], order[0]

    text = fault(edited(schedules.one_f_one_b(4, 8), 3, swap))
    assert marked(text) == ["3B0"] and "needs 3F0" in text


def test_a_weight_backward_before_its_input_backward_is_marked():
    text = fault(parse("rank 0: 0F0 0W0 0I0"))
    assert marked(text) == ["0W0"] and "needs 0I0" in text


def test_a_missing_action_is_named_and_its_place_marked():
    for made, action in (
        (schedules.one_f_one_b(4, 8), "1B1"),
        (schedules.gpipe(2, 3), "1F2"),
        (schedules.zero_bubble_h1(3, 6), "1W5"),
        (schedules.zbv(2, 4), "0I3"),
    ):
        rank = made.stage_rank[int(action[0])]
        text = fault(
            edited(made, rank, lambda order, gone=action: order.remove(Action.parse(gone)))
        )
        assert f" {action}" in text.splitlines()[0] and marked(text)


def test_a_repeated_action_is_marked_where_it_is_repeated():
    text = fault(
        edited(schedules.one_f_one_b(4, 8), 1, lambda order: order.insert(9, Action(1, "F", 2)))
    )
    assert marked(text) == ["1F2"] and "step 9" in text
    assert marked(
        fault(edited(schedules.gpipe(2, 2), 1, lambda order: order.append(Action(1, "W", 0))))
    ) == ["1W0"]


def test_an_action_of_another_rank_or_outside_the_counts_is_marked():
    text = fault(edited(schedules.gpipe(2, 2), 0, lambda order: order.insert(1, Action(1, "F", 0))))
    assert marked(text) == ["1F0"] and "belongs to rank 1" in text
    for outside in (Action(2, "F", 0), Action(0, "F", 2)):
        text = fault(edited(schedules.gpipe(2, 2), 0, lambda order, new=outside: order.append(new)))
        assert marked(text) == [str(outside)] and "2 stages and 2 microbatches" in text


def test_a_deadlock_names_the_ranks_that_wait_for_each_other():
    depth_first = "rank 0: 0F0 0B0 0F1 0B1\nrank 1: 1F0 1F1 1B0 1B1"
    text = fault(parse(depth_first))
    assert marked(text) == ["0B0", "1F1"]
    assert "rank 0 stands at 0B0, which needs 1B0; rank 1 stands at 1F1, which needs 0F1" in text


def test_the_message_is_a_rank_by_step_grid():
    text = fault(parse("rank 0: 0F0 0F1 0B1 0B0\nrank 1: 1F0 1F1 1B0"))
    assert text.splitlines() == [
        "rank 1 lacks 1B1",
        "  step    0    1    2    3  4",
        "rank 0  0F0  0F1  0B1  0B0",
        "rank 1  1F0  1F1  1B0  >?<",
    ]


def test_a_large_grid_is_cut_to_what_lies_near_the_fault():
    large = edited(schedules.one_f_one_b(64, 256), 40, lambda order: order.insert(300, order[100]))
    text = fault(large)
    assert marked(text) and len(text.splitlines()) < 15 and max(map(len, text.splitlines())) < 150


def test_every_swap_of_neighbours_that_breaks_a_need_is_caught_and_no_other():
    """Brute force: an order runs exactly if some ranks' heads can always go on."""
    original = schedules.one_f_one_b(3, 3)
    verdicts = []
    for rank, order in enumerate(original.orders):
        for step in range(len(order) - 1):

            def swap(actions, at=step):
                actions[at], actions[at + 1] = actions[at + 1], actions[at]

            swapped = edited(original, rank, swap)
            verdicts.append(runs(swapped))
            if verdicts[-1]:
                validate(swapped)
            else:
                fault(swapped)
    assert True in verdicts and False in verdicts


def runs(candidate: Schedule) -> bool:
    heads = [0] * candidate.num_ranks
    done = set()
    going = True
    while going:
        going = False
        for rank, order in enumerate(candidate.orders):
            while heads[rank] < len(order) and able(order[heads[rank]], done, candidate.num_stages):
                done.add(order[heads[rank]])
                heads[rank] += 1
                going = True
    return heads == [len(order) for order in candidate.orders]


def able(action: Action, done: set, num_stages: int) -> bool:
    stage, kind, microbatch = action
    if kind == "F":
        return stage == 0 or (stage - 1, "F", microbatch) in done
    own = (stage, "F", microbatch) in done
    return own and (stage == num_stages - 1 or (stage + 1, "B", microbatch) in done)
