"""A deal: what a prepared loader gives each rank, and its picture, repeats empty."""

import pytest

import labkit as lab
from labkit import accelerate as accelerated
from labkit.pictures.sketch import Box, Words

PAIRS = [[[0, 1], [4, 0]], [[2, 3], [1, 2]]]
EIGHT = [[[0, 1, 2, 3, 4, 5, 6, 7]]] * 2


@pytest.mark.real
@pytest.mark.parametrize(("split", "right"), [(False, [[0, 1], [4, 0]]), (True, [[0], [2], [4]])])
def test_batches_are_dealt_in_turn(split, right):
    dealt = lab.launch(accelerated.deal, 5, 2, split, ranks=2)
    assert dealt[0] == right


def test_the_key_says_what_is_empty_where_something_is():
    said = [shape.text for shape in accelerated.draw_deal({"a": PAIRS}, "en").only(Words)]
    assert "dealt again" in said
    said = [shape.text for shape in accelerated.draw_deal({"a": EIGHT[:1]}, "en").only(Words)]
    assert "dealt again" not in said and "dealt for the first time" not in said


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
    with pytest.raises(ValueError, match="samples of each rank and batch"):
        accelerated.draw_deal({"deal": deal}, "en")
