"""Which updates move a number, against the arithmetic of its format."""

import pytest
import torch

from labkit.precision import formats


def test_what_survives_is_what_the_arithmetic_of_the_format_does():
    weights = torch.tensor([0.1, -0.1, 0.001, 0.0, 3.0])
    for name in ("bfloat16", "float16", "float32"):
        dtype = getattr(torch, name)
        kept = weights.to(dtype)
        assert torch.equal(formats.survives(weights, 1e-4, dtype), kept - 1e-4 != kept), name
    assert formats.survives(weights, 1e-4, torch.bfloat16).tolist() == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_no_update_moves_nothing_and_a_rate_is_a_number():
    assert not formats.survives(torch.randn(9), 0.0, torch.bfloat16).any()
    with pytest.raises(ValueError, match="rate"):
        formats.survives(torch.randn(9), float("nan"), torch.bfloat16)
