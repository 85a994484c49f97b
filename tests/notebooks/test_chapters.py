"""Every real chapter: its notebooks are what its sources say."""

import importlib
import re

import build
import pytest
from chapter import Cell, Chapter, optional, read
from law import CELL_LINES, RANK_CELL_LINES, check_builds, oversized, unmarked
from small import CHAPTERS, NOTEBOOKS, ROOT, code_of, load, text_of


def test_generated_files_are_current(capsys):
    assert build.main(["--check"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapters_notebooks_differ_only_where_they_may(chapter):
    check_builds(ROOT, chapter)


def unknown_names(source):
    """What a source imports from labkit and labkit does not have; the scripts that it holds as
    strings included."""
    found = []
    for module, names in re.findall(
        r"^ *from (labkit[\w.]*) import ([\w, ]+)$", source, re.MULTILINE
    ):
        for each in names.split(","):
            name = each.split()[0]
            if not hasattr(importlib.import_module(module), name) and not is_module(module, name):
                found.append(f"{module}.{name}")
    return found


def is_module(package, name):
    """Whether a package has a module of that name."""
    try:
        importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_name_that_a_chapter_imports_from_labkit_exists(chapter):
    assert unknown_names(text_of(NOTEBOOKS / "src" / f"{chapter}.py")) == []


def test_unknown_names_are_found():
    script = 'TRAIN = """import os\nfrom labkit import model, meter as m\n"""\n'
    assert unknown_names(script) == ["labkit.meter"]
    assert unknown_names("    from labkit.timeline import bubble, bubbles\n") == [
        "labkit.timeline.bubbles"
    ]


def test_what_stands_behind_the_divider_is_optional_but_for_summary_and_errata():
    texts = [
        "# Title",
        "## Core",
        "---\n\n*Here ends what most people need. The rest is optional.*",
        "## More\n\n### Within it",
        "Its prose",
        "## Still more",
        "## Summary",
        "## Errata of the textbook",
    ]
    cells = [Cell(kind="markdown", source=text, options={}) for text in texts]
    cells.insert(4, Cell(kind="code", source="## More", options={}))
    expected = [False, False, False, True, False, False, True, False, False]
    assert optional(cells) == expected


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_cells_are_short(chapter):
    assert oversized(code_of(load(ROOT, chapter, "en", "solution"))) == []


def test_long_cells_are_found():
    body = "\n".join(["    pass"] * CELL_LINES)
    more = "\n".join(["    pass"] * (RANK_CELL_LINES - CELL_LINES))
    fault = f"{CELL_LINES + 1} lines: def f():"
    assert oversized([f"def f():\n{body}"]) == [fault]
    assert oversized([f"def f():\n{body}", "lab.launch(f, ranks=2)"]) == []
    assert oversized([f"def f():\n{body}", "check.pipeline(f)"]) == []
    fault = f"{RANK_CELL_LINES + 1} lines: def f():"
    assert oversized([f"def f():\n{body}\n{more}", "start(f)"]) == [fault]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_cell_that_names_a_section_is_marked_with_it(chapter):
    assert unmarked(read(NOTEBOOKS / "src" / f"{chapter}.py")) == []


def test_a_cell_that_names_a_section_and_is_not_marked_is_found():
    cells = [
        Cell(kind="markdown", source="# Title, of 8.4.4", options={}),
        Cell(kind="markdown", source="## One", options={"sections": "8.4.4"}),
        Cell(kind="markdown", source="Section 8.4.4 says so, and 8.4.41 does.", options={}),
        Cell(kind="markdown", source="## Two\n\nNot 18.4.4.", options={}),
    ]
    about = {"name": "07_tiny", "header": {"sections": ["8.4.4"]}, "remarks": {}}
    chapter = Chapter(**about, cells=tuple(cells))
    assert unmarked(chapter) == []
    more = Cell(kind="markdown", source="Section 8.4.4 says more.", options={})
    faulty = Chapter(**about, cells=(*cells, more))
    assert unmarked(faulty) == ["Two: 8.4.4"]
