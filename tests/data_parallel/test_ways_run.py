"""Ways side by side: what a row says of each."""

import pytest
import torch
import torch.distributed as dist

import labkit as lab
from labkit import data_parallel
from labkit.measure import traffic


def summed(calls):
    """A module of two values whose gradient is summed over the ranks ``calls`` times."""
    net = torch.nn.Linear(2, 1, bias=False)
    net.weight.grad = torch.ones(1, 2)
    with traffic.count() as counted:
        for _ in range(calls):
            dist.all_reduce(net.weight.grad)
    return net, counted


def once():
    return summed(1)


def twice():
    return summed(2)


def test_rows_count_calls_and_tell_how_far_gradients_are_from_the_first_way():
    one, two = data_parallel.compare_ways(once, twice)
    assert (one["way"], one["all-reduces"], one["from once"]) == ("once", 1, 0)
    assert (two["way"], two["all-reduces"], two["from once"]) == ("twice", 2, 2)
    assert two["wire_bytes"] > one["wire_bytes"] > 0
    assert "from once" in str(lab.table([one, two]))


def test_ways_are_taken_through_another_function():
    (row,) = data_parallel.compare_ways(once, through=lambda way: (*way()[:1], summed(3)[1]))
    assert row["way"] == "once" and row["all-reduces"] == 3


@pytest.mark.parametrize(("ways", "ranks"), [((), 2), ((once,), 0)])
def test_what_can_not_be_compared_is_refused(ways, ranks):
    with pytest.raises(ValueError, match=r"none|is a whole number from"):
        data_parallel.compare_ways(*ways, ranks=ranks)
