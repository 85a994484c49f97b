"""A room's notebooks through nbgrader: one answer is spoiled, and who got other points is seen."""

import importlib.util
from pathlib import Path

import nbformat
import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "grading.py"


@pytest.fixture(scope="module")
def grading():
    spec = importlib.util.spec_from_file_location("grading", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def solved(grading, number):
    body = f"    {grading.BEGIN}\n    return {number}\n    {grading.END}\n"
    return nbformat.v4.new_code_cell(f"def answer_{number}():\n{body}")


@pytest.mark.parametrize("kind", ["solved", "hangs", "kills"])
def test_only_the_last_answer_is_spoiled(grading, kind):
    notebook = nbformat.v4.new_notebook(cells=[solved(grading, 0), solved(grading, 1)])
    made = grading.answered(notebook, kind)
    assert made.cells[0].source == notebook.cells[0].source
    assert ("while True" in made.cells[1].source) == (kind != "solved")
    assert ("return 1" in made.cells[1].source) == (kind == "solved")
    compile(made.cells[1].source, "cell", "exec")
    assert "return 1" in notebook.cells[1].source  # what was given stays


@pytest.mark.alone  # it counts processes, and others' may become its own
@pytest.mark.again
@pytest.mark.timeout(900)
def test_everybody_gets_what_is_due_and_nothing_is_left(grading):
    row = grading.measure(len(grading.KINDS), "02")
    assert row["wrong"] == 0 and row["left"] == 0, row
    assert row["points"] == row["due"] == 4 + 4 + 0 + 3 + 3
