"""Real nbgrader: an assignment is generated, answers of all kinds are graded, and fed back."""

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import assignments
import builds
import nbformat
import pytest

OWN = Path(sys.prefix, "grading")
"""where ``make env`` puts nbgrader: beside the environment, so that JupyterLab does not load it"""
FOUND = importlib.util.find_spec("nbgrader")
PLACE = Path(FOUND.origin).parents[1] if FOUND else OWN
RIGHT = """
    in_order = sorted(sent_bytes)
    if in_order[0] == in_order[-1]:
        return "ring"
    return "parameter_server" if in_order[-2] == num_bytes else "tree"
"""
ANSWERS = {
    "right": (RIGHT, 1.0),
    "wrong": ('    return "ring"', 0.0),
    "patches": (
        "    from labkit.check.verdict import Verdict\n"
        "    Verdict.require = lambda verdict: None\n    return 'ring'",
        0.0,
    ),
}
MORE = {  # graded in `make test-all`; their limits by themselves are in test_kernel_run
    "hangs": ("    while True:\n        pass", 0.0),
    "forks": (
        "    import os, time\n    for _ in range(300):\n        if os.fork() == 0:\n"
        "            os.setsid()\n            time.sleep(60)\n            os._exit(0)\n"
        "    time.sleep(60)",
        0.0,
    ),
    "own right": (RIGHT, 1.0),
    "own wrong": ('    return "ring"', 0.0),
    "loud": ("    print('x' * 5_000_000)\n" + RIGHT, 1.0),
    "kills": ("    import os\n    os.kill(os.getppid(), 9)\n    while True:\n        pass", 0.0),
    "fills": ("    held = [bytearray(b'1') * 10**8 for _ in range(300)]", 0.0),
}
HEAD = "def my_algorithm(num_bytes, sent_bytes):\n"
NAME = "02_collectives"
pytestmark = pytest.mark.again


def needs_nbgrader():
    """Skips where there is none; in CI it must be there."""
    if not (PLACE / "nbgrader").is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"CI grades with real nbgrader, and {PLACE} has none: make env")
        pytest.skip("needs nbgrader: make env puts it beside the environment")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course whose one assignment has one exercise of chapter 02, with answers submitted."""
    needs_nbgrader()
    folder = tmp_path_factory.mktemp("course")
    (path,) = assignments.write(folder, ["02"], "en")
    config = folder / "nbgrader_config.py"
    limits = "Limits(seconds=60, processes=24, memory_gb=4, file_gb=1)"
    text = config.read_text(encoding="utf-8").replace(
        "Limits(seconds=900, processes=64, memory_gb=8, file_gb=2)", limits
    )
    assert limits in text
    config.write_text(text, encoding="utf-8")
    shorten(path)
    nbgrader(folder, "generate_assignment", NAME)
    grade(folder, ANSWERS)
    return folder


@pytest.fixture(scope="module")
def more(course):
    """The same course, in which others hand in late."""
    grade(course, MORE)
    return course


def grade(folder, answers):
    """Hands in answers, has those graded that were not, and fed back."""
    released = folder / "release" / NAME / f"{NAME}.ipynb"
    for student, (answer, _) in answers.items():
        submit(folder, student, released, answer)
    nbgrader(folder, "autograde", NAME)
    nbgrader(folder, "generate_feedback", NAME)


def score(folder, student):
    """A learner's points."""
    rows = sqlite3.connect(folder / "gradebook.db").execute(
        "select s.student_id, g.auto_score from grade g join submitted_notebook n on "
        "g.notebook_id = n.id join submitted_assignment s on n.assignment_id = s.id"
    )
    return dict(rows)[student]


def says(folder, student, words):
    """Whether a learner's feedback has some words."""
    page = folder / "feedback" / student / NAME / f"{NAME}.html"
    return words in page.read_text(encoding="utf-8")


def shorten(path):
    """Keeps of a chapter its first cell and one exercise."""
    made = nbformat.read(path, as_version=4)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    made.cells = [code[0]]
    for cell in code:
        if "nbgrader" in cell.metadata and "my_algorithm" in cell.source:
            made.cells.append(cell)
    assert len(made.cells) == 3
    path.write_text(builds.text(made), encoding="utf-8")


def submit(folder, student, released, answer):
    """Puts an answer where the exercise's stub is."""
    notebook = nbformat.read(released, as_version=4)
    (cell,) = [each for each in notebook.cells if builds.STUB in each.source]
    cell.source = HEAD + answer
    if student.startswith("own"):
        as_the_courses(notebook)
    path = folder / "submitted" / student / NAME / released.name
    path.parent.mkdir(parents=True)
    path.write_text(builds.text(notebook), encoding="utf-8")


def as_the_courses(notebook):
    """Makes of a release the notebook that the course itself has, its check called twice."""
    for each in notebook.cells:
        each.metadata.pop("nbgrader", None)
        each.source = each.source.replace(".require()", "")
    notebook.cells += [nbformat.v4.new_code_cell(notebook.cells[-1].source + "  # again")]


def nbgrader(folder, *words, fails=False):
    """Runs one of nbgrader's commands in the course; it must succeed, unless it ``fails``."""
    paths = [str(assignments.ROOT), str(PLACE), os.environ.get("PYTHONPATH", "")]
    path = f"{PLACE / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": ":".join(paths), "PATH": path}
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert bool(done.returncode) == fails, done.stderr[-3000:]
    return done.stderr


def test_a_release_has_no_solution(course):
    notebook = nbformat.read(course / "release" / NAME / f"{NAME}.ipynb", as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "SOLUTION" not in text and "in_order" not in text
    assert text.count(builds.STUB) == 1
    assert "check.which_algorithm(my_algorithm).require()" in text


@pytest.mark.parametrize("student", ANSWERS)
def test_an_answer_gets_what_it_is_worth(course, student):
    assert score(course, student) == ANSWERS[student][1]


@pytest.mark.parametrize("student", MORE)
def test_a_late_answer_gets_what_it_is_worth(more, student):
    assert score(more, student) == MORE[student][1]


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("wrong", "NotPassed"),
        ("patches", "GraderChanged"),
    ],
)
def test_feedback_says_why(course, student, words):
    assert says(course, student, words)


@pytest.mark.parametrize(
    ("student", "words"),
    [
        ("hangs", "no answer within 10 s"),
        ("forks", "more than 24 processes"),
        ("fills", "more than 4 GB"),
        ("kills", "the kernel was ended"),
    ],
)
def test_late_feedback_says_why(more, student, words):
    assert says(more, student, words)


def test_a_notebook_without_a_check_is_refused(course):
    path = course / "submitted" / "strange" / NAME / f"{NAME}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(builds.text(nbformat.v4.new_notebook()), encoding="utf-8")
    told = nbgrader(course, "autograde", NAME, "--student", "strange", fails=True)
    assert "no cell of this notebook checks an answer" in told
    assert not (course / "autograded" / "strange" / NAME).exists()
