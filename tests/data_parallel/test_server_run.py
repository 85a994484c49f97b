"""Workers at a stated pace against a parameter server: what a launch returns and records."""

import pytest
import torch
import torch.distributed as dist

from labkit.data_parallel import server_run

pytestmark = pytest.mark.alone  # reads the clocks of paced runs


def serve(weights, total, bound):
    """Answers each gradient but the last at once; ``bound`` is sent back as what came late."""
    message = server_run.stamped(weights, 0)
    for version in range(1, total):
        worker = dist.recv(message)
        dist.send(server_run.stamped(weights, version), worker)
    return [bound] * total, [dist.recv(message)]


def test_a_message_is_the_values_and_a_version():
    assert server_run.stamped(torch.eye(2), 7).tolist() == [1, 0, 0, 1, 7]


def test_workers_step_at_the_stated_pace_and_nothing_before_the_clock_is_recorded():
    run = server_run.launch(serve, 6, 2)
    assert list(run[1:]) == [None] * 3
    assert {key: run[0][key] for key in ("mean lateness", "latest")} == {
        "mean lateness": 2,
        "latest": 2,
    }
    line = run.timeline()
    took_us = {rank: line.select((line.rank == rank) & (line.lane == "compute")) for rank in (1, 3)}
    first = {rank: part.end_us[0] - part.start_us[0] for rank, part in took_us.items()}
    assert server_run.FORWARD_US <= first[1] < server_run.SLOW * server_run.FORWARD_US <= first[3]
    assert not (line.select(line.rank == 0).lane == "compute").any()


@pytest.mark.parametrize(("total", "bound"), [(0, 1), (3, -1)])
def test_a_launch_that_can_not_be_is_refused(total, bound):
    with pytest.raises(ValueError, match="is a whole number from"):
        server_run.launch(serve, total, bound)
