"""What a practice cluster is made of, noted before it is made: so that all of it can be removed,
also after a crash. A process is known by its pid and when it began, never by its name."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from labkit.launching.nodes import practice

MARK = "LABKIT_CLUSTER"
"""stands in the environment of all that runs for a cluster, with the cluster's folder"""


class Things:
    """The record's list of what there is, in the order in which it was made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._things: list[list] = []
        practice.record_file().parent.mkdir(parents=True, exist_ok=True)
        # nobody else's cluster is overwritten: the file must be new
        with open(practice.record_file(), "x") as file:
            json.dump({"things": []}, file)
        self.note("folder", str(folder))
        folder.mkdir(mode=0o700)

    def note(self, kind: str, *what: object) -> None:
        """Writes down that something will be there: a folder, a namespace, a process."""
        self._things.append([kind, *what])
        self._write({"things": self._things})

    def finish(self, cluster: practice.Practice) -> None:
        """Writes down that the cluster is up."""
        self._write({"things": self._things, "cluster": cluster.to_json()})

    def _write(self, content: dict) -> None:
        draft = practice.record_file().with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(content, indent=1))
        draft.replace(practice.record_file())

    def start(self, name: str, command: Iterable[str], **environ: str) -> subprocess.Popen:
        """Starts a process that lives until ``down``; what it prints goes to ``<name>.log``.
        Between its start and its note only the mark tells whose it is."""
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, MARK: str(self.folder), **environ},
                cwd=self.folder,
                start_new_session=True,
            )
        self.note("process", process.pid, psutil.Process(process.pid).create_time(), name)
        return process

    def last_words(self, name: str) -> str:
        """The end of what a process has printed."""
        log = self.folder / f"{name}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-5:])


def run(*command: str, **options: object) -> str:
    """Runs a command to its end and returns what it printed. Raises ValueError where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, **options)
    if done.returncode:
        raise ValueError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def wait_until(ready: Callable[[], bool], seconds: float, what: str) -> None:
    """Asks ``ready()`` until it says yes. Raises ValueError when the time is over."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ValueError(f"{what} within {seconds:g} s; it is not. Its log says why")
        time.sleep(0.05)


def remove(things: list[list]) -> list[str]:
    """Removes what a record lists, the last made first; what is gone already is no fault. Returns
    what could not be removed."""
    left = []
    _end([each for each in _alive(things) if each.pid != os.getpid()])
    for kind, *what in reversed(things):
        if kind == "namespace" and what[0] in namespaces():
            with contextlib.suppress(ValueError):
                run("ip", "netns", "del", what[0])
            if what[0] in namespaces():
                left.append(what[0])
        elif kind == "folder":
            shutil.rmtree(what[0], ignore_errors=True)
            if Path(what[0]).exists():
                left.append(what[0])
    left += [f"process {each.pid}" for each in _alive(things) if each.pid != os.getpid()]
    return left


def namespaces() -> set[str]:
    """The names of this machine's network namespaces."""
    folder = Path("/run/netns")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _alive(things: list[list]) -> list[psutil.Process]:
    """Every process that is a cluster's: noted, or with its mark, or in its namespaces; and what
    these have started."""
    pids = {}
    marks = set()
    for kind, *what in things:
        if kind == "process":
            pids[what[0]] = what[1]
        elif kind == "folder":
            marks.add(what[0])
        elif kind == "namespace" and what[0] in namespaces():
            pids |= dict.fromkeys(map(int, run("ip", "netns", "pids", what[0]).split()))
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            noted = process.pid in pids and _began(process, pids[process.pid])
            if noted or process.environ().get(MARK) in marks:
                for each in (process, *process.children(recursive=True)):
                    found[each.pid] = each
    return [each for each in found.values() if runs(each)]


def _began(process: psutil.Process, at: float | None) -> bool:
    """Whether a process is the one that began then, not a later one of the same number."""
    return at is None or abs(process.create_time() - at) < 0.5


def runs(process: psutil.Process) -> bool:
    """Whether a process still runs. Who is dead and waits for its parent's notice doesn't."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _end(processes: list[psutil.Process]) -> None:
    """Ends processes: politely, and after two seconds by force."""
    for each in processes:
        with contextlib.suppress(psutil.Error):
            each.terminate()
            each.resume()
    _, alive = psutil.wait_procs(processes, timeout=2)
    for each in alive:
        with contextlib.suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(alive, timeout=3)
