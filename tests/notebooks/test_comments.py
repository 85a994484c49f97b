"""Comments and docstrings of a chapter's code in Chinese: nothing else of a cell changes, what is
stale fails the build, and what is missing is counted."""

import ast
import re

import build
import builds
import comments
import pytest
from chapter import Cell, Chapter, read
from small import CHAPTERS, NOTEBOOKS, code_of, edit, load

CELL = '''def double(x):  # twice
    """Twice x,

    in two lines."""
    # twice
    text = "# no comment"
    ### BEGIN SOLUTION
    return 2 * x  # says why
'''
CHINESE = {"twice": "两倍", "Twice x, in two lines.": "x 的两倍。", "says why": "说明“为什么”"}
FILE = "zh/03_tiny.md"


def test_every_remark_is_found_once_and_in_order():
    found = sorted(comments.remarks(CELL), key=lambda each: each.first)
    assert [(each.english, each.is_comment) for each in found] == [
        ("twice", True),
        ("Twice x, in two lines.", False),
        ("twice", True),
        ("says why", True),
    ]
    assert comments.missing([CELL, CELL], {"twice": "两倍"}) == [
        "Twice x, in two lines.",
        "says why",
    ]
    assert comments.faults([CELL], {"thrice": "三倍", "twice": "两倍"}) == [
        "comments: no code cell says 'thrice'. Remove it, or bring it up to date"
    ]


def test_a_cell_in_chinese_is_the_same_program():
    told = comments.rendered(CELL, CHINESE)
    assert told.splitlines() == [
        "def double(x):  # 两倍",
        '    """x 的两倍。"""',
        "    # 两倍",
        '    text = "# no comment"',
        "    ### BEGIN SOLUTION",
        "    return 2 * x  # 说明“为什么”",
    ]
    assert comments.bare(told) == comments.bare(CELL)
    assert comments.rendered(CELL, {}) == CELL
    assert comments.bare(told) != comments.bare(told.replace("2 * x", "3 * x"))
    assert comments.bare(told) != comments.bare(told.replace("no comment", "没有"))


def test_a_long_docstring_is_folded():
    told = comments.rendered('def f():\n    """One."""\n', {"One.": "很长的一句话，" * 20})
    lines = told.splitlines()
    assert len(lines) > 3 and all(line.startswith("    ") for line in lines[1:])
    assert max(map(len, lines)) < 60
    assert comments.bare(told) == comments.bare('def f():\n    """One."""\n')


SHOWS = """runs = {"two threads": 1.5, "DDP": 1}
share = lab.guess("the idle share", between=(0, 1))
lab.bars(runs, title="By name" if wide else "Threads", unit="ms")
lab.table(runs["two threads"], title={"en": "One thing", "zh": "一件事"})
lab.curves(measured={"a long run": runs}, x="ranks", y="ms", badge=f"{run} here")
print("two threads", f"two threads")
"""
TOLD = {'"two threads"': '"两个线程"', '"the idle share"': '"空闲占比"', '"ranks"': '"rank 数"'}


def test_the_words_that_a_reader_is_shown_are_told_in_chinese():
    assert set(comments.shown(SHOWS)) == {
        '"the idle share"',
        '"By name"',
        '"a long run"',
        '"ranks"',
    }
    told = comments.rendered(SHOWS, TOLD)
    assert told.splitlines() == [
        'runs = {"两个线程": 1.5, "DDP": 1}',
        'share = lab.guess("空闲占比", between=(0, 1))',
        """lab.bars(runs, title="By name" if wide else "Threads", unit="ms")""",
        'lab.table(runs["两个线程"], title={"en": "One thing", "zh": "一件事"})',
        'lab.curves(measured={"a long run": runs}, x="rank 数", y="ms", badge=f"{run} here")',
        'print("两个线程", f"two threads")',
    ]
    assert comments.bare(told, TOLD) == comments.bare(SHOWS, TOLD)
    assert comments.bare(told.replace("1.5", "1.6"), TOLD) != comments.bare(SHOWS, TOLD)
    assert comments.bare(told.replace("两个线程", "三个线程"), TOLD) != comments.bare(SHOWS, TOLD)


