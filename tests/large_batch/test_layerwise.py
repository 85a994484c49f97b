"""LARS and LAMB by hand, held against the package that has both."""

import pytest
import pytorch_optimizer
import torch

from labkit.large_batch import LAMB, LARS, classifier


def moved(make, bias=True):
    """The weights of a small net after six updates."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(6, 5, bias=bias), torch.nn.ReLU(), torch.nn.Linear(5, 3, bias=bias)
    )
    optimizer = make(net.parameters())
    for seed in range(6):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        net(inputs).square().sum().backward()
        optimizer.step()
    return torch.cat([weight.detach().flatten() for weight in net.parameters()])


def test_lars_is_the_packages():
    mine = moved(lambda weights: LARS(weights, 0.5, trust=0.01))
    theirs = moved(
        lambda weights: pytorch_optimizer.LARS(weights, 0.5, momentum=0.9, trust_coefficient=0.01)
    )
    torch.testing.assert_close(mine, theirs)


def test_lars_decays_matrices_as_the_package_does():
    mine = moved(lambda weights: LARS(weights, 0.1, trust=0.01, decay=0.1), bias=False)
    theirs = moved(
        lambda weights: pytorch_optimizer.LARS(
            weights, 0.1, momentum=0.9, trust_coefficient=0.01, weight_decay=0.1
        ),
        bias=False,
    )
    torch.testing.assert_close(mine, theirs)


def test_lamb_without_its_correction_is_the_packages():
    """The package corrects the first mean alone, and after the ratio was taken, unless it is told
    not to (``adam_debias``); and it has a ratio for biases, too."""
    mine = moved(lambda weights: LAMB(weights, 0.05, debias=False), bias=False)
    theirs = moved(
        lambda weights: pytorch_optimizer.Lamb(weights, 0.05, adam_debias=True), bias=False
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_layer_moves_by_the_rate_times_its_own_length():
    net = classifier()
    before = [weight.detach().clone() for weight in net.parameters()]
    optimizer = LAMB(net.parameters(), 0.02)
    net(torch.rand(4, 64)).square().sum().backward()
    optimizer.step()
    for old, new in zip(before, net.parameters(), strict=True):
        if old.dim() > 1:
            length = (new.detach() - old).norm().item()
            assert length == pytest.approx(0.02 * old.norm().item(), rel=1e-4)


def test_decay_is_part_of_lambs_update_and_not_of_its_gradient():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = LAMB([weight], 0.1, decay=0.5, eps=0.0)
    weight.grad = torch.full((2, 2), 3.0)
    optimizer.step()
    # Adam's first update is 1 everywhere; with the decay 1.5; scaled to the layer's length it is 1
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.9))


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_a_closure_is_refused(kind):
    with pytest.raises(ValueError, match="no closure"):
        kind(classifier().parameters(), 0.1).step(lambda: 0.0)
