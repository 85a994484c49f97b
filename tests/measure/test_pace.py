"""A stated time is kept, from outside as from within autograd, and where it is not, that is
seen."""

import time

import pytest
import torch
from torch import nn

from labkit.launching import rank
from labkit.measure import pace

pytestmark = pytest.mark.alone  # reads clocks


@pytest.fixture(autouse=True)
def notes(monkeypatch):
    """A fresh rank for each test."""
    here = rank.Rank(0, 1, None)
    monkeypatch.setattr(rank, "_current", here)
    return here.notes


def seconds(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def test_a_paced_module_computes_what_the_module_computes():
    module = nn.Linear(3, 2)
    x = torch.randn(4, 3, requires_grad=True)
    paced = pace.Paced(module, forward_us=100)
    expected = torch.autograd.grad(module(x).square().sum(), [x, *module.parameters()])
    found = torch.autograd.grad(paced(x).square().sum(), [x, *module.parameters()])
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)


class Product(nn.Module):
    def forward(self, x, y):
        return x * y


def test_a_tensor_handed_in_twice_gets_its_gradient_once():
    x, paced = torch.tensor(3.0, requires_grad=True), pace.Paced(Product(), forward_us=1)
    assert torch.autograd.grad(paced(x, x), x)[0] == 6
    with pytest.raises(ValueError, match="an argument of its own; got tuple"):
        paced((x, x))


def test_an_action_is_an_overrun_from_a_twentieth_of_its_stated_time_on(notes):
    kept = pace.Pace()
    kept.count(49.0, 1000.0)
    assert (kept.num_actions, kept.num_overruns) == (1, 0)
    kept.count(51.0, 1000.0)
    assert (kept.num_actions, kept.num_overruns) == (2, 1)


@pytest.mark.parametrize("takes_gradient", [True, False])
def test_forward_and_backward_take_the_stated_time(takes_gradient, notes):
    paced = pace.Paced(nn.Linear(3, 3), forward_us=20_000, backward_us=60_000)
    x = torch.randn(4, 3, requires_grad=takes_gradient)
    out = []
    assert 0.020 <= seconds(lambda: out.append(paced(x))) < 0.2
    assert 0.060 <= seconds(lambda: out[0].sum().backward()) < 0.6
    assert paced.pace.num_actions == 2
    assert notes[0] == "paced"


def test_the_gradient_leaves_a_paced_module_only_after_its_time():
    arrived = []
    x = torch.randn(2, 3, requires_grad=True)
    h = x * 1
    h.register_hook(lambda grad: arrived.append(time.perf_counter()))
    y = pace.Paced(nn.Linear(3, 3), forward_us=0, backward_us=50_000)(h)
    start = time.perf_counter()
    y.sum().backward()
    assert arrived[0] - start >= 0.050


def test_paced_modules_in_a_row_add_up():
    layers = nn.Sequential(
        *(pace.Paced(nn.Linear(3, 3), forward_us=0, backward_us=20_000) for _ in range(3))
    )
    y = layers(torch.randn(2, 3))
    assert 0.060 <= seconds(lambda: y.sum().backward()) < 0.6


class Stage:
    """What pace touches of a PipelineStage."""

    stage_index = 1

    def forward_one_chunk(self, mb, *args, **kwargs):
        return "F"

    def backward_one_chunk(self, mb, loss=None, full_backward=True, last_backward=False):
        return "B" if full_backward else "I"

    def backward_weight_one_chunk(self, mb, last_backward=False):
        return "W"


def test_each_kind_of_action_has_its_own_stated_time():
    stage = Stage()
    pace.stage(stage, forward_us=10_000, backward_us=40_000, input_us=20_000, weight_us=30_000)
    calls = {
        0.010: lambda: stage.forward_one_chunk(0),
        0.040: lambda: stage.backward_one_chunk(0),
        0.020: lambda: stage.backward_one_chunk(0, full_backward=False),
        0.030: lambda: stage.backward_weight_one_chunk(0),
    }
    for stated, call in calls.items():
        assert stated <= seconds(call) < stated + 0.2
    assert stage.backward_one_chunk(0, full_backward=False) == "I"


def test_backward_is_twice_the_forward_and_its_halves_half_of_it_by_default():
    stage = Stage()
    pace.stage(stage, forward_us=10_000)
    assert seconds(lambda: stage.backward_one_chunk(0)) >= 0.020
    assert 0.010 <= seconds(lambda: stage.backward_weight_one_chunk(0)) < 0.2


def test_an_overrun_is_counted_and_noted(notes):
    stage = Stage()
    stage.forward_one_chunk = lambda mb: time.sleep(0.02)
    kept = pace.stage(stage, forward_us=1_000)
    assert notes == ["paced"]
    stage.forward_one_chunk(0)
    assert (kept.num_actions, kept.num_overruns) == (1, 1)
    assert kept.overrun_us >= 18_000
    assert notes == ["paced", "overran"]


def test_a_negative_time_is_refused():
    with pytest.raises(ValueError, match="0 or more; got -1 us"):
        pace.stage(Stage(), forward_us=1, input_us=-1)
    with pytest.raises(ValueError, match="0 or more"):
        pace.Paced(nn.Linear(1, 1), forward_us=-5)


def test_no_gradient_reaches_a_parameter_before_the_stated_time():
    arrived, linear = [], nn.Linear(3, 3)
    for weight in linear.parameters():
        weight.register_post_accumulate_grad_hook(lambda _: arrived.append(time.perf_counter()))
    y = pace.Paced(linear, forward_us=0, backward_us=50_000)(torch.randn(2, 3))
    start = time.perf_counter()
    y.sum().backward()
    assert len(arrived) == 2 and min(arrived) - start >= 0.050


def test_without_gradients_a_paced_module_is_paced_as_well(notes):
    paced = pace.Paced(nn.Linear(3, 3), forward_us=20_000)
    with torch.no_grad():
        out = []
        assert seconds(lambda: out.append(paced(torch.randn(4, 3)))) >= 0.020
    assert paced.pace.num_actions == 1 and not out[0].requires_grad
