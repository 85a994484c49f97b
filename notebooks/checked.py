"""The checked builds, ``out/checked/`` (Chinese: ``out/checked/zh/``): every cell of a chapter, and
for each exercise the solution and its check as well, executed once by nbmake, four at a time, and
those about clocks after the others, alone. Tests and the book read these copies; what is there and
still current is not executed again.

    python notebooks/checked.py           every English chapter, and one in Chinese
    python notebooks/checked.py 00 08     only these, in English
    python notebooks/checked.py --languages   every chapter in both languages
    python notebooks/checked.py --write   execute nothing; then, by hand:
                                          pytest --nbmake --overwrite out/checked
"""

import argparse
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import builds
import nbformat
from chapter import read, sources
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

from labkit.machine import resources

ROOT = Path(__file__).resolve().parent.parent
CHINESE = "00_start_here"
NOTEBOOK_TIMEOUT_S = 1200
AT_A_TIME = 4
"""So many are executed at once, on two cores: a notebook waits more than it computes."""
BY_THEMSELVES = ("22_your_own_machine",)
"""Chapters about clocks beside predictions: they run after the others, each alone."""
DEVICE = "pretend"
"""What ranks stand on. Pretend devices are held to a GPU's rules: what runs there runs on GPUs."""

Copy = tuple[str, str]  # a language and a chapter's name


class Failed(RuntimeError):
    """A cell of a checked build went wrong; nbmake has shown it."""


def standard(root: Path) -> list[Copy]:
    """What tests need: every chapter in English, and one in Chinese."""
    names = [path.stem for path in sources(root)]
    return [("en", name) for name in names] + [("zh", name) for name in names if name == CHINESE]


def path_of(root: Path, copy: Copy) -> Path:
    """Where a copy lies."""
    language, name = copy
    return root / "out" / "checked" / ("zh" if language == "zh" else "") / f"{name}.ipynb"


def build(root: Path, copy: Copy) -> NotebookNode:
    """The notebook of a copy, without outputs. It says what its outputs will stand on."""
    language, name = copy
    chapter = read(root / "notebooks" / "src" / f"{name}.py")
    notebook = builds.notebook(chapter, language, "checked")
    stands_on = hashlib.sha256(_foundation(root) + builds.text(notebook).encode())
    notebook.metadata.labkit["stands_on"] = stands_on.hexdigest()[:16]
    return notebook


@cache
def _foundation(root: Path) -> bytes:
    """A hash of what every chapter stands on: the package, its data, the pins, Python."""
    seen = hashlib.sha256(sys.version.encode() + (root / "pyproject.toml").read_bytes())
    for path in sorted([*(root / "labkit").rglob("*"), *(root / "data").rglob("*")]):
        left_out = {"__pycache__", "readme"} & set(path.parts)  # the README's picture is made here
        if path.is_file() and not left_out:
            seen.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return seen.digest()


def faults(notebook: NotebookNode) -> list[str]:
    """The cells that did not run, and those that ended in an error that nobody expects."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        first_line = cell.source.partition("\n")[0]
        if cell.execution_count is None:
            found.append(f"not executed: {first_line}")
        for output in cell.outputs:
            expected = "raises-exception" in cell.metadata.get("tags", [])
            if output.output_type == "error" and not expected:
                found.append(f"{output.ename}: {output.evalue} in: {first_line}")
    return found


def warnings(notebook: NotebookNode) -> list[str]:
    """What no reader should find among the outputs: a warning, or a folder of this machine's
    Python."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            told = [output.get("text", ""), *output.get("traceback", ())]
            told.append(output.get("data", {}).get("text/plain", ""))
            for line in "\n".join(told).splitlines():
                if "Warning: " in line or "site-packages" in line:
                    found.append(f"{line.strip()} in: {cell.source.partition(chr(10))[0]}")
    return found


def write(root: Path, wanted: list[Copy]) -> list[Path]:
    """Writes the copies that are absent, stale or not executed to their end, without outputs.
    Returns those."""
    written = []
    for copy in wanted:
        path = path_of(root, copy)
        fresh = build(root, copy)
        if not _is_current(path, fresh):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(builds.text(fresh), encoding="utf-8")
            written.append(path)
    return written


def _is_current(path: Path, fresh: NotebookNode) -> bool:
    if not path.exists():
        return False
    there = nbformat.read(path, as_version=4)
    same = there.metadata.labkit.stands_on == fresh.metadata.labkit.stands_on
    return same and not faults(there)


