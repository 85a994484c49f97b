"""One weight on its ranks: reduce-scatter, update, all-gather."""

import pytest

from labkit.pictures.sketch import Box, Line, Words
from labkit.zero import part_picture


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("num_ranks", [2, 4, 6])
def test_every_part_of_every_rank_is_drawn_within_the_width(num_ranks, language):
    picture = part_picture.drawn(num_ranks, language=language)
    boxes = picture.only(Box)
    of_legend = 2 * num_ranks + 2
    stripes = num_ranks * (num_ranks - 1)  # of the panel with the sums, beyond one box a part
    assert len(boxes) == 4 * num_ranks**2 + stripes + of_legend
    assert max(box.x_px + box.width_px for box in boxes) <= 900
    assert len(picture.only(Line)) == 3
    assert {"reduce-scatter", "all-gather"} <= {each.text for each in picture.only(Words)}
    assert len(picture.table) == 1 + num_ranks


def test_a_rank_has_its_own_part_between_the_two_collectives():
    table = part_picture.drawn(4, language="en").table
    mine = "2 (old: 0 1 3)"
    assert table[3][1:] == ("0 1 2 3", mine, mine, "0 1 2 3")


@pytest.mark.parametrize("num_ranks", [1, 7, 2.5])
def test_ranks_that_have_no_room_are_refused(num_ranks):
    with pytest.raises(ValueError, match="num_ranks"):
        part_picture.drawn(num_ranks)
