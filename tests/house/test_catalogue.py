"""The catalogue: every text that labkit says has its Chinese, every entry is said, both fill the
same places, and no Chinese stands in the code."""

import re
from functools import cache

import pytest
import spoken

from labkit import words
from labkit.pictures import scene
from labkit.timeline import from_rows

PACKAGE = spoken.ROOT / "labkit"
CHINESE = dict(words.entries(words.CATALOGUE.read_text(encoding="utf-8")))
CODE = """
_WORDS = (("ring", "a ring"), ("own", "its own", "自带"), *OTHERS)
TITLES = (("tree", "no table"),)
def told(rank):
    say("rank {rank}", rank=rank)
    words.say_number("one {n}", "many {n}", 2, n=2)
    yield wrong("bad {n}", n=1) or print("not said")
    say(f"rank {rank}")
    say(KNOWN[rank])
"""


@cache
def texts():
    """All that labkit says, gathered once, and not while tests are collected."""
    return spoken.spoken(PACKAGE)


def test_every_text_has_its_chinese_and_every_entry_is_said():
    assert len(texts()) > 400
    assert spoken.faults(texts(), CHINESE) == []


def test_the_catalogue_is_as_the_command_writes_it():
    written = words.CATALOGUE.read_text(encoding="utf-8")
    assert written == spoken.written(texts(), CHINESE), "run: python tests/house/spoken.py"


def test_no_text_is_made_up_while_it_runs():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert spoken.made_up(path.read_text(encoding="utf-8")) == [], path.name


def test_no_chinese_stands_in_the_code():
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        if re.search(r"[\u4e00-\u9fff]", path.read_text(encoding="utf-8")):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found == set()


def test_the_walk_finds_what_is_said():
    assert list(spoken.of_code(CODE)) == ["a ring", "rank {rank}", "one {n}", "many {n}", "bad {n}"]
    assert spoken.made_up(CODE) == [8]


@pytest.mark.parametrize(
    ("texts", "chinese", "fault"),
    [
        ({"new": "a.py"}, {}, "a.py: no Chinese of 'new'"),
        ({"new": "a.py"}, {"new": ""}, "a.py: no Chinese of 'new'"),
        ({}, {"old": "旧"}, "zh.po: nothing says 'old'"),
        ({"{a} {b}": "a.py"}, {"{a} {b}": "{a}"}, "places ['a', 'b'], its Chinese ['a']"),
        ({"{} {}": "a.py"}, {"{} {}": "{}"}, "places ['#0', '#1'], its Chinese ['#0']"),
    ],
)
def test_each_fault_is_named(texts, chinese, fault):
    found = spoken.faults(texts, chinese)
    assert len(found) == 1 and fault in found[0]


def test_what_is_written_can_be_read():
    texts = {'a "quoted" {x}': "labkit/a.py", "two\nlines": "labkit/b.py", "bare": "labkit/b.py"}
    chinese = {'a "quoted" {x}': "“引” {x}", "two\nlines": "两\n行"}
    read = dict(words.entries(spoken.written(texts, chinese)))
    assert read == {**chinese, "bare": ""}


def test_a_language_that_nobody_names_is_the_one_in_use():
    for path in sorted(PACKAGE.rglob("*.py")):
        written = path.read_text(encoding="utf-8")
        assert 'language: str = "en")' not in written, path.name
        if path.name != "opening.py":  # whose one business is to name it
            assert 'language: str = "en",' not in written, path.name


def named_again(source):
    """Where a chapter names a language, beside the line that begins it."""
    found = re.findall(r"\bLANGUAGE\b|\blanguage ?=|\blab\.begin\(|\bwords\.use\(", source)
    return found[1:] if found[:1] == ["lab.begin("] else ["no lab.begin first", *found]


def test_a_chapter_names_its_language_once():
    chapters = sorted((spoken.ROOT / "notebooks" / "src").glob("*.py"))
    assert len(chapters) >= 12
    for path in chapters:
        assert named_again(path.read_text(encoding="utf-8")) == [], path.name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('LANGUAGE = "en"\n', ["no lab.begin first", "LANGUAGE"]),
        ('lab.begin("en")\nshow(run, language=LANGUAGE)\n', ["language=", "LANGUAGE"]),
        ('lab.begin("en")\nlab.begin("zh")\n', ["lab.begin("]),
        ("import torch\n", ["no lab.begin first"]),
    ],
)
def test_a_language_named_again_is_found(source, found):
    assert named_again(source) == found


def test_a_picture_is_in_the_language_in_use(chinese):
    drawn = scene.timeline(from_rows([], num_ranks=2, origin="measured"))
    assert drawn.language == "zh" and drawn.in_english().language == "en"
    named = scene.timeline(from_rows([], num_ranks=2, origin="measured"), language="en")
    assert named.language == "en"
