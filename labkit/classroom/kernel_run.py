"""A kernel under limits, for answers that nobody has read: ``python -m labkit.classroom.kernel_run
[limits] -- COMMAND ...``.

A guard starts the command and looks at all its descendants twenty times a second. Those that a
process leaves behind become the guard's own (Linux), so that ``setsid`` and a second fork hide
nothing. Past a limit, or when the command has ended, all are killed. There are two guards, one
inside the other: who kills the inner one, the parent of the kernel, is still seen by the outer one.

What this does not hold: it is no sandbox. A descendant runs as the same user, reads what that user
may read, writes where that user may write, and can kill both guards if it looks for them.
"""

import argparse
import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from labkit.units import check_real, check_whole

_EVERY_S = 0.05
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_GB = 10**9


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a kernel and all that it starts may take together."""

    seconds: float = 900.0
    """from its start to its end"""
    processes: int = 64
    """alive at once"""
    memory_gb: float = 8.0
    """in memory, summed; what several hold together counts once (Linux)"""
    file_gb: float = 2.0
    """of one file that is written"""

    def __post_init__(self) -> None:
        check_real(0.1, 1e6, seconds=self.seconds)
        check_whole(1, 10**5, processes=self.processes)
        check_real(0.001, 1e5, memory_gb=self.memory_gb, file_gb=self.file_gb)

    def options(self) -> list[str]:
        """The same as options of the command line."""
        return [
            f"--seconds={self.seconds}",
            f"--processes={self.processes}",
            f"--memory-gb={self.memory_gb}",
            f"--file-gb={self.file_gb}",
        ]


def command(limits: Limits, note: str, started: Sequence[str]) -> list[str]:
    """The command line that runs ``started`` under two guards. Why it was ended is written to the
    file ``note``."""
    module = [sys.executable, "-m", "labkit.classroom.kernel_run", f"--note={note}"]
    return [*module, *limits.options(), "--guards=2", "--", *started]


def main(arguments: list[str] | None = None) -> int:
    """The command's exit status; 1 where it was ended."""
    chosen = _parser().parse_args(arguments)
    limits = Limits(
        seconds=chosen.seconds,
        processes=chosen.processes,
        memory_gb=chosen.memory_gb,
        file_gb=chosen.file_gb,
    )
    started = chosen.started
    if chosen.guards > 1:
        inner = command(limits, chosen.note, started)
        started = [each.replace("--guards=2", "--guards=1") for each in inner]
    return _guarded(limits, Path(chosen.note), started, dies_by=_ending(chosen.guards))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--seconds", type=float, default=Limits.seconds)
    parser.add_argument("--processes", type=int, default=Limits.processes)
    parser.add_argument("--memory-gb", type=float, default=Limits.memory_gb)
    parser.add_argument("--file-gb", type=float, default=Limits.file_gb)
    parser.add_argument("--note", required=True, help="the file that says why it was ended")
    parser.add_argument("--guards", type=int, choices=(1, 2), default=2)
    parser.add_argument("started", nargs="+")
    return parser


def _ending(guards: int) -> int:
    """What a child gets when its parent dies: the inner guard is told, the kernel is killed."""
    return signal.SIGTERM if guards > 1 else signal.SIGKILL


def _guarded(limits: Limits, note: Path, started: Sequence[str], *, dies_by: int) -> int:
    _prctl(_SET_CHILD_SUBREAPER, 1)
    most_bytes = int(limits.file_gb * _GB)

    def prepare() -> None:
        _prctl(_SET_PDEATHSIG, dies_by)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    told_to_end = []
    signal.signal(signal.SIGTERM, lambda *_: told_to_end.append(True))
    child = subprocess.Popen(started, preexec_fn=prepare, start_new_session=True)
    signal.signal(signal.SIGINT, lambda *_: child.send_signal(signal.SIGINT))
    deadline_s = time.monotonic() + limits.seconds
    reason = ""
    try:
        while child.poll() is None and not told_to_end and not reason:
            time.sleep(_EVERY_S)
            reason = _excess(limits, deadline_s)
    finally:
        if reason and not note.exists():
            note.write_text(reason, encoding="utf-8")
        _end_all()
    return child.returncode if child.returncode is not None and not reason else 1


def _excess(limits: Limits, deadline_s: float) -> str:
    """Which limit is passed, in words; "" where none is."""
    if time.monotonic() > deadline_s:
        return f"it took longer than {limits.seconds:g} s"
    family = psutil.Process().children(recursive=True)
    if len(family) > limits.processes:
        return f"it had more than {limits.processes} processes"
    if _over(family, limits.memory_gb * _GB):
        return f"it held more than {limits.memory_gb:g} GB"
    return ""


def _over(family: Sequence[psutil.Process], most_bytes: float) -> bool:
    """Whether processes hold more than so much. The quick sum counts what forks share for each of
    them, so only where it is too large the exact one is asked for."""
    for read in ("memory_info", "memory_full_info"):
        held_bytes = 0
        for each in family:
            with contextlib.suppress(psutil.Error):
                memory = getattr(each, read)()
                held_bytes += getattr(memory, "pss", memory.rss)
        if held_bytes <= most_bytes:
            return False
    return True


def _end_all() -> None:
    """Kills every descendant: all are stopped first, so that none starts another meanwhile."""
    for _ in range(500):
        family = psutil.Process().children(recursive=True)
        for name in (signal.SIGSTOP, signal.SIGKILL):
            for each in family:
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    each.send_signal(name)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not family:
            return
        time.sleep(0.01)


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere what a process leaves behind is not seen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
