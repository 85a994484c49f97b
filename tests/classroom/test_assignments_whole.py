"""Whole chapters through nbgrader: each is released without its solutions, and a solved one gets
all of its points."""

import shutil
import sqlite3

import assignments
import pytest
from chapter import sources
from classroom.test_assignments_graded import NAME, builds, nbformat, nbgrader, needs_nbgrader

pytestmark = [pytest.mark.again, pytest.mark.timeout(600)]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_chapter_is_released_without_solutions(tmp_path, language):
    needs_nbgrader()
    written = assignments.write(tmp_path, [], language)
    names = [path.stem for path in written]
    for name in names:
        nbgrader(tmp_path, "generate_assignment", name)
        released = nbformat.read(tmp_path / "release" / name / f"{name}.ipynb", as_version=4)
        text = "\n".join(cell.source for cell in released.cells)
        assert "SOLUTION" not in text and builds.STUB in text
    assert names == [path.stem for path in sources(assignments.ROOT)]  # all have exercises


def test_a_solved_chapter_gets_all_its_points(tmp_path):
    needs_nbgrader()
    (path,) = assignments.write(tmp_path, ["02"], "en")
    nbgrader(tmp_path, "generate_assignment", NAME)
    mine = tmp_path / "submitted" / "solved" / NAME / path.name
    mine.parent.mkdir(parents=True)
    shutil.copy(path, mine)
    nbgrader(tmp_path, "autograde", NAME)
    rows = sqlite3.connect(tmp_path / "gradebook.db").execute("select auto_score from grade")
    assert [score for (score,) in rows] == [1.0] * 5
