"""Writes chapters as a course for nbgrader: ``source/NN_name/NN_name.ipynb`` and its configuration.

    python -m labkit classroom assignments FOLDER --chapters 02 08

A cell with a solution is one that learners fill in; the call of a check after it is a test cell of
one point, which raises unless the answer has passed.
"""

import argparse
import ast
import sys
from pathlib import Path

import builds
from chapter import SOLUTION, Chapter, read, sources
from nbformat import NotebookNode

from labkit.check import chapters

ROOT = Path(__file__).resolve().parent.parent
CONFIG = Path("notebooks", "grading", "nbgrader_config.py")
POINTS = 1


def notebook(chapter: Chapter, language: str) -> NotebookNode:
    """A chapter with its solutions between nbgrader's marks, and its checks as test cells."""
    made = builds.notebook(chapter, language, "solution")
    answered = 0
    for cell, source in zip(made.cells, chapter.cells, strict=True):
        if SOLUTION.search(source.source):
            answered += 1
            cell.source = builds.marked(chapter, source, language)
            cell.metadata.nbgrader = _marks(f"answer-{answered}", solution=True)
        elif name := exercise(cell):
            cell.source += ".require()"
            cell.metadata.nbgrader = _marks(f"check-{name}", grade=True, locked=True, points=POINTS)
    made.metadata.labkit["build"] = "assignment"
    return made


def exercise(cell: NotebookNode) -> str:
    """The exercise that a cell checks, if it does that and nothing else; else nothing."""
    if cell.cell_type != "code":
        return ""
    body = ast.parse(cell.source).body
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        return ""
    called = body[0].value
    if not isinstance(called, ast.Call) or not isinstance(called.func, ast.Attribute):
        return ""
    owner = called.func.value
    is_check = isinstance(owner, ast.Name) and owner.id.endswith("check")
    return called.func.attr if is_check and called.func.attr in chapters.hints() else ""


def _marks(grade_id: str, **others: object) -> NotebookNode:
    """What nbgrader reads of a cell."""
    plain = {"grade": False, "solution": False, "locked": False, "task": False}
    return NotebookNode({**plain, "schema_version": 3, "grade_id": grade_id, **others})


def write(folder: Path, numbers: list[str], language: str) -> list[Path]:
    """Writes the course and returns its notebooks. A configuration that is there stays as it is.
    Raises ValueError for a chapter that there is not, or that has no exercise."""
    found = {path.stem[:2]: path for path in sources(ROOT)}
    if unknown := [number for number in numbers if number not in found]:
        raise ValueError(f"the chapters are {', '.join(found)}; got {', '.join(unknown)}")
    written = []
    for number in numbers or found:
        made = notebook(read(found[number]), language)
        checks = [cell for cell in made.cells if cell.metadata.get("nbgrader", {}).get("grade")]
        if not checks and numbers:
            raise ValueError(f"an assignment has an exercise, and chapter {number} has none")
        if checks:
            path = folder / "source" / found[number].stem / f"{found[number].stem}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(builds.text(made), encoding="utf-8")
            written.append(path)
    config = folder / CONFIG.name
    if not config.exists():
        config.write_bytes((ROOT / CONFIG).read_bytes())
    return written


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes chapters as a course for nbgrader")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chapters", nargs="+", default=[])
    parser.add_argument("--in", dest="language", choices=("en", "zh"), default="en")
    chosen = parser.parse_args(arguments)
    try:
        written = write(chosen.folder, chosen.chapters, chosen.language)
    except ValueError as fault:
        print(fault, file=sys.stderr)
        return 1
    print(*written, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
