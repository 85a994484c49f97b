"""Stage 3's whole layers over a step, drawn."""

import pytest

from labkit.pictures.sketch import Words
from labkit.zero import picture


def test_whole_layers_are_stairs_that_hold_until_the_next_and_none_is_refused():
    drawn = picture.whole_layers([4000, 0, 2000, 0], language="en")
    assert drawn.heading == "Bytes of whole layers over a step of stage 3"
    assert drawn.badge == "measured"
    assert drawn.table[1] == ("0", "0 B")  # before the first gather none is whole
    assert "gathers and frees, in order" in {words.text for words in drawn.only(Words)}
    with pytest.raises(ValueError, match="one number of bytes"):
        picture.whole_layers([])
