"""Chapters as a course for nbgrader: every exercise is one test cell, and it needs a verdict."""

import ast
import shutil
import subprocess
import sys

import assignments
import nbformat
import pytest
from chapter import read, sources

from labkit.check import chapters
from labkit.check.verdict import STATES, NotPassed, Verdict
from labkit.classroom import assignments_command

SOURCES = sources(assignments.ROOT)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_exercise_of_a_chapter_is_graded_once(language):
    for source in SOURCES:
        made = assignments.notebook(read(source), language)
        nbformat.validate(made)
        marks = [cell.metadata.nbgrader for cell in made.cells if "nbgrader" in cell.metadata]
        graded = [mark.grade_id.removeprefix("check-") for mark in marks if mark.grade]
        expected = []
        for place, names in chapters.exercises().items():
            if place[:2] == source.stem[:2]:
                expected += names
        assert sorted(graded) == sorted(expected)
        assert sum(mark.solution for mark in marks) >= len(graded)
        assert len({mark.grade_id for mark in marks}) == len(marks)


def test_cells_are_python_and_solutions_stand_between_marks():
    for source in SOURCES:
        for cell in assignments.notebook(read(source), "en").cells:
            marks = cell.metadata.get("nbgrader", {})
            if cell.cell_type == "code":
                ast.parse(cell.source)
            if marks.get("solution"):
                assert cell.source.count("### BEGIN SOLUTION") >= 1
                assert cell.source.count("BEGIN SOLUTION") == cell.source.count("END SOLUTION")
            elif marks.get("grade"):
                assert cell.source.endswith(".require()") and marks.locked and marks.points == 1
            else:
                assert "SOLUTION" not in cell.source


@pytest.mark.parametrize("state", STATES)
def test_only_what_has_passed_gets_by(state):
    verdict = Verdict(state=state, counterexample="2 ranks" if state != "passed" else "")
    if state == "passed":
        assert verdict.require() is None
        return
    with pytest.raises(NotPassed) as caught:
        verdict.require()
    assert str(caught.value) == repr(verdict)


def test_the_command_writes_a_course(tmp_path):
    words = [sys.executable, "-m", "labkit", "classroom", "assignments", tmp_path]
    done = subprocess.run([*words, "--chapters", "02"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    name = "02_collectives"
    assert (tmp_path / "source" / name / f"{name}.ipynb").is_file()
    config = tmp_path / "nbgrader_config.py"
    ast.parse(config.read_text(encoding="utf-8"))
    config.write_text("mine\n")
    assert assignments.write(tmp_path, ["02"], "en")
    assert config.read_text() == "mine\n"


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"the chapters are 00, .*got 99"):
        assignments.write(tmp_path, ["99"], "en")
    with monkeypatch.context() as patch:
        patch.setattr(assignments, "exercise", lambda cell: "")
        with pytest.raises(ValueError, match="chapter 21 has none"):
            assignments.write(tmp_path, ["21"], "en")
    monkeypatch.setattr(assignments_command, "WRITER", tmp_path / "assignments.py")
    with pytest.raises(ValueError, match="Clone the course"):
        assignments_command.write(tmp_path, ["00"], "en")
    shutil.copy(__file__, tmp_path / "assignments.py")
    monkeypatch.setattr(assignments_command.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="jupytext"):
        assignments_command.write(tmp_path, ["00"], "en")
