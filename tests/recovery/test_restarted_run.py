"""How long torchrun takes to come back, in parts, from a real run and from its log."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.recovery import checkpoint, restart_s, restarted_run


def build():
    net = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    return net, torch.optim.Adam(net.parameters())


def train(folder, die_at=None):
    net, optimizer = build()
    first = 0
    if checkpoint.checkpoints(folder):
        first = checkpoint.load(folder, net, optimizer)["step"]
    for step in range(first, 6):
        if step == die_at and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        net(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        if step == 2:
            checkpoint.save(folder, step + 1, net, optimizer)


def test_a_real_restart_has_five_parts(tmp_path):
    parts_s = restart_s(train, tmp_path / "restarted", 5, needs=(build,))
    assert len(parts_s) == 5
    assert min(parts_s) > 0


LOG = """warning: 1
killed 10.0
step 20
ends 17.5 18.0 18.5
again 11.0 14.0 15.0 17.0
"""


def test_the_parts_of_a_log():
    assert restarted_run._parts_s(LOG, 22) == [1.0, 3.0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize("log", ["", "killed 10.0\n", "ends 1 2\nagain 11.0 14.0 15.0\n"])
def test_a_run_without_a_kill_or_a_load_is_refused(log):
    with pytest.raises(ValueError, match="two starts are compared"):
        restarted_run._parts_s(log, 22)
