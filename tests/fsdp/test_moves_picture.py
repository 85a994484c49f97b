"""The drawing of FSDP's three moves agrees with what the collectives do."""

import pytest

from labkit import fsdp
from labkit.collectives.overview.picture import before_and_after
from labkit.fsdp import moves_picture
from labkit.pictures.sketch import Box


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_it_holds_what_the_collectives_leave(ranks):
    slices, whole, gradients, scattered = moves_picture.held(ranks).values()
    for name, seen in (
        ("all_gather", (slices, whole)),
        ("reduce_scatter", (gradients, scattered)),
    ):
        for columns, expected in zip(seen, before_and_after(name, ranks), strict=True):
            for mine, theirs in zip(columns, expected, strict=True):
                assert mine == [each[0] if each else () for each in theirs]


def test_a_box_for_every_slice_of_every_rank():
    boxes = fsdp.ThreeMoves(ranks=3).picture(language="en").only(Box)
    empty = [box for box in boxes if not box.fill]
    assert len(empty) == 2 * 6  # before the gather, after the scatter
    texts = [box.texts[0] for box in boxes if box.texts]
    assert texts.count("w0") == 1 + 3 and texts.count("g2") == 3


def test_a_rank_is_a_row():
    boxes = fsdp.ThreeMoves(ranks=3).picture(language="en").only(Box)
    first = {box.y_px for box in boxes if box.texts == ("w0",)}
    assert first == {box.y_px for box in boxes if box.texts == ("w1",)} and len(first) == 3
    assert len({box.x_px for box in boxes if box.texts == ("w1",)}) == 2  # slice 1: cut, and whole


@pytest.mark.parametrize("ranks", [1, 5, 2.5])
def test_other_ranks_are_refused(ranks):
    with pytest.raises(ValueError, match="ranks"):
        fsdp.ThreeMoves(ranks=ranks)
