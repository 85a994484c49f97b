"""The course's nbgrader, written by ``python -m labkit classroom assignments``.

Answers run under limits of time, processes and memory. This is no sandbox: an answer runs as the
user who grades. Grade as a user of its own, or in a container, where you do not trust the room.
"""

import re
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell, new_output
from nbgrader.converters import Autograde
from nbgrader.preprocessors import Execute, NbGraderPreprocessor

from labkit.check import chapters
from labkit.classroom.kernel_run import Limits, command

LIMITS = Limits(seconds=900, processes=64, memory_gb=8, file_gb=2)
"""of one submitted notebook"""
CELL_S = 120
"""of one cell"""
UNTOUCHED = """
def _untouched(*arguments, **named):
    raise NotImplementedError("your turn")
{check}(_untouched).require()
"""
"""An answer that no grader may pass"""


CALL = re.compile(r"\s*\w*check\.(\w+)\(")
"""A cell that checks an answer begins like this"""


class CoursesOwn(NbGraderPreprocessor):
    """Takes the course's own notebook for the one in ``release/``: its checks become that one's."""

    def preprocess(self, nb, resources):
        """Marks the last call of each check. Raises ValueError where there is none."""
        if any("nbgrader" in cell.metadata for cell in nb.cells):
            return nb, resources
        found = {}
        for cell in nb.cells:
            called = CALL.match(cell.source) if cell.cell_type == "code" else None
            if called and called[1] in chapters.hints():
                found[called[1]] = cell
        if not found:
            raise ValueError("no cell of this notebook checks an answer: is it the chapter's?")
        for name, cell in found.items():
            marks = {"grade": True, "solution": False, "locked": True, "task": False, "points": 1}
            told = {"schema_version": 3, "grade_id": f"check-{name}", "cell_type": "code"}
            cell.metadata["nbgrader"] = {**marks, **told}
        return nb, resources


class LimitedKernel(AsyncKernelManager):
    """Starts a kernel under guards."""

    def format_kernel_cmd(self, *arguments, **options):
        """The kernel's command, run by the guards'."""
        started = super().format_kernel_cmd(*arguments, **options)
        return command(LIMITS, note_of(self), started)


def note_of(manager):
    """The file in which a kernel's guards say why they have ended it."""
    return f"{manager.connection_file}.note"


class Limited(Execute):
    """Runs a submission. A kernel that dies fails the checks from there on, and nbgrader goes on
    with the next one."""

    def __init__(self, *arguments, **options):
        options["kernel_manager_class"] = LimitedKernel
        super().__init__(*arguments, **options)

    def preprocess(self, nb, resources, km=None):
        """Runs all cells of one notebook."""
        self.died = ""
        return super().preprocess(nb, resources, km)

    def preprocess_cell(self, cell, resources, index):
        """Runs one cell; what a check cell says is made to be its verdict, and nothing else."""
        graded = cell.get("metadata", {}).get("nbgrader", {}).get("grade", False)
        if not self.died:
            try:
                cell, resources = super().preprocess_cell(cell, resources, index)
                if graded and not failed(cell):
                    self.try_untouched(cell, index)
            except DeadKernelError:
                self.died = self.reason()
        if self.died and graded:
            cell.outputs.append(error("KernelDied", self.died))
        for output in cell.get("outputs", []) if graded else []:
            if output.output_type == "stream":  # nbgrader fails a check for any word on stderr
                output.name = "stdout"
        return cell, resources

    def try_untouched(self, cell, index):
        """Fails a check that passes everything: then the submission has changed the grader."""
        check = re.match(r"\w+\.\w+(?=\()", cell.source)[0]
        probe = new_code_cell(UNTOUCHED.format(check=check))
        self.execute_cell(probe, index, store_history=False)
        self.nb.cells[index] = cell
        if not failed(probe):
            cell.outputs.append(error("GraderChanged", "this check passes what is no answer"))

    def reason(self):
        """Why the kernel has died."""
        note = Path(note_of(self.km))
        told = note.read_text(encoding="utf-8") if note.exists() else "it was ended from inside"
        note.unlink(missing_ok=True)
        return f"the kernel was ended: {told}"


def failed(cell):
    """Whether a cell has raised."""
    return any(output.output_type == "error" for output in cell.outputs)


def error(name, words):
    """An output that nbgrader takes as failed."""
    return new_output("error", ename=name, evalue=words, traceback=[f"{name}: {words}"])


c = get_config()  # noqa: F821
c.CourseDirectory.course_id = "labkit"
c.CourseDirectory.root = str(Path(__file__).parent)
c.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("your turn: replace this line")'}
c.Autograde.sanitize_preprocessors = [CoursesOwn, *Autograde().sanitize_preprocessors]
steps = Autograde().autograde_preprocessors
c.Autograde.autograde_preprocessors = [Limited if each is Execute else each for each in steps]
c.Execute.timeout = CELL_S
