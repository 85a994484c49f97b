"""Laws of plans: what is wrong with one is named, and what stands where is known at every step."""

from dataclasses import replace

import pytest
from test_algorithms import CHOICES, check_on_numbers

from labkit.collectives.algorithms import plan
from labkit.collectives.plans import Message, Plan, holdings, validate


@pytest.mark.parametrize(("primitive", "algorithm"), CHOICES)
def test_a_corrupted_plan_is_refused(primitive, algorithm):
    """Without any one message, with its other op, or with it a second time, no plan is valid."""
    made = plan(primitive, algorithm, 5)
    for number, step in enumerate(made.steps):
        for place, move in enumerate(step):
            rest = step[:place] + step[place + 1 :]
            other = move._replace(op="add" if move.op == "copy" else "copy")
            for instead in ((rest,), ((*rest, other),), ((*step, move),), (step, (move,))):
                with pytest.raises(ValueError):
                    validate(
                        replace(
                            made, steps=made.steps[:number] + instead + made.steps[number + 1 :]
                        )
                    )


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            [[Message(0, 1, (0,), "add"), Message(0, 2, (0,), "add")]],
            "step 0: a rank sends one message and receives one in a step; 0>2 is one too many",
        ),
        (
            [[Message(0, 1, (0,), "add")], [Message(0, 1, (0,), "add")]],
            r"step 1: 0>1 chunk 0 brings what ranks \[0\] gave a",
        ),
        (
            [[Message(0, 1, (0,), "copy")], [Message(0, 1, (0,), "copy")]],
            r"0>1 chunk 0 brings what ranks \[0\] gave a second",
        ),
        (
            [[Message(0, 1, (0,), "copy")]],
            r"rank 0 ends with chunk 0 of ranks \[0\]; in all_reduce it is of \[0, 1, 2\]",
        ),
        (
            [[Message(0, 3, (0,), "copy")]],
            "from one of 3 ranks to another, to copy or add some of 1 chunks; got Message",
        ),
        ([[Message(0, 0, (0,), "copy")]], "from one of 3 ranks to another"),
        ([[Message(0, 1, (), "copy")]], "some of 1 chunks"),
        ([[Message(0, 1, (1,), "copy")]], "some of 1 chunks"),
        ([[Message(0, 1, (0, 0), "add")]], "some of 1 chunks"),
        ([[Message(0, 1, (0,), "max")]], "copy or add"),
    ],
)
def test_the_first_wrong_thing_is_named(steps, words):
    made = Plan(
        primitive="all_reduce",
        algorithm="mine",
        num_ranks=3,
        num_chunks=1,
        steps=tuple(map(tuple, steps)),
    )
    with pytest.raises(ValueError, match=words):
        validate(made)


def test_a_chunk_cannot_be_sent_before_it_is_there_nor_added_to_nothing():
    made = plan("broadcast", "ring", 3, num_segments=1)
    with pytest.raises(ValueError, match="step 0: 1>2 chunk 0 is sent before it is there"):
        validate(replace(made, steps=made.steps[::-1]))
    with pytest.raises(ValueError, match="step 0: 0>1 chunk 0 is added to nothing: copy it"):
        validate(replace(made, steps=((Message(0, 1, (0,), "add"),),)))


def test_messages_of_a_step_carry_what_stood_there_before_it():
    swap = ((Message(0, 1, (0,), "add"), Message(1, 0, (0,), "add")),)
    made = Plan(primitive="all_reduce", algorithm="swap", num_ranks=2, num_chunks=1, steps=swap)
    validate(made)
    check_on_numbers(made)


def test_holdings_grow_from_a_ranks_own_part_to_the_sum():
    made = plan("all_reduce", "ring", 4)
    every = frozenset(range(4))
    assert holdings(made, 0) == [[frozenset([rank])] * 4 for rank in range(4)]
    assert holdings(made) == holdings(made, 6) == [[every] * 4] * 4
    for num_steps in range(4):
        held = holdings(made, num_steps)
        assert sorted(max(map(len, chunks)) for chunks in held) == [num_steps + 1] * 4
    for rank, chunks in enumerate(holdings(made, 3)):
        assert chunks[rank] == every and chunks.count(every) == 1


def test_a_plan_reads_as_text():
    assert str(plan("all_reduce", "ring", 2)) == (
        "all_reduce, ring: 2 ranks, 2 chunks\nstep 0: 0>1 [1] add, 1>0 [0] add\nstep 1: 0>1 [0] "
        "copy, 1>0 [1] copy"
    )


def test_a_message_is_called_by_its_way_and_its_chunks():
    whole = plan("broadcast", "star", 3)
    assert [whole.label(message) for message in whole.messages()] == ["0>1", "0>2"]
    around = plan("all_reduce", "ring", 3)
    assert around.label(around.steps[0][0]) == "0>1 [2]"
    for chunks, told in (((0, 1), "0, 1"), ((0, 1, 2), "0-2"), ((0, 2, 3), "0, 2, 3")):
        assert around.label(Message(1, 0, chunks, "add")) == f"1>0 [{told}]"
