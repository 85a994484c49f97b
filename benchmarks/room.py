"""Can thirty learners share one machine? Real kernels execute whole chapters at once, at one gate.

    python benchmarks/room.py [--json] [--kernels 30] [--chapters 02 08]

Every learner has the environment that the hub's configuration gives (labkit.classroom.hub_run), and
executes every cell of both chapters, in the builds that hold each exercise's stub and its solution:
half begin with the one chapter, half with the other, a new kernel for each. Chapters' launches have
up to 8 ranks, most have 4. "failed" counts cells with an error that nobody expects, and exercises
whose solution did not pass. Before, between and after the chapters each kernel launches 4 ranks
whose sum only its own ranks can make: "crossed" counts wrong ones, and the zygotes and folders that
two learners saw. "orphans" and "leaked_files" are what is left when the kernels
have ended, every second one by SIGKILL: processes, and files in their temporary folder, in
/dev/shm, at the gate. "restarts": kernels that found a port taken when they started, and were
started again, as Jupyter does.

"launches": all of them; "queued": those that waited at the gate at all, "median_wait_s" and
"p95_wait_s" are of all, "longest_wait_s" of one. "overran": of the paced runs, those that could not
keep their stated times, and say so. "learner_mb": memory of one learner's kernel with its zygote
and the ranks forked ahead, shared pages counted once, median at the end of a chapter;
"most_gb": how much less memory was free than before, at most. "seconds": everything.
"""

import argparse
import ast
import contextlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crowd
import nbformat
import psutil
from jupyter_client.manager import start_new_kernel

from labkit.classroom import hub_run
from labkit.machine import ops, resources

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "notebooks"))
CELL_S = 3600.0
"""how long a cell may take: others' runs come first"""
PROBE_RANKS = 4
TRIES = 3
"""how often a kernel is started until it lives"""
SETUP = (
    crowd.OWN
    + """
import labkit as _lab
from labkit.check import chapters as _chapters, exercises as _exercises
from labkit.launching import job as _jobs
from labkit.launching.fork import zygote_client as _zygotes

_told = {}

def _note(job):
    if job.done:
        notes = getattr(job._conclusion, "notes", ())
        _told[id(job._request)] = job._request, {
            "wait_s": job._turn.waited_s,
            "paced": any(note.startswith("paced") for note in notes),
            "overran": "overran" in notes,
            "folder": str(job._request.folder),
            "port": job._request.environ["MASTER_PORT"],
        }

_jobs.listeners.append(_note)
"""
)
PROBE = "_ranks = list(_lab.launch(_own, TOKEN, ranks=RANKS))"
REPORT = """
_report = {
    "zygote": _zygotes.running().process.pid,
    "launches": [told for _, told in _told.values()],
    "unsolved": [
        name
        for place, names in _chapters.exercises().items()
        if place[:2] == CHAPTER
        for name in names
        if _exercises._history[name][-1:] != ["passed"]
    ],
}
"""


