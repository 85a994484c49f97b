"""The board of moments: a page for each, one control, refusals."""

import pytest
from browserless import from_browser, settle

from labkit import fsdp
from labkit.fsdp import board as fsdp_board


def test_a_page_for_every_moment_and_one_control():
    board = fsdp.moments(layers=2)
    settle()
    assert list(board.controls) == ["moment"]
    assert board.labels[:2] == ("F0", "F1") and board.labels[-1] == "step"
    assert [label for label, _ in board.controls["moment"].options] == list(board.labels)
    for label, page in zip(board.labels, board.book.pages, strict=True):
        assert page.value.count("<svg") == 1 and f">{label}:" in page.value


@pytest.mark.parametrize("language", ["en", "zh"])
def test_it_draws_what_the_larger_board_draws(language):
    board = fsdp.moments(language, layers=2)
    larger = fsdp_board.fsdp_sharding(language, num_layers=2)
    settle()
    from_browser(board.controls["moment"], index=6)
    assert board.scene().shapes == larger._layers(larger.step, 6).shapes


@pytest.mark.parametrize("changes", [{"ranks": 1}, {"ranks": 9}, {"layers": 0}, {"layers": 7}])
def test_other_sizes_are_refused(changes):
    with pytest.raises(ValueError, match="|".join(changes)):
        fsdp.moments(**changes)
