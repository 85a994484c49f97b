"""One step of mixed precision, drawn."""

import pytest

from labkit.pictures.sketch import Box, Line, Words
from labkit.precision import picture


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("way", "num"), [("mixed", 6), ("autocast", 5)])
def test_as_many_arrows_as_tensors_within_the_width(way, num, language):
    drawn = picture.step(way, language=language)
    kinds = len({row[1] for row in drawn.table[1:]})
    boxes = drawn.only(Box)
    arrows = [line for line in drawn.only(Line) if line.arrow]
    assert len(boxes) == num + kinds and len(arrows) == num
    assert max(box.x_px + box.width_px for box in boxes) <= 900
    assert max(box.y_px + box.height_px for box in boxes) <= drawn.height_px
    assert all(words.text for words in drawn.only(Words))


@pytest.mark.parametrize("way", ["mixed", "autocast"])
def test_the_update_goes_from_the_moments_up_to_the_masters(way):
    drawn = picture.step(way, language="en")
    masters, *_, moments = [box for box in drawn.only(Box) if box.texts]
    (from_x, from_y), (to_x, to_y) = drawn.only(Line)[-1].points_px
    assert masters.texts == ("master weights",) and moments.texts == ("two moments",)
    assert from_x == to_x and masters.x_px < to_x < masters.x_px + masters.width_px
    assert masters.y_px + masters.height_px < to_y < from_y < moments.y_px


@pytest.mark.parametrize(("way", "line"), [("mixed", -3), ("autocast", -2)])
def test_the_update_begins_at_the_gradients(way, line):
    drawn = picture.step(way, language="en")
    gradients = next(box for box in drawn.only(Box) if box.texts == ("gradients",))
    from_x, from_y = drawn.only(Line)[line].points_px[0]
    assert gradients.x_px < from_x < gradients.x_px + gradients.width_px
    assert 0 < from_y - gradients.y_px - gradients.height_px < 8


def test_fp32_masters_are_updated_from_fp32_gradients():
    drawn = picture.step("mixed", language="en")
    copies = next(box for box in drawn.only(Box) if box.texts == ("fp32 gradients",))
    to_y = drawn.only(Line)[-3].points_px[-1][1]
    from_x, from_y = drawn.only(Line)[-2].points_px[0]
    assert 0 < copies.y_px - to_y < 8 and 0 < copies.x_px - from_x < 10
    assert copies.y_px < from_y < copies.y_px + copies.height_px
    assert told("mixed")["fp32 gradients"] == ("fp32", "4 bytes for each parameter")


def test_only_what_grows_with_the_batch_is_dashed():
    drawn = picture.step("mixed", language="en")
    (dashed,) = [line for line in drawn.only(Line) if line.dash]
    activations = next(box for box in drawn.only(Box) if box.texts == ("activations",))
    assert dashed.points_px[0] == dashed.points_px[-1] == activations[:2]


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
