"""Phases of a training by hand become the moments of a watch."""

import pytest
import torch

from labkit.measure import memory
from labkit.zero import phases_run

SIZE = 1000


def test_each_phase_is_a_moment_and_nothing_stays_behind():
    backward = torch.Tensor.backward
    with memory.watch() as seen, phases_run.marked(seen):
        weight = torch.nn.Parameter(torch.ones(SIZE))
        optimizer = torch.optim.SGD([weight])
        for _ in range(2):
            (weight * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.Tensor.backward is backward
    found = seen.footprint()
    highest = dict(zip(found.labels, found.totals.tolist(), strict=True))
    assert list(highest) == ["forward", "backward", "update"]
    assert highest["update"] == 8 * SIZE  # the weight and its gradient
    assert highest["backward"] > highest["update"]
    optimizer.step()  # its hooks are gone: nothing is marked any more
    assert seen.footprint().labels == found.labels


def test_an_error_inside_leaves_torch_as_it_was():
    backward = torch.Tensor.backward
    with pytest.raises(KeyError), memory.watch() as seen, phases_run.marked(seen):
        raise KeyError
    assert torch.Tensor.backward is backward
