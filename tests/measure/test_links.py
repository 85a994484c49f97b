"""Laws of stated links: a collective takes its time from when its last rank calls, a message from
when it is sent, nobody's numbers change, and what is not stated goes as it goes."""

import time

import pytest

import labkit as lab
from labkit.measure import traffic

pytestmark = pytest.mark.real
STATED_MS = 60.0
LATE_MS = 100.0
"""A rank's delay before a collective; a receiver's computing while its message is on its way."""
EARLY_MS = 20.0
"""Ranks leave a barrier one after the other."""
SLACK_MS = 30.0
"""For a busy machine; well under what the laws tell apart."""


def calls():
    """Per rank: seconds of an all-reduce that rank 1 begins late; of a message that is sent at
    once and waited for late, and at once; what came; and the pace."""
    import torch
    import torch.distributed as dist

    from labkit.measure import links

    me = dist.get_rank()
    took = {}
    x = torch.full((1000,), float(me + 1))
    y = torch.zeros(1000)
    both_ways = [dist.P2POp(dist.isend, x, 1 - me), dist.P2POp(dist.irecv, y, 1 - me)]
    dist.all_reduce(torch.zeros(1))  # the first call of each kind takes longer
    for work in dist.batch_isend_irecv(both_ways):
        work.wait()
    with links.stated(lambda message: 1e3 * STATED_MS) as pace:
        dist.barrier()
        began_s = time.perf_counter()
        time.sleep(me * LATE_MS / 1e3)
        dist.all_reduce(x)
        took["all_reduce"] = time.perf_counter() - began_s
        for name, busy_ms in (("waited late", LATE_MS), ("waited at once", 0.0)):
            dist.barrier()
            began_s = time.perf_counter()
            works = dist.batch_isend_irecv(both_ways)
            time.sleep(busy_ms / 1e3)
            for work in works:
                work.wait()
            took[name] = time.perf_counter() - began_s
    with links.stated(lambda message: None):
        dist.barrier()
        began_s = time.perf_counter()
        dist.all_reduce(x)
        took["unstated"] = time.perf_counter() - began_s
    return took, x[0].item(), y[0].item(), pace.num_actions


@pytest.mark.alone
@pytest.mark.parametrize("devices", ["cpu", pytest.param("pretend", marks=pytest.mark.again)])
def test_messages_take_their_time_from_when_they_begin(devices):
    run = lab.launch(calls, ranks=2, devices=devices)
    assert {"paced links"} <= set(run.notes)
    for took, sums, came, num_actions in run:
        expected = {
            "all_reduce": LATE_MS + STATED_MS,
            "waited late": LATE_MS,  # it came in the meantime
            "waited at once": STATED_MS,
            "unstated": 0.0,
        }
        for name, stated_ms in expected.items():
            assert stated_ms - EARLY_MS < 1e3 * took[name] < stated_ms + SLACK_MS, name
        assert (sums, came) == (6.0, 3.0)
        assert num_actions == 3  # of the sends the receivers


def counted_by_group():
    """``order``, ``groups`` and ``peers`` of a rank."""
    import torch
    import torch.distributed as dist

    from labkit.measure import traffic

    me = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    x = torch.ones(3)
    with traffic.count() as counted:
        dist.all_reduce(x)
        dist.all_reduce(x, group=pairs[me % 2])
        if me == 0:
            dist.send(x, 2, group=pairs[0])
        if me == 2:
            dist.recv(x, 0, group=pairs[0])
        dist.barrier(group=pairs[me % 2])
    return counted.order, counted.groups, counted.peers


def test_a_call_is_counted_with_the_ranks_of_its_group():
    run = lab.launch(counted_by_group, ranks=4)
    for rank, (order, groups, peers) in enumerate(run):
        pair = (rank % 2, rank % 2 + 2)
        message = {0: [("send", 12)], 2: [("recv", 12)]}.get(rank, [])
        assert order == [("all_reduce", 12), ("all_reduce", 12), *message, ("barrier", 0)]
        assert groups == [(0, 1, 2, 3)] + [pair] * (len(order) - 1)
        assert peers == [(name, 2 - rank) for name, _ in message]


def test_one_block_at_a_time_carries_messages():
    with (
        traffic.carried(lambda message, call: call()),
        pytest.raises(ValueError, match="one block at a time"),
        traffic.carried(lambda message, call: call()),
    ):
        pass


def broken():
    """A carrier's fault reaches whoever called."""
    import torch
    import torch.distributed as dist

    from labkit.measure import links

    def time_us(message):
        raise ValueError(f"no link for {message.name} among {message.ranks}")

    try:
        with links.stated(time_us):
            dist.all_reduce(torch.ones(1))
    except ValueError as error:
        return str(error)


def test_what_a_stated_time_raises_is_raised_where_the_message_is_called():
    assert list(lab.launch(broken, ranks=2)) == ["no link for all_reduce among (0, 1)"] * 2