def test_a_shown_word_is_one_string_and_its_chinese_another():
    faults = comments.faults([SHOWS, 'f("in two " "pieces")'], {'"in two pieces"': '"两段"'})
    assert faults == [
        "comments: no code cell says '\"in two pieces\"'. Remove it, or bring it up to date"
    ]
    assert comments.faults([SHOWS], {'"two threads"': "两个线程"}) == [
        'comments: "two threads" is shown, so its Chinese stands in quotes too'
    ]
    twice = {'"two threads"': '"一"', '"the idle share"': '"一"'}
    assert comments.faults([SHOWS], twice) == [
        'comments: two words have the same Chinese, "一". Tell them apart'
    ]


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        ("- Twice x.\n", "comments: '- Twice x.' should read '- English', below it '  Chinese'"),
        ("Twice x.\n  两倍\n", "comments: 'Twice x.' should read '- English'"),
        ("- Thrice.\n  三倍\n", "comments: no code cell says 'Thrice.'. Remove it"),
        ("- Twice x.\n  两倍\n- Twice x.\n  二倍\n", "comments: 'Twice x.' stands here twice"),
    ],
)
def test_a_fault_in_the_list_fails_the_build(tiny, capsys, part, fault):
    edit(tiny, "## 练习\n", f"## 练习\n\n{comments.MARKER}\n{part}", FILE)
    capsys.readouterr()
    assert build.main([], tiny) == 1
    assert f"{FILE}: {fault}" in capsys.readouterr().err


def test_the_build_counts_what_is_missing_and_takes_what_is_there(tiny, capsys):
    capsys.readouterr()
    assert build.main(["--check"], tiny) == 0
    assert "03: no Chinese of the comment 'Twice x.'" in capsys.readouterr().err
    edit(tiny, "## 练习\n", f"## 练习\n\n{comments.MARKER}\n\n- Twice x.\n  x 的两倍。\n", FILE)
    assert build.main([], tiny) == 0
    assert "no Chinese" not in capsys.readouterr().err
    for kind in ("learner", "solution"):
        assert '"""Twice x."""' in code_of(load(tiny, "03_tiny", "en", kind))[-1]
        assert '"""x 的两倍。"""' in code_of(load(tiny, "03_tiny", "zh", kind))[-1]
    assert build.main(["--stamp", "03", "--all"], tiny) == 0
    assert build.main(["--check"], tiny) == 0, "a stamp leaves the list alone"


SPEAKS = re.compile(r'^(lab\.begin\()"zh"', re.MULTILINE)


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_remark_of_a_chapter_has_its_chinese(name):
    chapter = read(NOTEBOOKS / "src" / f"{name}.py")
    assert comments.missing(chapter.code, chapter.remarks) == []
    for kind in ("learner", "solution", "checked"):
        english = code_of(builds.notebook(chapter, "en", kind))
        chinese = code_of(builds.notebook(chapter, "zh", kind))
        pairs = list(zip(english, chinese, strict=True))
        assert sum(one != other for one, other in pairs) >= 2
        for one, other in pairs:
            told = chapter.remarks
            assert comments.bare(one, told) == comments.bare(SPEAKS.sub(r'\1"en"', other), told)


def lost_keys(chapter):
    """Places where code asks by a word that the Chinese build has in Chinese, and who answers has
    it in English still: what a method returned, or a key made of a word and its unit."""
    shown = {told.strip('"') for told in chapter.remarks if told.startswith('"')}
    found = []
    nodes = [*ast.walk(ast.parse("\n".join(chapter.code)))]
    pieces = [part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values]
    made = {part.value for part in pieces if isinstance(part, ast.Constant)}
    for node in nodes:
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
            continue
        key = str(node.slice.value)
        word, line, unit = key.rpartition("_")
        was_made = word in shown and line + unit in made
        of_a_method = isinstance(getattr(node.value, "func", None), ast.Attribute)
        if (key in shown and of_a_method) or (key not in shown and was_made):
            found.append(ast.unparse(node))
    return found


def test_no_chapter_asks_in_chinese_for_what_has_an_english_name():
    broken = Chapter(
        name="03_tiny",
        header={},
        cells=(
            Cell(kind="code", source='took = plan.parts()["attention"]', options={}),
            Cell(kind="code", source='times = {f"{way}_us": 1 for way in ways}', options={}),
            Cell(kind="code", source='rows[0]["pipeline_us"], mine["pipeline"]', options={}),
        ),
        remarks={'"attention"': '"注意力"', '"pipeline"': '"流水线"'},
    )
    assert lost_keys(broken) == ["plan.parts()['attention']", "rows[0]['pipeline_us']"]
    found = {name: lost_keys(read(NOTEBOOKS / "src" / f"{name}.py")) for name in CHAPTERS}
    assert {name: keys for name, keys in found.items() if keys} == {}
