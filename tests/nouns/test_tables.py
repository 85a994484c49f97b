"""Laws of tables: what rows may be, what a number looks like, one list as HTML and as text."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

from labkit import tables, words
from labkit.tables import FOLD, table


@dataclass(frozen=True)
class Bill:
    rank: int
    held_bytes: int


class Pair(NamedTuple):
    rank: int
    held_bytes: int


def lines(*args, **options):
    return str(table(*args, **options)).splitlines()


@pytest.mark.parametrize(
    "row",
    [
        lambda rank, held: {"rank": rank, "held_bytes": held},
        lambda rank, held: Bill(rank, held),
        lambda rank, held: Pair(rank, held),
    ],
)
def test_rows_are_dicts_dataclasses_or_named_tuples(row):
    assert lines([row(0, 1500), row(1, 2 * 10**9)]) == [
        "rank     held",
        "   0  1.50 kB",
        "   1  2.00 GB",
    ]


def test_rows_of_tuples_need_heads():
    assert lines([(0, 1.0), (1, 2.5)], heads=["rank", "step_ms"])[1:] == [
        "   0  1.00 ms",
        "   1  2.50 ms",
    ]
    for heads in (None, ["rank"], ["a", "b", "c"], [1, 2]):
        with pytest.raises(ValueError, match="one word for each part"):
            table([(0, 1.0)], heads=heads)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("compute_us", 1234.5, "1.23 ms"),
        ("step_ms", 12, "12.0 ms"),
        ("step_s", 2.5, "2.50 s"),
        ("idle_share", 0.273, "27.3 %"),
        ("share", 0.5, "50.0 %"),
        ("s", 3, "3"),
        ("state_gb", 14.0, "14.0 GB"),
        ("loss", 3.14159, "3.14"),
        ("count", 1234, "1234"),
        ("count", 7_000_000_000, "7,000,000,000"),
        ("loss", float("nan"), "nan"),
        ("loss_us", float("inf"), "∞"),
        ("loss", np.float32(0.5), "0.5"),
        ("name", "words", "words"),
        ("ok", True, "yes"),
        ("none", None, ""),
        ("w", np.zeros((2, 3), np.float32), "ndarray(2, 3) float32"),
    ],
)
def test_a_number_has_the_unit_of_its_column(name, value, shown):
    assert table([{name: value}]).cells == ((shown,),)


def test_units_may_be_given_and_taken_away():
    row = {"time": 1500.0, "at_us": 2.0}
    given = table([row], units={"time": "us", "at_us": ""})
    assert given.cells == (("1.50 ms", "2"),)
    with pytest.raises(ValueError, match="a unit is one of"):
        table([row], units={"time": "miles"})
    with pytest.raises(ValueError, match="a column with a unit is one of time, at_us; got 'tim'"):
        table([row], units={"tim": "us"})


def test_heads_are_words_without_the_unit_in_the_language_in_use():
    row = {"rank": 0, "compute_us": 1.0, "idle_share": 0.5, "my_own": 1}
    assert table([row]).heads == ("rank", "compute", "idle share", "my own")
    assert table([row], language="zh").heads == ("rank", "计算", "空闲占比", "my own")
    chosen = {"my_own": {"en": "Mine", "zh": "我的"}, "rank": "measured"}
    words.use("zh")
    try:
        assert table([row], heads=chosen).heads == ("实测", "计算", "空闲占比", "我的")
        assert tables.worded("no") == "否"
    finally:
        words.use("en")
    with pytest.raises(ValueError, match="got 'other'"):
        table([row], heads={"other": "x"})


def test_a_list_of_heads_chooses_columns_in_their_order():
    assert table([{"a": 1, "b": 2, "c": 3}], heads=["c", "a"]).cells == (("3", "1"),)


def test_numbers_stand_at_the_right_and_what_is_missing_is_empty():
    rows = [{"name": "a", "n": 1}, {"name": "long", "n": 20, "more": "x"}]
    assert lines(rows) == ["name   n  more", "a      1", "long  20  x"]
    assert table(rows).numeric == (False, True, False)
    html = table(rows)._repr_html_()
    assert html.count("text-align:right") == 3  # the head and two cells


def test_a_chinese_letter_is_two_columns_wide():
    shown = lines([{"a": "中文", "b": "x"}, {"a": "abcd", "b": "y"}])
    assert shown[1:] == ["中文  x", "abcd  y"]


def test_html_says_what_each_cell_belongs_to_and_names_no_colour():
    html = table([{"rank": 0, "a<b": "<i>"}], title="T & U")._repr_html_()
    assert html.count('scope="col"') == 2 and html.count('scope="row"') == 1
    assert "T &amp; U" in html and "&lt;i&gt;" in html and "a&lt;b" in html and "<i>" not in html
    assert not re.search(r"#[0-9a-f]{3,6}\b|rgb\(|black|white(?!-space)", html)


def test_a_long_table_folds_and_loses_nothing():
    rows = [{"number": number} for number in range(FOLD + 5)]
    folded = table(rows)
    assert lines(rows)[-2:] == [f"{FOLD - 1}".rjust(6), "5 more rows"]
    html = folded._repr_html_()
    before, after = html.split("<details><summary>5 more rows</summary>")
    assert f">{FOLD - 1}</th>" in before and f">{FOLD}</th>" in after and ">24</th>" in after
    assert "<details" not in table(rows[:FOLD])._repr_html_()


def test_no_rows_are_said():
    assert lines([], heads=["a", "b"]) == ["a  b", "no rows"]
    assert "no rows" in table([])._repr_html_()


@pytest.mark.parametrize("rows", ["words", 3, {"a": 1}, [3], [{"a": 1}, "b"], [Bill], None])
def test_what_is_no_list_of_rows_is_refused(rows):
    with pytest.raises(ValueError, match="got"):
        table(rows)


def test_numbers_under_each_other_are_written_alike():
    rates = table([{"rate": rate} for rate in (1144, 512, 13_900, -2048)])
    assert [row[0] for row in rates.cells] == ["1,144", "512", "13,900", "-2,048"]
    assert [row[0] for row in table([{"gpus": 1536}, {"gpus": 8}]).cells] == ["1536", "8"]
    assert table([{}, {}]).cells == ((), ())
