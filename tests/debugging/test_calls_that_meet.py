"""The picture of calls: a lane per rank, a column per call, a line down those that met; marked the
call that nobody answered, and those that met while they send different things; and the picture of
one all-reduce."""

import pytest
import torch
from torch import distributed as dist

from labkit import launch
from labkit.debugging import broken_run, picture
from labkit.launching.verdicts.outcome import Outcome
from labkit.pictures.painters import mpl, svg, text
from labkit.pictures.sketch import Box, Line

BARRIERS = tuple({"group": "0", "seq": number, "op": "barrier"} for number in range(1, 13))
OTHER = {"group": "1", "seq": 7, "op": "broadcast"}


def drawn(language="en", num_ranks=3):
    """Rank 0 waits in its twelfth call; the others have left after eleven."""
    work = {**BARRIERS[-1], "ranks": [*range(num_ranks)]}
    waiting = Outcome(rank=0, how="stuck", pending=(work,), calls=(*BARRIERS, OTHER))
    gone = [Outcome(rank=rank, how="returned", calls=BARRIERS[:-1]) for rank in range(1, num_ranks)]
    return picture.calls((waiting, *gone), language=language)


def a_call_a_batch():
    for _ in range(10)[dist.get_rank() :: dist.get_world_size()]:
        dist.all_reduce(torch.ones(1))


def test_three_calls_of_real_ranks_meet_and_the_fourth_stands_alone():
    error = broken_run.verdict(a_call_a_batch, ranks=3, backend="gloo", timeout_s=30)
    found = picture.calls(error.outcomes)
    assert found.table == (
        ("", "call 1", "call 2", "call 3", "call 4"),
        ("rank 0", "all_reduce", "all_reduce", "all_reduce", "waits"),
        ("rank 1", "all_reduce", "all_reduce", "all_reduce", "no call"),
        ("rank 2", "all_reduce", "all_reduce", "all_reduce", "no call"),
    )
    assert found.badge == "measured"


def a_loss_after_each_epoch():
    for epoch in range(2):
        for _ in range(3)[(dist.get_rank() + epoch) % 2 :: 2]:
            batch = torch.ones(1)
            dist.all_reduce(batch)
        loss = torch.ones(1)
        dist.all_reduce(loss)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_calls_that_meet_while_they_send_different_things_are_marked(language):
    found = picture.calls(launch(a_loss_after_each_epoch, ranks=2).calls(), language=language)
    assert [row[1:] for row in found.table[1:]] == [
        ("batch", "batch", "loss", "batch", "loss"),
        ("batch", "loss", "batch", "batch", "loss"),
    ]
    marked = [box.texts[0] for box in found.only(Box) if box.marked]
    assert sorted(marked) == ["batch", "batch", "loss", "loss"]
    assert len({(box.texts, box.colour) for box in found.only(Box)}) == 2
    assert len(found.only(Line)) == 5


def test_of_a_run_without_a_collective_nothing_is_drawn():
    with pytest.raises(ValueError, match="called a collective"):
        picture.calls([[], []])


def test_the_call_that_waits_is_marked_and_a_line_joins_those_that_met():
    boxes = drawn().only(Box)
    assert [box.texts for box in boxes if box.marked] == [("waits",)]
    assert [box.texts for box in boxes if not box.colour] == [("no call",)] * 2
    assert len(drawn().only(Line)) == 2 * (picture.MOST_CALLS - 1)


def test_only_the_last_calls_of_the_first_ranks_of_that_group_are_drawn():
    table = drawn(num_ranks=20).table
    assert table[0][1:] == tuple(f"call {number}" for number in range(5, 13))
    assert [row[0] for row in table[1:]] == [f"rank {rank}" for rank in range(picture.MOST_LANES)]
    assert "broadcast" not in str(table)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_painter_takes_it(language):
    found = drawn(language)
    assert "rank 1" in text.render(found) and svg.html(found).count("<svg") == 1
    assert mpl.png(found)[:4] == b"\x89PNG"
    assert ("没有调用" in str(found.table)) == (language == "zh")


def test_where_no_rank_waits_nothing_is_drawn():
    with pytest.raises(ValueError, match="here the ranks ended so: failed, returned"):
        picture.calls((Outcome(rank=0, how="failed"), Outcome(rank=1, how="returned")))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_all_reduce_has_an_arrow_into_the_call_and_one_out_of_it_for_each_rank(language):
    found = picture.all_reduced([0, 1.5, -2], (-0.5,) * 3, language=language)
    assert [row[1:] for row in found.table[1:]] == [("0", "1.5", "-2"), ("-0.5",) * 3]
    boxes = [box.texts for box in found.only(Box)]
    assert boxes.count(("all_reduce",)) == 1 and len(boxes) == 7
    assert all(line.arrow for line in found.only(Line)) and len(found.only(Line)) == 6
    assert ("之前" in str(found.table)) == (language == "zh")
    assert svg.html(found).count("<svg") == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([1] * 9, [9] * 9), ([1, 2], [3]), ([1, float("nan")], [1, 1]), (["a"], [1])],
)
def test_what_is_no_all_reduce_is_not_drawn(before, after):
    with pytest.raises(ValueError, match=r"rank|number"):
        picture.all_reduced(before, after)
