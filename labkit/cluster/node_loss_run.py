"""A node of the practice cluster dies in the midst of a training; torchrun's elastic launch goes on
with who is left, from the last checkpoint."""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from labkit.cluster.commands_run import end_family
from labkit.cluster.one_machine.things_run import wait_until
from labkit.launching.nodes import practice
from labkit.launching.nodes.launchers import LEASH
from labkit.launching.nodes.places import Hosts
from labkit.launching.nodes.practice import Practice
from labkit.machine import resources
from labkit.units import check_real, check_whole
from labkit.words import say

PATIENCE_S = 2
"""seconds without a sign of a node after which torchrun's rendezvous gives it up"""


@dataclass(frozen=True, kw_only=True)
class NodeLoss:
    """What came of it."""

    killed_after_step: int
    """the last step that was noted before the node was killed"""
    resumed_at_step: int
    """the first step that was noted by who was left"""
    recovery_s: float
    """from the kill to that step's end, in seconds"""
    ranks_before: int
    """how many trained"""
    ranks_after: int
    """how many went on"""
    last_step: int
    """the step at which training ended"""
    commands: tuple[str, ...]
    """torchrun's command lines, one for each node"""

    def row(self) -> dict[str, float]:
        """What came of it, as a row of a table."""
        return {
            say("killed after step"): self.killed_after_step,
            say("next step"): self.resumed_at_step,
            "recovery_s": round(self.recovery_s, 2),
            say("ranks before"): self.ranks_before,
            say("ranks after"): self.ranks_after,
        }


def lose_node(*, steps: int = 40, kill_after: int = 5, timeout_s: float = 90.0) -> NodeLoss:
    """Trains on both nodes of the practice cluster, kills all that the training runs on the last
    node after step ``kill_after``, and waits for the end. Raises ValueError where no practice
    cluster of two nodes is up."""
    check_whole(1, 10**4, steps=steps)
    check_whole(1, steps - 1, kill_after=kill_after)
    check_real(1.0, 3600.0, timeout_s=timeout_s)
    cluster = practice.current()
    if cluster is None or len(cluster.nodes) < 2:
        raise ValueError(
            "a node is lost on a practice cluster of two nodes or more; none is up. python -m "
            "labkit cluster up"
        )
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory(prefix="labkit-loss-") as name:
        folder = Path(name)
        commands = _commands(cluster, folder, steps)
        with _running(cluster, commands, folder) as launchers:
            wait_until(lambda: _at(folder) >= kill_after, timeout_s, "it trains")
            before = _steps(folder)
            killed_at = time.time()
            end_family(launchers[-1])
            left = max(1.0, deadline - time.monotonic())
            others = launchers[:-1]
            with contextlib.suppress(ValueError):
                wait_until(lambda: _at(folder) >= steps or _ended(others), left, "")
        return _told(folder, killed_at, before, commands)


def _commands(cluster: Practice, folder: Path, steps: int) -> list[list[str]]:
    """torchrun for each node: one to all of them may be there."""
    port = resources.free_port()
    lines = []
    for index, node in enumerate(cluster.nodes):
        meeting = (
            f"is_host={int(index == 0)},keep_alive_interval=1,"
            f"keep_alive_max_attempt={PATIENCE_S},last_call_timeout=1"
        )
        lines.append(
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                f"--nnodes=1:{len(cluster.nodes)}",
                *("--nproc-per-node=1", "--max-restarts=3", "--rdzv-backend=c10d"),
                f"--rdzv-endpoint={cluster.nodes[0].address}:{port}",
                f"--rdzv-conf={meeting}",
                f"--local-addr={node.address}",
                *("-m", "labkit.cluster.survivor_run", str(folder), str(steps)),
            ]
        )
    return lines


@contextlib.contextmanager
def _running(
    cluster: Practice, commands: list[list[str]], folder: Path
) -> Iterator[list[psutil.Popen]]:
    """The commands under way, each on its node; whatever they started is gone afterwards."""
    # with a shared store gloo finds a dead rank's address after a restart (pytorch issue 135712)
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **cluster.environment()}
    launchers: list[psutil.Popen] = []
    hosts = Hosts()
    try:
        with open(folder / "launchers.txt", "wb") as output:
            for index, command in enumerate(commands):
                line = [*hosts.enter(index), hosts.line(command, len(commands), index)]
                started = psutil.Popen(
                    [sys.executable, "-c", LEASH, *line],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **environ},
                    start_new_session=True,
                )
                launchers.append(started)
        yield launchers
    finally:
        for each in launchers:
            end_family(each)


def _ended(launchers: list[psutil.Popen]) -> bool:
    """Whether none of them runs any more."""
    return all(each.poll() is not None for each in launchers)


def _at(folder: Path) -> int:
    """The last step that was noted."""
    rows = _steps(folder)
    return rows[-1][1] if rows else 0


def _steps(folder: Path) -> list[tuple[float, int, int]]:
    """(when, step, ranks) of every step that was noted."""
    file = folder / "steps.txt"
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        when, step, ranks = line.split()
        rows.append((float(when), int(step), int(ranks)))
    return rows


def _told(
    folder: Path, killed_at: float, before: list[tuple], commands: list[list[str]]
) -> NodeLoss:
    """What the notes say. Raises ValueError where nobody went on."""
    fewer = [row for row in _steps(folder) if row[0] > killed_at and row[2] < before[-1][2]]
    if not fewer:
        said = (folder / "launchers.txt").read_text(errors="replace")[-2000:]
        raise ValueError(f"training goes on without the lost node; it did not:\n{said}")
    return NodeLoss(
        killed_after_step=before[-1][1],
        resumed_at_step=fewer[0][1],
        recovery_s=fewer[0][0] - killed_at,
        ranks_before=before[-1][2],
        ranks_after=fewer[0][2],
        last_step=fewer[-1][1],
        commands=tuple(shlex.join(command) for command in commands),
    )
