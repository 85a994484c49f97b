"""The gaps between the numbers of a format, against torch's own next number."""

import pytest
import torch

from labkit.precision import formats


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gap_is_the_way_to_the_next_number(dtype):
    for x, gap in formats.gaps(torch.finfo(dtype)).items():
        number = torch.tensor(x, dtype=dtype)
        up = torch.nextafter(number, torch.tensor(float("inf"), dtype=dtype))
        assert (up.double() - x).item() == gap


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_whole_gap_moves_a_number_and_less_than_half_does_not(dtype):
    found = formats.gaps(torch.finfo(dtype))
    for x, gap in found.items():
        if x + gap <= torch.finfo(dtype).max:
            assert torch.tensor(x + gap).to(dtype).double().item() == x + gap
        assert torch.tensor(x + 0.49 * gap, dtype=torch.float64).to(dtype).double().item() == x
    assert min(found) >= 2.0**-30
    assert max(found) <= torch.finfo(dtype).max


def test_formats_end_and_bf16_is_65536_times_as_coarse_as_fp32():
    fine = formats.gaps(torch.finfo(torch.float32))
    coarse = formats.gaps(torch.finfo(torch.bfloat16))
    assert {coarse[x] / fine[x] for x in coarse.keys() & fine.keys()} == {2.0**16}
    assert max(formats.gaps(torch.finfo(torch.float16))) == 65504


@pytest.mark.parametrize("wrong", [torch.iinfo(torch.int32), "bf16"])
def test_what_has_no_fraction_is_refused(wrong):
    with pytest.raises(ValueError, match="floating point type; got"):
        formats.gaps(wrong)


def test_a_step_of_the_staircase_is_level():
    found = formats.gaps(torch.finfo(torch.bfloat16))
    assert found[0.0625] == found[0.125 - 2.0**-11] == 2.0**-11


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
