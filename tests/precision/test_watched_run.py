"""What the chapter's trainings count beside their work."""

import pytest
import torch

import labkit as lab
from labkit.precision import watched_run as watched


def test_still_counts_only_weights_that_got_a_gradient():
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0]).bfloat16().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    still = watched.Still(optimizer)
    weight.grad = torch.tensor([0.0, 1e-4, 1e-4, 0.5]).bfloat16()
    optimizer.step()
    reached, never = still.shares()
    assert reached == 0.75 and never == pytest.approx(2 / 3)


def test_still_forgets_no_step_and_wants_one():
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    still = watched.Still(optimizer)
    with pytest.raises(ValueError, match="take a step first"):
        still.shares()
    optimizer.step()  # without a gradient
    for grad in ([1.0, 0.0], [-1.0, 0.0]):
        weight.grad = torch.tensor(grad)
        optimizer.step()
    assert still.shares() == (0.5, 1.0)  # there and back again


def test_moved_says_so_once():
    weights = [torch.zeros(3), torch.zeros(2)]
    moved = watched.Moved(weights)
    assert not moved.now()
    weights[1][0] = 1.0
    assert moved.now() and not moved.now()


def peaks():
    """The peaks of a step that makes 4 MB in its forward and 2 MB of moments in its update."""
    weight = torch.zeros(250_000, requires_grad=True)
    found = watched.Peaks(optimizer := torch.optim.Adam([weight], foreach=False))
    (torch.ones(4, 250_000) * weight).sum().backward()
    optimizer.step()
    return found.before_bytes, found.update_bytes


def test_peaks_are_told_apart():
    before_bytes, update_bytes = lab.launch(peaks, ranks=1, devices=lab.pretend())[0]
    assert before_bytes > update_bytes >= 4e6
    assert before_bytes >= 8e6


def test_runs_beside_a_base():
    base = [(torch.tensor([3.0, 2.0]), 1.0, 0.0), (torch.tensor([3.0, 1.0]), 1.0, 0.0)]
    other = [(torch.tensor([3.0, 2.5]), 0.5, 0.25), (torch.tensor([5.0, 1.5]), 1.0, 0.75)]
    lines, rows = watched.beside({"base": base, "other": other}, "base")
    assert lines == {"other": {0: 1.0, 1: 0.5}}
    assert rows == [("base", 0.0, 0.0, 1.0, 0.0), ("other", 0.5, 0.5, 0.75, 0.5)]
