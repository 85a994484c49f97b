"""Every real chapter: its notebooks are what its sources say."""

import build
import pytest
from law import CELL_LINES, RANK_CELL_LINES, check_builds, oversized
from small import CHAPTERS, ROOT, code_of, load


def test_generated_files_are_current(capsys):
    assert build.main(["--check"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapters_notebooks_differ_only_where_they_may(chapter):
    check_builds(ROOT, chapter)


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
