"""A command, run on every node of the practice cluster: what one types on each machine where
nothing else starts ranks there."""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from labkit import tables
from labkit.cluster.one_machine.things_run import runs
from labkit.launching.nodes import practice
from labkit.launching.nodes.launchers import LEASH
from labkit.launching.nodes.places import REPOSITORY, threads
from labkit.launching.nodes.practice import Practice
from labkit.machine import ops, resources
from labkit.units import check_real
from labkit.words import say

MOST_LINES = 8
"""of what a node printed; the end counts"""
_LATE_GOODBYE = "Error waiting on exit barrier"
"""What torchrun logs, with a traceback, where the first node's had left an instant earlier."""
_LOGGED = re.compile(r"[EWI]\d{4} [\d:.]+ \d+ \S*?/(\w+\.py:\d+)\] ?(.*)")
"""A line of torchrun's log: where it was logged, and what."""


def run_on_nodes(
    command: str, *, files: Mapping[str, str] | None = None, timeout_s: float = 90.0
) -> tables.Table:
    """Runs a line of shell on every node of the practice cluster, on all at once, in a new folder
    that holds ``files`` (name -> text). Returns a table: what each printed and how it ended.

    In the command {node} is the node's number from 0 on, {first} where the first node is reached,
    and {port} a free port. Whatever it started is ended after ``timeout_s`` seconds. Raises
    ValueError where no practice cluster is up, and for names of files that lead elsewhere.
    """
    check_real(1.0, 3600.0, timeout_s=timeout_s)
    cluster = practice.current()
    if cluster is None:
        raise ValueError(
            "a command is run on the nodes of the practice cluster; none is up. python -m labkit "
            "cluster up"
        )
    with tempfile.TemporaryDirectory(prefix="labkit-nodes-") as name:
        for file, text in (files or {}).items():
            if not file or Path(file).name != file:
                raise ValueError(f"a file has a name without folders; got {file!r}")
            (Path(name) / file).write_text(text, encoding="utf-8")
        rows = _run(cluster, command, Path(name), timeout_s)
    return tables.table(rows, title=say("What the nodes printed"))


def _run(cluster: Practice, command: str, folder: Path, timeout_s: float) -> list[dict]:
    """A row per node: what it printed and how it ended."""
    about = {"first": cluster.nodes[0].address, "port": resources.free_port()}
    began = time.monotonic()
    started: list[psutil.Popen] = []
    try:
        for index, node in enumerate(cluster.nodes):
            line = command.format(node=index, **about)
            enter = list(node.enter) or ["sh", "-c"]
            with open(folder / f"printed-{index}.txt", "wb") as output:
                started.append(
                    psutil.Popen(
                        [sys.executable, "-c", LEASH, *enter, _surrounded(line, cluster)],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=folder,
                        env={**os.environ, **cluster.environment()},
                        start_new_session=True,
                    )
                )
        _, late = psutil.wait_procs(started, timeout=timeout_s)
    finally:
        for each in started:
            end_family(each)
    return [
        {
            "node": node.name,
            "seconds": round(time.monotonic() - began, 1),
            "ended": say("stopped: too late") if process in late else str(process.returncode),
            "printed": _printed(folder / f"printed-{index}.txt"),
        }
        for index, (node, process) in enumerate(zip(cluster.nodes, started, strict=True))
    ]


def _surrounded(line: str, cluster: Practice) -> str:
    """The line, with the environment that it needs over there."""
    told = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "TORCH_EXTENSIONS_DIR": str(ops.folder()),  # DeepSpeed's operators are built there already
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        "OMP_NUM_THREADS": str(threads(cluster, len(cluster.nodes) * cluster.ranks_per_node)),
    }
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in told.items())
    return f"export {settings}; {line}"


def _printed(file: Path) -> str:
    """The end of what a node printed, in one line."""
    lines = _without_traceback(file.read_text(errors="replace").strip().splitlines())
    return " · ".join(line.strip()[:200] for line in lines[-MOST_LINES:])


def _without_traceback(lines: list[str]) -> list[str]:
    """The same, but of a late goodbye only what was logged: its traceback, eight lines of torch's
    own, would push out what the ranks printed, and all of them had finished."""
    kept = []
    goodbye = None
    for line in lines:
        logged = _LOGGED.match(line)
        if logged is None:
            kept.append(line)
        elif _LATE_GOODBYE in logged[2]:
            goodbye = logged[1]
            kept.append(f"torchrun, {goodbye}: {_LATE_GOODBYE}")
        elif logged[1] != goodbye:
            kept.append(line)
    return kept


def end_family(launcher: psutil.Popen) -> None:
    """Ends a launcher and all that it started, as a power cut does."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [launcher, *launcher.children(recursive=True)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        deadline = time.monotonic() + 3
        while any(map(runs, family)) and time.monotonic() < deadline:
            time.sleep(0.02)
        launcher.poll()
