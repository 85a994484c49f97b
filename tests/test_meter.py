"""What the meter counts is what autograd holds: counted by hand here, and in real stages in test_pipeline."""

import gc

import torch
from torch import nn

from labkit import meter


def saved_by(fn, parameters=()):
    """Peak bytes while ``fn`` makes a result and drops it."""
    held = meter.Activations(parameters)
    with held.chunk(0):
        result = fn()
    assert held.num_bytes == held.peak_bytes
    del result
    gc.collect()
    assert held.num_bytes == 0
    return held.peak_bytes


def test_a_storage_is_counted_once_and_parameters_are_not():
    x = torch.randn(10, requires_grad=True)
    assert saved_by(lambda: x * x) == 40
    assert saved_by(lambda: (x * x) + (x.view(2, 5) * 2).exp().sum()) == 80  # x, and the result of exp
    linear = nn.Linear(10, 3)
    assert saved_by(lambda: linear(x), linear.parameters()) == 40
    assert saved_by(lambda: linear(x)) == 40 + 3 * 10 * 4


def test_an_operator_that_saves_its_own_output_does_not_keep_it_alive():
    x = torch.randn(1000, requires_grad=True)
    held = meter.Activations()
    gc.disable()
    try:
        with held.chunk(0):
            y = x.exp()
        assert held.num_bytes == 4000
        del y
        assert held.num_bytes == 0
    finally:
        gc.enable()


def test_bytes_are_held_until_the_backward_and_chunks_with_them():
    layer = nn.Linear(8, 8)
    held = meter.Activations(layer.parameters())
    outputs = []
    for mb in range(3):
        with held.chunk(mb):
            outputs.append(layer(torch.randn(4, 8)).sum())
    assert (held.num_bytes, held.peak_chunks) == (3 * 128, 3)
    for num_left in (2, 1, 0):
        outputs.pop(0).backward()
        assert held.num_bytes == num_left * 128
    with held.chunk(3):
        layer(torch.randn(4, 8))
    assert (held.peak_bytes, held.peak_chunks) == (3 * 128, 3)


def test_gradients_are_the_same_with_the_meter():
    x = torch.randn(5, 8, requires_grad=True)
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1))
    expected = torch.autograd.grad(module(x).square().sum(), x)[0]
    with meter.Activations(module.parameters()).chunk(0):
        loss = module(x).square().sum()
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)


def test_resident_memory_never_falls_below_what_was_used():
    before = meter.peak_rss_bytes()
    block = torch.ones(20_000_000)
    assert meter.peak_rss_bytes() >= before
    assert meter.peak_rss_bytes() > block.nbytes
