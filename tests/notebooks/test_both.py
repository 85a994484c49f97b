"""The numbers of a chapter's Chinese are those of its English, cell by cell."""

import both
import pytest
from chapter import Cell, Chapter, read
from small import CHAPTERS, NOTEBOOKS


@pytest.mark.parametrize("name", CHAPTERS)
def test_both_languages_have_the_same_numbers(name):
    assert [*both.faults(read(NOTEBOOKS / "src" / f"{name}.py"))] == []


def faults(english, chinese):
    cells = (Cell(kind="markdown", source=english, options={}, chinese=chinese),)
    return [*both.faults(Chapter(name="03_tiny", header={}, cells=cells, remarks={}))]


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("6.7 billion parameters on 80 GB", "67 亿个参数，80 GB"),
        ("5, 10 and 20 billion", "50 亿、100 亿和 200 亿"),
        ("26 thousand weights, 30,000 more", "2.6 万个权重，另外 3 万个"),
        ("half of them, twice, a third", "一半，两次，三分之一"),
        ("once in 2,300 days", "两千三百天一次"),
        ("27.3 % of 48 ms", "48 毫秒的 27.3%"),
        ("one and a half times", "1.5 倍"),
        ("a 7 B model, bf16", "7B 模型，16 位"),
        ("more than 300", "三百多块"),
        ("$12$ and `f(5)`", "没有数"),
    ],
)
def test_the_same_number_in_other_words_is_no_fault(english, chinese):
    assert faults(english, chinese) == []


@pytest.mark.parametrize(
    ("english", "chinese", "told"),
    [
        ("80 GB", "40 GB", ["'80 GB' is not in the Chinese", "'40 GB' is not in the English"]),
        (
            "6.7 billion",
            "6.7 亿",
            ["'6.7 billion' is not in the Chinese", "'6.7 亿' is not in the English"],
        ),
        ("three cards", "5 张卡", ["'5' is not in the English"]),
        ("17 steps", "几步", ["'17' is not in the Chinese"]),
        ("about 2,300", "两千四百", ["'2,300' is not in the Chinese"]),
    ],
)
def test_a_number_that_one_language_has_alone_is_named(english, chinese, told):
    found = faults(english, chinese)
    assert [fault.removeprefix("03: ").partition(" of ")[0] for fault in found] == told