def execute(root: Path, wanted: list[Copy]) -> bool:
    """Brings the copies up to date, by one run of nbmake over those that need it. One that fails
    beside another is run once more by itself: two share the cores, and cells have deadlines.
    Returns whether all of them have run to their end without an error."""
    with _alone(root):
        paths = write(root, wanted)
        quiet = [path for path in paths if path.stem in BY_THEMSELVES]
        others = [path for path in paths if path not in quiet]
        went = [nbmake(root, others)] if others else []
        went += [nbmake(root, [path]) for path in quiet]
        if all(went):
            return True
        if len(paths) == 1:
            return False
        again = write(root, wanted)
        print("once more, alone:", *(path.name for path in again), flush=True)
        return all([nbmake(root, [path]) for path in again])


def nbmake(root: Path, paths: list[Path]) -> bool:
    """Runs notebooks in place, the longest first. Returns whether none failed; pytest's report goes
    to stdout."""
    at_once = min(AT_A_TIME, len(paths))
    command = [
        *(sys.executable, "-m", "pytest", "--nbmake", "--overwrite", "--verbose"),
        *("-p", "no:cacheprovider", "--override-ini=addopts=", "--durations=0"),
        f"--timeout={NOTEBOOK_TIMEOUT_S}",
        *(("-n", str(at_once), "--maxschedchunk=1") if at_once > 1 else ()),
        *map(str, longest_first(paths)),
    ]
    environ = {**resources.WAITING, **os.environ, "LABKIT_DEVICE": DEVICE}
    return subprocess.run(command, cwd=root, env=environ).returncode == 0


STARTS = ("launch_script(", "record(", "on=where", "run_on_nodes(", "lose_node(")
"""What starts processes that import torch anew, which takes as long as a dozen cells."""


def _starts(code: str) -> bool:
    """Whether a cell starts processes of its own."""
    return any(word in code for word in STARTS)


def longest_first(paths: list[Path]) -> list[Path]:
    """Those with the most to do first, so that no worker begins a long one at the end: by their
    cells of code. All English ones stand before the Chinese: a chapter that has the machine's one
    practice cluster then never runs beside itself."""

    def order(path: Path) -> tuple[bool, int]:
        codes = [
            cell.source
            for cell in nbformat.read(path, as_version=4).cells
            if cell.cell_type == "code"
        ]
        anew = sum(map(_starts, codes))
        return path.parent.name == "zh", -len(codes) - 12 * anew

    return sorted(paths, key=order)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One process at a time writes the copies; another waits for it, and finds them done."""
    folder = root / "out" / "checked"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load(root: Path, copy: Copy) -> NotebookNode:
    """A copy with its outputs as they are; pieces of one stream are joined, the state of widgets is
    left out."""
    notebook = nbformat.read(path_of(root, copy), as_version=4)
    notebook.metadata.pop("widgets", None)
    return CoalesceStreamsPreprocessor().preprocess(notebook, {})[0]


def executed(root: Path, copy: Copy) -> NotebookNode:
    """A copy with its outputs, executed now if need be. Raises Failed if a cell went wrong, or
    warned of something."""
    name = path_of(root, copy).relative_to(root)
    if not execute(root, [copy]):
        raise Failed(f"{name} did not run to its end")
    notebook = load(root, copy)
    if told := warnings(notebook):
        raise Failed(f"{name} shows what no reader should find:\n" + "\n".join(told))
    return notebook


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    names = {path.stem[:2]: path.stem for path in sources(root)}
    parser = argparse.ArgumentParser(description="Executes the checked builds")
    parser.add_argument("chapters", nargs="*", help=f"of {' '.join(names)}; all by default")
    parser.add_argument("--languages", action="store_true", help="in Chinese as well")
    parser.add_argument("--write", action="store_true", help="write them, execute nothing")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.chapters) - set(names)):
        parser.error(f"no such chapter: {' '.join(unknown)}; there are {' '.join(names)}")
    wanted = [("en", names[number]) for number in options.chapters] or standard(root)
    if options.languages:
        chapters = dict.fromkeys(name for _, name in wanted)
        wanted = [(language, name) for language in ("en", "zh") for name in chapters]
    if options.write:
        written = write(root, wanted)
        print("wrote:", *[path.relative_to(root) for path in written] or ["nothing"], sep="\n  ")
        return 0
    return int(not execute(root, wanted))


if __name__ == "__main__":
    sys.exit(main())
