"""A new subject is one folder, one source and one folder of tests: nothing else is registered.

A subject that does not exist, juggling, is added to a copy of the project; everything that walks
the subjects finds it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import build
import house
import public
import pytest

ROOT = Path(__file__).resolve().parents[2]
SUBJECT = {
    "__init__": '"""Juggling: balls in the air. ``throws`` has the theory. Chapter 23."""\n',
    "throws": '''"""How high a ball must fly."""

from labkit.units import check_whole


def height(num_balls: int) -> float:
    """In hands' widths. Raises ValueError for less than a ball."""
    check_whole(num_balls=num_balls)
    return num_balls**2.0
''',
    "board": '''"""The widget."""

import ipywidgets

from labkit.juggling.throws import height

__all__ = ["juggling_board"]


def juggling_board(num_balls: int = 3) -> ipywidgets.HTML:
    """Shows the height."""
    return ipywidgets.HTML(f"{height(num_balls)}")
''',
    "check": '''"""The exercise of chapter 23."""

from collections.abc import Callable, Iterator

from labkit.check import exercise, hint, status

__all__ = ["cascade", "hint", "status"]


@exercise
def cascade(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_balls)`` is the height."""
    if answer(3) != 9:
        yield "wrong", f"3 balls: {answer(3)}"
''',
}
HINTS = {"cascade": {"en": ["square", "squares", "n**2"], "zh": ["平方", "平方数", "n**2"]}}
SOURCE = """# ---
# jupyter:
#   labkit:
#     sections: ["J1"]
#     needs: ["two hands"]
#     minutes: 5
# ---

# %% [markdown] sections="J1"
# # Juggling

# %%
import labkit as lab

lab.begin("en")
from labkit.juggling import check, throws


# %%
def cascade(num_balls):
    ### BEGIN SOLUTION
    return num_balls**2
    ### END SOLUTION


# %%
check.cascade(cascade)

# %%
check.status()
"""
CHINESE = "<!-- cell: juggling -->\n# 抛接\n"
ASK = """
import fuzz_walk
from labkit import widgets
from labkit.juggling import check
print("juggling_board" in widgets.__all__, widgets.juggling_board().value)
print(check.cascade(lambda num_balls: 9).state, "juggling.throws.height" in fuzz_walk.FUZZED)
check.hint("cascade")
"""


@pytest.fixture
def project(tmp_path):
    """A copy of the package and of the builder's files, with one more subject."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "labkit", tmp_path / "labkit", ignore=ignored)
    shutil.copytree(ROOT / "notebooks" / "src", tmp_path / "notebooks" / "src", ignore=ignored)
    shutil.copytree(ROOT / "data", tmp_path / "data")
    shutil.copy(ROOT / "README.md", tmp_path)
    folder = tmp_path / "labkit" / "juggling"
    folder.mkdir()
    for name, text in SUBJECT.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "hints.json").write_text(json.dumps(HINTS))
    source = tmp_path / "notebooks" / "src" / "23_juggling.py"
    source.write_text(SOURCE)
    (source.parent / "zh" / "23_juggling.md").write_text(CHINESE, encoding="utf-8")
    return tmp_path


@pytest.mark.again
def test_a_new_subject_keeps_the_rules_of_the_house(project):
    tree = house.sources(project / "labkit")
    assert "juggling.throws" in tree
    for rule in (house.import_faults, house.cycle_faults, house.size_faults, house.folder_faults):
        assert rule(tree) == []
    assert public.docstring_faults(tree) == public.type_faults(tree) == []


@pytest.mark.timeout(180)
@pytest.mark.again
def test_gallery_hints_and_fuzz_find_a_new_subject_by_walking(project):
    path = os.pathsep.join([str(project), str(Path(__file__).parent)])
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=project,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert asked.stdout.splitlines() == ["True 9.0", "passed True", "1/3: square"], asked.stderr


@pytest.mark.again
def test_the_notebooks_of_a_new_subject_are_built_and_listed(project):
    assert build.main(["--stamp", "23", "--all"], project) == 0
    assert build.main([], project) == 0
    folders = ("", "zh", "solutions", "solutions/zh")
    for folder in folders:
        assert (project / "notebooks" / folder / "23_juggling.ipynb").exists()
    assert "[Juggling](notebooks/23_juggling.ipynb)" in (project / "README.md").read_text()
    assert "| J1 | [23_juggling]" in (project / "notebooks" / "COVERAGE.md").read_text()
