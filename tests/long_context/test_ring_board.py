"""The board of rings: a page for each round, and on each the pairs that its ranks compute."""

import pytest

from labkit import widgets
from labkit.long_context import Attention, picture
from labkit.pictures.sketch import Box, Words


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_a_page_for_each_round(num_ranks):
    board = widgets.ring_attention(num_ranks=num_ranks)
    assert len(board.book.pages) == num_ranks
    assert all("<svg" in page.value for page in board.book.pages)


def test_ulysses_has_one_page_and_says_so():
    board = widgets.ring_attention(way="ulysses")
    assert len(board.book.pages) == 1
    assert "After the all-to-all" in board.book.pages[0].value


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("number", range(4))
def test_marked_are_the_pairs_of_the_round(balanced, number):
    attention = Attention(ranks=4, balanced=balanced)
    drawn = picture.table(attention, number)
    marked = [box for box in drawn.only(Box) if box.marked]
    in_legend = 1
    computed = sum(
        num_pairs + (1 if number == 0 else 0)  # each rank's two pieces with themselves are half
        for num_pairs in attention.rounds()[number]
    )
    assert len(marked) - in_legend == computed
    rows = drawn.table[1:]
    assert [float(row[3]) for row in rows] == attention.rounds()[number].tolist()


@pytest.mark.parametrize("causal", [True, False])
def test_the_legend_says_what_counts_half_where_something_does(causal):
    drawn = picture.table(Attention(ranks=2, causal=causal), 0)
    told = [words.text for words in drawn.only(Words)]
    assert ("a piece with itself counts half" in told) == causal


def test_the_sentence_names_the_busiest_and_the_idlest():
    board = widgets.ring_attention()
    assert "the busiest rank computes 4 pairs, and another one 0" in board.page(board.step, 3)
    level = board.experiment.but(balanced=True)
    assert "every rank computes 2 pairs" in board.page(level, 3)


def test_it_speaks_chinese():
    board = widgets.ring_attention("zh")
    assert "第 1 轮，共 4 轮" in board.book.pages[0].value and "空闲" in board.book.pages[0].value


def test_a_round_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="number of the round"):
        picture.table(Attention(ranks=2), 2)


@pytest.mark.real
def test_the_button_holds_the_ranks_against_one_process():
    step = Attention(ranks=2, sequence=32, heads=2, head_dim=8, pair_ms=1.0, balanced=False)
    board = step.board()
    board.run()
    page = board.page(board.step, 0)
    assert "differs from one process by at most" in page and "Measured:" in page
