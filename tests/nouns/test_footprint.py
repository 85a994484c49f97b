"""How many bytes a rank holds over a step: the highest point, its moment, and what is kept."""

import pytest

from labkit import footprint

MOMENTS = [
    ("F0", {"parameters": 10, "activations": 5}),
    ("B0", {"parameters": 10, "activations": 20}),
    ("B0", {"parameters": 10, "activations": 3}),
    ("step", {"parameters": 10, "temporary": 7}),
]


def test_the_highest_point_has_its_bytes_and_its_moment():
    found = footprint.from_moments(MOMENTS, "predicted")
    assert found.labels == ("F0", "B0", "step")
    assert found.totals.tolist() == [15, 30, 17]
    assert (found.peak_bytes, found.peak) == (30, "B0")
    assert "30 B at B0" in repr(found)


def test_of_moments_with_one_label_the_highest_counts_whichever_comes_first():
    turned = footprint.from_moments(MOMENTS[::-1], "predicted")
    assert turned.labels == ("step", "B0", "F0") and turned.peak_bytes == 30


def test_what_is_kept_comes_back_and_is_called_recorded():
    found = footprint.from_moments(MOMENTS, "measured", ["gloo"])
    again = footprint.Footprint.from_json(found.to_json())
    assert again.labels == found.labels and (again.num_bytes == found.num_bytes).all()
    assert (found.badge, again.badge) == ("measured, gloo", "recorded, gloo")


def test_what_is_no_footprint_is_refused():
    with pytest.raises(ValueError, match="moments"):
        footprint.from_moments([], "predicted")
    with pytest.raises(ValueError, match="F0, parameters"):
        footprint.from_moments([("F0", {"parameters": float("nan")})], "predicted")
