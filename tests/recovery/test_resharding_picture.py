"""Who reads what: every row once, from the file that has it, and drawn as long as it is."""

from itertools import pairwise

import pytest
import torch

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box
from labkit.recovery import Resharding
from labkit.recovery.resharding_picture import cuts, reads


@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_rows_are_cut_as_torch_cuts_a_tensor(rows, ranks):
    sizes = [len(chunk) for chunk in torch.arange(rows).chunk(ranks)]
    edges = cuts(rows, ranks)
    mine = [high - low for low, high in pairwise(edges)]
    assert mine == sizes + [0] * (ranks - len(sizes))


@pytest.mark.parametrize(("writers", "readers"), [(4, 2), (4, 3), (2, 4), (3, 3)])
def test_every_row_is_read_once_from_the_file_that_has_it(writers, readers):
    edges = cuts(64, writers)
    read = []
    for pieces in reads(64, writers, readers):
        for file, start, end in pieces:
            assert edges[file] <= start < end <= edges[file + 1]
            read += range(start, end)
    assert read == list(range(64))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_box_is_as_long_as_its_rows(language):
    about = Resharding(rows=64, writers=4, readers=3)
    drawn = about._picture(language)
    boxes = drawn.only(Box)
    assert [each.width_px for each in boxes[:4]] == [WIDTH_PX / 4] * 4
    widths = [
        (end - start) * WIDTH_PX / 64 for pieces in reads(64, 4, 3) for _, start, end in pieces
    ]
    assert [each.width_px for each in boxes[4:]] == pytest.approx(widths)
    assert drawn.table[2][1:] == ("1, 2", "22–43")
    assert "2" not in {each.texts[0] for each in boxes[4:]}


def test_no_rows_and_no_ranks_are_refused():
    with pytest.raises(ValueError, match="rows is a whole number"):
        Resharding(rows=0, writers=1, readers=1)
    with pytest.raises(ValueError, match="readers is a whole number"):
        Resharding(rows=4, writers=1, readers=0)