class Learner(crowd.Notebook):
    """One who executes chapters, a kernel for each."""

    def __init__(self, number: int, chapters: list[str], room: hub_run.Room, folder: Path) -> None:
        self.number = number
        self.token = 1 + number
        self.num_ranks = PROBE_RANKS
        self.name = f"learner-{number}"
        self.chapters = chapters[number % 2 :] + chapters[: number % 2]
        home = folder / self.name
        home.mkdir()
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = {"JUPYTERHUB_USER": self.name, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": paths}
        own |= {"LABKIT_HOME": str(home), "LABKIT_CACHE": str(home)}
        self.environ = {**os.environ, **hub_run.environment(room), **own}
        self.failures: list[str] = []
        self.restarts = 0
        self.launches: list[dict] = []
        self.reports: list[dict] = []
        self.memory_mb: list[float] = []
        self.family: list[psutil.Process] = []
        self.zygotes: set[int] = set()

    def work(
        self, notebooks: dict[str, nbformat.NotebookNode], together: threading.Barrier
    ) -> None:
        """Starts a kernel for each chapter, when all others do, and executes its cells."""
        for place, chapter in enumerate(self.chapters):
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(CELL_S)
            if not self.begin():
                self.fail(f"{chapter}: no kernel")
                continue
            try:
                self.execute(notebooks[chapter], chapter)
            except Exception as error:
                self.fail(f"{chapter}: {error!r}")
            self.family += [self.process, *self.process.children(recursive=True)]
            self.end(kill=(self.number + place) % 2 == 0)

    def begin(self) -> bool:
        """Starts a kernel. One that finds its port taken dies, as everywhere; as Jupyter does, it
        is started again on other ports."""
        for _ in range(TRIES):
            try:
                self.kernel, self.client = start_new_kernel(
                    env=self.environ, startup_timeout=crowd.READY_S
                )
            except RuntimeError:
                self.restarts += 1
                continue
            self.process = psutil.Process(self.kernel.provisioner.pid)
            return True
        return False

    def fail(self, words: str) -> None:
        """Notes what went wrong, and says so at once."""
        self.failures.append(words)
        print(f"{self.name}: {words}", file=sys.stderr, flush=True)

    def execute(self, notebook: nbformat.NotebookNode, chapter: str) -> None:
        """All cells of a chapter, and what its kernel has seen."""
        self.cell(SETUP)
        self.probe()
        for cell in notebook.cells:
            if cell.cell_type == "code":
                expected = "raises-exception" in cell.metadata.get("tags", ())
                self.cell(cell.source, expected)
        self.probe()
        told = self.cell(REPORT.replace("CHAPTER", repr(chapter)), ask="_report")
        self.reports.append(told)
        self.zygotes.add(told["zygote"])
        for name in told["unsolved"]:
            self.fail(f"{chapter}: {name} did not pass")
        self.memory_mb.append(_memory_mb(self.process))

    def probe(self) -> None:
        """A launch whose result only this kernel's ranks can make."""
        code = PROBE.replace("TOKEN", str(self.token)).replace("RANKS", str(PROBE_RANKS))
        self.launches.append({"ranks": self.cell(code, ask="_ranks")})

    def cell(self, code: str, expected: bool = False, ask: str = "") -> object:
        """Executes one cell; an error that nobody expects is noted."""
        asked = {"told": f"__import__('json').dumps({ask})"} if ask else {}
        reply = self.client.execute_interactive(
            code, timeout=CELL_S, output_hook=lambda _: None, user_expressions=asked
        )["content"]
        if reply["status"] == "error" and not expected:
            first_line = code.strip().partition("\n")[0]
            self.fail(f"{first_line}: {reply['ename']}: {reply['evalue'][:500]}")
        if ask:
            text = reply["user_expressions"]["told"]["data"]["text/plain"]
            return json.loads(ast.literal_eval(text))
        return None

    def is_wrong(self, told: dict) -> bool:
        """Whether a probe had ranks of another kernel in it."""
        seen = {rank["zygote"] for rank in told["ranks"]}
        self.zygote = next(iter(seen & self.zygotes), None)
        return super().is_wrong(told)

    def places(self) -> set[tuple[str, object]]:
        """What no other learner may see: zygotes, and the folders of runs."""
        found = {("zygote", pid) for pid in self.zygotes}
        for report in self.reports:
            found |= {("folder", told["folder"]) for told in report["launches"]}
        return found


def _memory_mb(process: psutil.Process) -> float:
    """Of a kernel and all that it has started, in MB: what they share counts once."""
    held_bytes = 0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            held_bytes += each.memory_full_info().pss
    return held_bytes / 1e6


class Watch(threading.Thread):
    """How little memory is free, at the least."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.least = resources.available_bytes()
        self.over = threading.Event()

    def run(self) -> None:
        """Looks every second until it is over."""
        while not self.over.wait(1.0):
            self.least = min(self.least, resources.available_bytes())


def chapters_of(names: list[str]) -> dict[str, nbformat.NotebookNode]:
    """The builds in which every cell of a chapter runs, by the chapter's number. Raises ValueError
    where DeepSpeed would have to build its ops first."""
    import checked
    from chapter import sources

    if lacks := ops.missing():
        raise ValueError(f"{', '.join(lacks)} of DeepSpeed are not built: python -m labkit ops")
    found = {path.stem[:2]: path.stem for path in sources(ROOT)}
    return {name: checked.build(ROOT, ("en", found[name])) for name in names}


def work_together(learners: list[Learner], notebooks: dict[str, nbformat.NotebookNode]) -> None:
    """All execute their chapters, and begin each at the same moment."""
    together = threading.Barrier(len(learners))
    with ThreadPoolExecutor(len(learners)) as side_by_side:
        list(side_by_side.map(lambda each: each.work(notebooks, together), learners))


def crossed(learners: list[Learner]) -> int:
    """Probes that were wrong, and what two learners saw."""
    wrong = 0
    seen: Counter = Counter()
    for each in learners:
        wrong += sum(each.is_wrong(told) for told in each.launches)
        seen.update(each.places())
    return wrong + sum(times > 1 for times in seen.values())


def measure(num_kernels: int, chapters: list[str]) -> dict:
    """One row: the whole experiment."""
    began = time.monotonic()
    since_s = time.time()
    notebooks = chapters_of(chapters)
    watch = Watch()
    watch.start()
    with tempfile.TemporaryDirectory(prefix="room-") as temporary:
        folder = Path(temporary)
        (folder / "tmp").mkdir()
        room = hub_run.Room(folder=folder, notebooks=ROOT / "notebooks", learners=num_kernels)
        hub_run.furnish(room)
        learners = [Learner(number, chapters, room, folder) for number in range(num_kernels)]
        work_together(learners, notebooks)
        watch.over.set()
        family = [process for each in learners for process in each.family]
        _, orphans = psutil.wait_procs(family, timeout=crowd.END_S)
        reports = itertools.chain.from_iterable(each.reports for each in learners)
        launches = [*itertools.chain.from_iterable(each["launches"] for each in reports)]
        left = crowd.leftovers(folder / "tmp", since_s, {told["port"] for told in launches})
        left += [file for file in (folder / "gate").iterdir() if file.name.endswith(".ticket")]
        for process in orphans:
            process.kill()
    return {
        **_counts(learners, launches),
        "orphans": len(orphans),
        "leaked_files": len(left),
        **_waits(launches),
        **_memory(learners, watch),
        "seconds": round(time.monotonic() - began),
    }


def _counts(learners: list[Learner], launches: list[dict]) -> dict:
    return {
        "kernels": len(learners),
        "chapters": " ".join(sorted(learners[0].chapters)),
        "launches": len(launches),
        "failed": sum(len(each.failures) for each in learners),
        "crossed": crossed(learners),
        "restarts": sum(each.restarts for each in learners),
    }


def _waits(launches: list[dict]) -> dict:
    waits = sorted(told["wait_s"] for told in launches) or [0.0]
    return {
        "queued": sum(wait > 0 for wait in waits),
        "median_wait_s": round(statistics.median(waits), 2),
        "p95_wait_s": round(waits[int(0.95 * (len(waits) - 1))], 2),
        "longest_wait_s": round(waits[-1], 2),
        "paced": sum(told["paced"] for told in launches),
        "overran": sum(told["overran"] for told in launches),
    }


def _memory(learners: list[Learner], watch: Watch) -> dict:
    held = [mb for each in learners for mb in each.memory_mb] or [0.0]
    return {
        "learner_mb": round(statistics.median(held)),
        "most_gb": round((watch.before - watch.least) / 1e9, 1),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--kernels", type=int, default=30)
    parser.add_argument("--chapters", nargs="+", default=["02", "08"])
    options = parser.parse_args()
    row = measure(options.kernels, options.chapters)
    print(
        json.dumps([row])
        if options.json
        else "  ".join(f"{key} {value}" for key, value in row.items())
    )


if __name__ == "__main__":
    main()
