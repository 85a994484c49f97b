"""The board of experts: the bars are the tokens, the sentences what is counted of them."""

import pytest

from labkit import widgets
from labkit.experts import Layer


def test_a_page_for_each_skew_with_every_experts_tokens():
    board = widgets.experts()
    assert len(board.book.pages) == 7
    taken = board.step.loads().sum(axis=0).tolist()
    rows = board.scene().table[1:]
    shown = [sum(map(float, filter(None, row[1:]))) for row in rows]
    assert shown == taken


def test_a_capacity_drops_and_says_so():
    board = widgets.experts(capacity=1.0, skew=2.0)
    page = board.page(board.step, None)
    assert f"{board.step.dropped()} of 512 choices are dropped" in page
    assert "takes 1.00 times an even share" in page


def test_what_a_capacity_drops_stands_at_the_end_of_each_bar():
    step = Layer(ranks=4, experts=8, top_k=1, capacity=1.25)
    heads, *rows = step.board().scene().table
    assert heads[-1] == "dropped" and step.dropped() > 0
    assert sum(float(row[-1] or 0) for row in rows) == step.dropped()


def test_the_capacity_is_a_line_beside_the_even_share():
    bounded = Layer(ranks=4, experts=8, top_k=1, capacity=1.25).board()
    words = [shape.text for shape in bounded.scene().shapes if hasattr(shape, "text")]
    assert any("capacity of an expert" in text for text in words)
    free = Layer(ranks=4, experts=8, top_k=1).board()
    words = [shape.text for shape in free.scene().shapes if hasattr(shape, "text")]
    assert not any("capacity" in text for text in words)


def test_it_speaks_chinese():
    board = widgets.experts("zh")
    assert "专家" in board.page(board.step, None) and "空闲" in board.page(board.step, None)


@pytest.mark.real
def test_the_button_holds_the_ranks_against_one_process():
    step = Layer(ranks=2, experts=4, tokens=8, hidden=8, ffn=8, token_ms=0.05)
    board = step.board()
    board.run()
    assert "as many tokens as predicted: yes" in board.page(board.step, None)
