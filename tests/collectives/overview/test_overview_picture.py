"""The picture of six collectives shows what the plans do, and what torch does on real ranks."""

import pytest
import torch
from drawn import faults
from torch import distributed as dist

import labkit as lab
from labkit.collectives import Six
from labkit.collectives.overview.picture import COLLECTIVES, before_and_after, six
from labkit.pictures.sketch import Box


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("num_ranks", [2, 4, 6])
def test_every_collective_is_drawn_before_and_after(num_ranks, language):
    drawn = six(num_ranks, language=language)
    assert faults(drawn) == []
    assert len(drawn.table) == 1 + 2 * len(COLLECTIVES)
    striped = [num_ranks, num_ranks**2, num_ranks]  # of reduce, all-reduce, reduce-scatter
    boxes = 2 * len(COLLECTIVES) * num_ranks**2 + (num_ranks - 1) * sum(striped)
    assert len(drawn.only(Box)) == boxes + num_ranks + num_ranks  # and the legend's


def test_the_table_says_which_chunks_a_rank_holds_and_whose():
    rows = {name: cells for name, *cells in six(4, language="en").table}
    assert rows["Broadcast, before"] == ["from rank 0: 0 1 2 3", "", "", ""]
    assert rows["Reduce-scatter, after"][3] == "the sum of all: 3"
    told = "from rank 0: 0, from rank 1: 1, from rank 2: 2, from rank 3: 3"
    assert rows["All-gather, after"] == [told] * 4


def test_it_shows_itself():
    assert "All-to-all" in Six(ranks=3).bundle()["text/plain"]


@pytest.mark.parametrize("ranks", [1, 7, 2.5])
def test_what_can_not_be_drawn_is_told(ranks):
    with pytest.raises(ValueError, match="ranks"):
        Six(ranks=ranks)


def numbers(num_ranks):
    """What torch leaves where: rank r brings 1, 2, ... times 10^r."""
    rank = dist.get_rank()
    mine = torch.arange(1, num_ranks + 1) * 10**rank
    part = torch.empty_like(mine[:1])
    after = {name: mine.clone() for name in COLLECTIVES}
    dist.broadcast(after["broadcast"], src=0)
    dist.reduce(after["reduce"], dst=0)
    dist.all_reduce(after["all_reduce"])
    dist.all_gather_single(after["all_gather"], mine[rank : rank + 1])
    dist.all_to_all_single(after["all_to_all"], mine)
    dist.reduce_scatter_single(part, mine)
    after["reduce_scatter"] = part
    return {name: tensor.tolist() for name, tensor in after.items()}


def drawn_numbers(name, num_ranks, rank):
    """The numbers of the boxes in a rank's column."""
    _, after = before_and_after(name, num_ranks)
    found = []
    for parts, row in filter(None, after[rank]):
        digits = sum(10**each for each in parts)
        found.append((row + 1) * digits)
    return found


@pytest.mark.real
def test_the_picture_is_what_real_ranks_do():
    num_ranks = 4
    run = lab.launch(numbers, num_ranks, ranks=num_ranks)
    for name in COLLECTIVES:
        for rank in range(num_ranks):
            wanted = drawn_numbers(name, num_ranks, rank)
            if wanted:  # on the other ranks a reduce's result is not defined
                assert run[rank][name] == wanted, (name, rank)
        assert any(drawn_numbers(name, num_ranks, rank) for rank in range(num_ranks))
