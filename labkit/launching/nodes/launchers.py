"""What starts torchrun on every node, and ends it: sbatch, or a command for each machine."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from labkit.launching.fork.messages import Message
from labkit.launching.nodes import practice
from labkit.launching.nodes.places import Hosts, Slurm
from labkit.launching.nodes.practice import Practice
from labkit.launching.verdicts.verdict import LaunchError
from labkit.machine import resources
from labkit.words import say

LEASH = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,15); os.execvp(sys.argv[1],sys.argv[1:])"
"""starts a command that gets SIGTERM when we die"""
ASK_S = 0.5
"""how often Slurm is asked how a job is"""
_DEATHS = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\)\s*exitcode\s*:\s*(-?\d+)")


class Launcher:
    """A launch on several machines, in the place of the process that forks ranks."""

    name = ""
    """what stands beside the run's numbers"""

    def __init__(self, folder: Path, ranks: int, cluster: Practice | None = None) -> None:
        self.folder = folder
        self.ranks = ranks
        self.cluster = cluster

    def lost_cluster(self) -> bool:
        """Whether the practice cluster that it is on has been taken down, or replaced."""
        if self.cluster is None:
            return False
        try:
            there = practice.current()
        except ValueError:  # its record is being written
            return False
        return there is None or there.folder != self.cluster.folder

    def wait_for(self, said: type[Message], unless: socket.socket | None = None) -> bool:
        """Starts it; True, for there is nothing to wait for. Raises LaunchError where it can't be
        started."""
        self.start()
        return True

    def start(self) -> None:
        """Has torchrun started on every node."""
        raise NotImplementedError

    def ended(self) -> bool:
        """Whether all of it has ended."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends all of it. The workers find the file ``stop``, should no signal reach them."""
        raise NotImplementedError

    def said(self) -> str:
        """What the launcher printed."""
        file = self.folder / "launcher.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    def exit_codes(self) -> dict[int, int]:
        """Exit codes by rank, as far as torchrun told them."""
        return {int(rank): int(code) for rank, code in _DEATHS.findall(self.said())}


class SlurmLauncher(Launcher):
    """A job of Slurm."""

    name = "slurm"

    def __init__(self, on: Slurm, folder: Path, ranks: int) -> None:
        super().__init__(folder, ranks, on.practice)
        self.job = ""
        self._asked_at = 0.0
        self._ended = False
        (folder / "job.sbatch").write_text(on.batch(folder, ranks))

    def start(self) -> None:
        """Hands the script to sbatch."""
        self.job = self._slurm("sbatch", "--parsable", str(self.folder / "job.sbatch")).strip()
        if not self.job:
            raise LaunchError(f"sbatch took no job: {self.said()}")

    def ended(self) -> bool:
        """Whether the job has left the queue."""
        if not self._ended and time.monotonic() > self._asked_at + ASK_S:
            self._asked_at = time.monotonic()
            told = self._slurm("squeue", "--noheader", "--format=%T", f"--jobs={self.job}")
            self._ended = not told.strip()
        return self._ended

    def stop(self) -> None:
        """Cancels the job, and waits until it has left the queue."""
        if not self.job:
            return
        self._slurm("scancel", self.job)
        deadline = time.monotonic() + 8
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.05)

    def _slurm(self, *command: str) -> str:
        """What a command of Slurm prints, where jobs are submitted."""
        login = self.cluster.login if self.cluster else ()
        line = [*login, shlex.join(command)] if login else list(command)
        found = self.cluster.environment() if self.cluster else {}
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=60, env={**os.environ, **found}
        )
        if done.returncode and command[0] == "sbatch":
            raise LaunchError(say("sbatch refused the job: {said}", said=done.stderr.strip()))
        return done.stdout


class HostsLauncher(Launcher):
    """A torchrun on each machine, started by a command from here."""

    name = "torchrun"

    def __init__(self, on: Hosts, folder: Path, ranks: int) -> None:
        super().__init__(folder, ranks, on.practice)
        self.on = on
        self.processes: list[subprocess.Popen] = []

    def start(self) -> None:
        """Starts a command for each machine."""
        found = self.cluster.environment() if self.cluster else {}
        leash = [sys.executable, "-c", LEASH] if sys.platform == "linux" else []
        port = self.on.port or resources.free_port()
        with open(self.folder / "launcher.txt", "ab") as output:
            for line in self.on.commands(self.folder, self.ranks, port):
                self.processes.append(
                    subprocess.Popen(
                        [*leash, *line],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        env={**os.environ, **found},
                        start_new_session=True,
                    )
                )

    def ended(self) -> bool:
        """Whether every command has ended."""
        return all(each.poll() is not None for each in self.processes)

    def stop(self) -> None:
        """Ends the commands and what they started here: politely, then by force."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(each.pid, number)
            deadline = time.monotonic() + 3
            while not self.ended() and time.monotonic() < deadline:
                time.sleep(0.02)
