"""``lab.difference``: how far tensors are apart."""

import pytest
import torch

import labkit as lab


def test_the_largest_difference_of_what_belongs_together():
    ours = {"w": torch.tensor([1.0, 2.0]), "layers": [torch.zeros(2, 2), torch.tensor(3)]}
    theirs = {"w": torch.tensor([1.5, 2.0]), "layers": [torch.full((2, 2), -0.75), torch.tensor(3)]}
    assert lab.difference(ours, theirs) == 0.75
    assert lab.difference(ours, ours) == 0.0
    assert lab.difference(torch.zeros(0), torch.zeros(0)) == 0.0
    half = torch.tensor([1.0], dtype=torch.bfloat16)
    assert lab.difference(half, torch.tensor([1.0])) == 0.0
    assert lab.difference(torch.tensor([2**31]), torch.tensor([0])) == 2.0**31


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (torch.zeros(2), torch.zeros(3), "the same shape"),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}, "only one has a, b"),
        ([torch.zeros(1)], [], "as many tensors"),
        ([], [], "at least one tensor"),
        (torch.zeros(1), 1.0, "two tensors, two dicts or two lists"),
    ],
)
def test_what_does_not_belong_together_is_refused(ours, theirs, reason):
    with pytest.raises(ValueError, match=reason):
        lab.difference(ours, theirs)
