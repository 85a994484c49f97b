"""The picture of a deal: a box for each sample, repeats empty."""

import pytest

from labkit import accelerate as accelerated
from labkit.pictures.sketch import Box

PAIRS = [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]
EIGHT = [[[0, 1, 2, 3, 4, 5, 6, 7]]] * 2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_sample_is_empty_from_its_second_time_on(language):
    drawn = accelerated.draw_deal({"batches of 2": PAIRS}, language)
    samples = [box for box in drawn.only(Box) if box.texts]
    assert [box.texts[0] for box in samples] == list("01234012")
    assert [box.texts[0] for box in samples if not box.colour] == list("012")
    assert drawn.table[1:] == (
        ("batches of 2", "0", "1", "0, 1"),
        ("batches of 2", "0", "2", "4, 0"),
        ("batches of 2", "1", "1", "2, 3"),
        ("batches of 2", "1", "2", "1, 2"),
    )


def test_deals_stand_side_by_side_or_below_one_another():
    one = accelerated.draw_deal({"a": PAIRS}, "en")
    two = accelerated.draw_deal({"a": PAIRS, "b": PAIRS}, "en")
    many = accelerated.draw_deal({name: EIGHT for name in "abcdef"}, "en")
    assert one.height_px == two.height_px < many.height_px
    assert all(box.x_px >= 0 and box.x_px + box.width_px <= 900 for box in many.only(Box))
    boxes = [(box.x_px, box.y_px) for box in two.only(Box) + many.only(Box) if box.texts]
    assert len(set(boxes[:16])) == 16 and len(set(boxes[16:])) == 96


@pytest.mark.parametrize("deal", [[], 3, [[[0]], []], [[0, 1]], [[["a"]]], [[[]]]])
def test_what_is_no_deal_is_refused(deal):
    with pytest.raises(ValueError, match="samples of each rank and step"):
        accelerated.draw_deal({"deal": deal}, "en")
