"""How long does nbgrader take to grade a room, and does everybody get what is due?

    python benchmarks/grading.py [--json] [--learners 20] [--chapter 02]

A whole chapter is written as an assignment and released, and every learner hands it in: in turn,
two have solved all exercises, one has none, the last answer of one never ends, and of one it kills
the kernel that grades it. "points" were given to all, of "due"; "wrong" counts learners who got
other points than they were due. "release_s", "autograde_s" and "feedback_s": each of nbgrader's
commands, for all; "each_s": autograding, by learner. "left": processes that are there afterwards.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "notebooks"))
OWN = Path(sys.prefix, "grading")
"""where ``make env`` puts nbgrader"""
COMMAND_S = 3600.0
SET_CHILD_SUBREAPER = 36
KINDS = ("solved", "solved", "empty", "hangs", "kills")
SPOILED = {
    "hangs": "    while True:\n        pass\n",
    "kills": "    import os\n    os.kill(os.getppid(), 9)\n    while True:\n        pass\n",
}
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


def nbgrader(folder: Path, *words: str) -> float:
    """Runs one of nbgrader's commands in the course; returns its seconds."""
    found = importlib.util.find_spec("nbgrader")
    place = Path(found.origin).parents[1] if found else OWN
    paths = [str(ROOT), str(place), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "nbgrader", *words],
        cwd=folder,
        env={**os.environ, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=COMMAND_S,
        check=True,
    )
    return time.monotonic() - began


def answered(source: nbformat.NotebookNode, kind: str) -> nbformat.NotebookNode:
    """The solved chapter, its last answer spoiled where the kind says so."""
    made = nbformat.from_dict(source)
    if kind in SPOILED:
        cell = [each for each in made.cells if BEGIN in each.source][-1]
        before, _, rest = cell.source.partition(BEGIN)
        cell.source = f"{before}\n{SPOILED[kind]}{rest.partition(END)[2]}"
    return made


def hand_in(folder: Path, source: Path, name: str, num_learners: int) -> dict[str, str]:
    """Puts everybody's notebook where nbgrader looks for it. Returns each learner's kind."""
    solved = nbformat.read(source, as_version=4)
    kinds = {}
    for number in range(num_learners):
        learner = f"learner-{number}"
        kind = KINDS[number % len(KINDS)]
        mine = folder / "submitted" / learner / name / source.name
        mine.parent.mkdir(parents=True)
        if kind == "empty":
            shutil.copy(folder / "release" / name / source.name, mine)
        else:
            nbformat.write(answered(solved, kind), mine)
        kinds[learner] = kind
    return kinds


def points(folder: Path) -> dict[str, float]:
    """What each learner was given."""
    rows = sqlite3.connect(folder / "gradebook.db").execute(
        "select s.student_id, sum(g.auto_score) from grade g join submitted_notebook n on "
        "g.notebook_id = n.id join submitted_assignment s on n.assignment_id = s.id "
        "group by s.student_id"
    )
    return dict(rows)


def measure(num_learners: int, chapter: str) -> dict:
    """One row: a room's assignment from its release to its feedback."""
    before = set(psutil.Process().children(recursive=True))
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)  # whatever is left becomes a child of ours
    try:
        row = _graded(num_learners, chapter)
        new = set(psutil.Process().children(recursive=True)) - before
        return row | {"left": sum(_runs(each) for each in new)}
    finally:
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 0)


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended: what became ours and ended is a zombie until we end."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _graded(num_learners: int, chapter: str) -> dict:
    import assignments

    with tempfile.TemporaryDirectory(prefix="grading-") as temporary:
        folder = Path(temporary)
        (source,) = assignments.write(folder, [chapter], "en")
        name = source.stem
        release_s = nbgrader(folder, "generate_assignment", name)
        kinds = hand_in(folder, source, name, num_learners)
        autograde_s = nbgrader(folder, "autograde", name)
        feedback_s = nbgrader(folder, "generate_feedback", name)
        given = points(folder)
        exercises = source.read_text(encoding="utf-8").count(BEGIN)
        due = {"solved": exercises, "empty": 0} | dict.fromkeys(SPOILED, exercises - 1)
    return {
        "chapter": name,
        "learners": num_learners,
        "exercises": exercises,
        "points": sum(given.values()),
        "due": sum(due[kind] for kind in kinds.values()),
        "wrong": sum(given.get(learner) != due[kind] for learner, kind in kinds.items()),
        "release_s": round(release_s, 1),
        "autograde_s": round(autograde_s, 1),
        "each_s": round(autograde_s / num_learners, 1),
        "feedback_s": round(feedback_s, 1),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--learners", type=int, default=20)
    parser.add_argument("--chapter", default="02")
    options = parser.parse_args()
    row = measure(options.learners, options.chapter)
    words = "  ".join(f"{key} {value}" for key, value in row.items())
    print(json.dumps([row]) if options.json else words)


if __name__ == "__main__":
    main()
