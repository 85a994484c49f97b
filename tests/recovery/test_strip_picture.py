"""A strip: boxes as long as their times, words in them or beside them."""

import pytest

from labkit.pictures.sketch import Box, Words
from labkit.recovery import Strip, interval


@pytest.mark.parametrize("language", ["en", "zh"])
def test_boxes_are_as_long_as_their_times(language):
    lanes = [("steps", [("0", 0.0, 1.0), ("1", 1.5, 4.0)]), ("wait", [("copy", 1.0, 1.01)])]
    drawn = Strip(title="T", badge="measured", lanes=lanes)._picture(language)
    first, second, narrow = drawn.only(Box)
    assert second.width_px / first.width_px == pytest.approx(2.5)
    assert (first.texts, second.texts, narrow.texts) == (("0",), ("1",), ())
    assert first.colour == second.colour != narrow.colour  # steps are one kind
    told = [words.text for words in drawn.only(Words)]
    assert "copy 10 ms" in told
    assert told[-5:] == ["0", "1 s", "2 s", "3 s", "4 s"]
    assert drawn.table[1:] == (("0", "1.00 s"), ("1", "2.50 s"), ("copy", "10.0 ms"))


def test_an_interval_is_paid_for_under_what_it_costs():
    (_, time), (_, paid) = interval().lanes
    where = {(start, end): name["en"] for name, start, end in time}
    under = [(where[start, end], name) for name, start, end in paid]
    assert [what for what, _ in under] == ["train", "save", "come back", "again", "save"]
    drawn = interval()._picture("en")
    assert all(box.texts for box in drawn.only(Box))
    assert all(not box.colour for box in drawn.only(Box)[len(time) :])
    assert drawn.table[0] == ("",)
    assert "0" not in [words.text for words in drawn.only(Words)]  # to no scale: no axis


def test_words_that_do_not_fit_on_the_right_are_on_the_left():
    lanes = [("steps", [("0", 0.0, 4.0)]), ("wait", [("a long word", 3.9, 4.0)])]
    drawn = Strip(title="T", badge="measured", lanes=lanes)._picture("en")
    words = next(each for each in drawn.only(Words) if each.text == "a long word 100 ms")
    assert (words.x_px + 8, words.anchor) == (drawn.only(Box)[1].x_px, "end")


def test_what_is_no_strip_is_refused():
    with pytest.raises(ValueError, match="one span or more"):
        Strip(title="T", badge="", lanes=[("steps", [])])
    with pytest.raises(ValueError, match="ends after it begins"):
        Strip(title="T", badge="", lanes=[("steps", [("0", 1.0, 0.5)])])
