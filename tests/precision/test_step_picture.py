"""One step of mixed precision, drawn."""

import pytest

from labkit.pictures.sketch import Box, Line, Words
from labkit.precision import picture


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("way", ["mixed", "autocast"])
def test_five_tensors_and_four_arrows_within_the_width(way, language):
    drawn = picture.step(way, language=language)
    kinds = len({row[1] for row in drawn.table[1:]})
    boxes = drawn.only(Box)
    assert len(boxes) == 5 + kinds and len(drawn.only(Line)) == 4
    assert max(box.x_px + box.width_px for box in boxes) <= 900
    assert max(box.y_px + box.height_px for box in boxes) <= drawn.height_px
    assert all(words.text for words in drawn.only(Words))


def told(way):
    """The table of a way: {tensor: (type, size)}."""
    return {row[0]: row[1:] for row in picture.step(way, language="en").table}


def test_both_ways_keep_sixteen_bytes_for_each_parameter():
    mixed = told("mixed")
    autocast = told("autocast")
    each = "{} bytes for each parameter"
    assert mixed["master weights"] == autocast["master weights"] == ("fp32", each.format(4))
    assert mixed["gradients"] == ("bf16", each.format(2))
    assert autocast["gradients"] == ("fp32", each.format(4))
    assert mixed["two moments"] == ("fp32", each.format(8))


def test_a_way_without_a_picture_is_refused():
    with pytest.raises(ValueError, match="way is one of mixed, autocast"):
        picture.step("fp8")
