"""Blocks keep for the backward what the papers count."""

import pytest
import torch

from labkit import planner
from labkit.measure import memory

WIDTH, HEADS = 128, 4


def kept_per_unit(kind, length):
    """Bytes that autograd keeps per token and unit of width."""
    block = planner.block(kind, WIDTH, HEADS)
    held = memory.Activations(block.parameters())
    x = torch.randn(2, length, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with held.chunk(0):
        y = block(x)
    assert y.shape == x.shape and y.dtype == x.dtype
    return held.num_bytes / x.numel()


@pytest.mark.parametrize("length", [64, 256])
def test_a_gpt_block_keeps_korthikantis_bytes_and_a_few_statistics(length):
    stored = 34 + 5 * HEADS * length / WIDTH
    assert 34 < kept_per_unit("gpt", length) < 34.5
    assert stored < kept_per_unit("gpt_stored", length) < stored + 0.5


def test_llamas_norm_in_one_operator_keeps_twelve_bytes_less():
    several = kept_per_unit("llama", 128)
    one = kept_per_unit("llama_fused", 128)
    assert several == pytest.approx(one + 12, abs=0.3) and one > 34
    assert several == pytest.approx(kept_per_unit("llama", 64))


def test_what_is_no_block_is_refused():
    with pytest.raises(ValueError, match="a block is one of gpt, gpt_stored, llama, llama_fused"):
        planner.block("bert")
    with pytest.raises(ValueError, match="130 is not a multiple of 4"):
        planner.block("gpt", 130)
