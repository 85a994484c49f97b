"""A machine's power is cut, and Slurm gives it up: what becomes of the job, by its options."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from labkit.cluster.one_machine import up_run
from labkit.cluster.one_machine.plan import Layout
from labkit.cluster.one_machine.things_run import wait_until
from labkit.launching.nodes.practice import Node, Practice
from labkit.machine import resources

pytestmark = [pytest.mark.real, pytest.mark.again, pytest.mark.timeout(480)]
PATIENCE_S = 90
"""Slurm's own patience is 20 s here; it looks every now and then"""
REQUEUE_S = 240
"""a job that goes back to the queue waits there for two minutes"""
SLEEPING = """
echo start ${SLURM_RESTART_COUNT:-0} >> told
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] && { srun sleep 600 || sleep 600; }
echo end >> told
"""
"""srun may end before Slurm gives the node up; the job waits for Slurm then"""
ELASTIC = """
srun --no-kill --kill-on-bad-exit=0 {python} -m torch.distributed.run --nnodes=1:2 \\
    --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-endpoint={first}:{port} \\
    --rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1 \\
    -m labkit.cluster.survivor_run . 600
echo end >> told
"""


@pytest.fixture
def up(tmp_path, monkeypatch, namespaces, slurm):
    """A practice cluster of the test's own: one of its nodes is lost."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    yield up_run.up(Layout())
    up_run.down()


class Submitted:
    """A job on both nodes, and what Slurm says of it."""

    def __init__(self, up: Practice, folder: Path, script: str, *options: str) -> None:
        self.up, self.folder = up, folder
        (folder / "job.sh").write_text(f"#!/bin/sh\ncd {folder}\n{script}")
        asked = ["sbatch", "--parsable", "--nodes=2", "--output=job.log", *options, "job.sh"]
        self.number = self.tell(asked)

    def tell(self, command: list[str]) -> str:
        """What a command of Slurm's prints."""
        line = f"cd {self.folder} && {shlex.join(command)}"
        environ = {**os.environ, **self.up.environment()}
        asked = [*self.up.login, line]
        return subprocess.run(
            asked, capture_output=True, text=True, env=environ, timeout=60
        ).stdout.strip()

    def state(self) -> str:
        """RUNNING, PENDING, NODE_FAIL, ..."""
        said = self.tell(["scontrol", "show", "job", self.number])
        return said.partition("JobState=")[2].split(" ")[0]

    def node_is_down(self) -> bool:
        """Whether Slurm has given the last node up."""
        return "down" in self.tell(["sinfo", "--noheader", "-n", "node1", "--format=%T"])

    def lines(self, name: str = "told") -> list[str]:
        """What the job wrote into a file."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def cut_power(node: Node) -> Callable[[], psutil.Popen]:
    """Kills everything in a node's network. Returns what switches its slurmd on again."""
    asked = [*node.enter, "readlink /proc/self/ns/net"]
    network = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.strip()
    there = []
    for each in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{each.pid}/ns/net") == network:
                there.append(each)
        except OSError:
            continue
    daemon = next(each for each in there if each.name() == "slurmd")
    line = shlex.join(daemon.cmdline())
    environ = daemon.environ()
    for each in there:
        each.kill()
    psutil.wait_procs(there, timeout=10)
    return lambda: psutil.Popen([*node.enter, f"exec {line}"], env=environ)


def test_without_an_option_the_job_ends_with_the_machine(up, tmp_path):
    job = Submitted(up, tmp_path, SLEEPING, "--no-requeue")
    wait_until(lambda: job.lines() == ["start 0"], 30, "it runs")
    cut_power(up.nodes[1])
    wait_until(lambda: job.state() != "RUNNING", PATIENCE_S, "Slurm gives the node up")
    assert job.state() in ("COMPLETING", "NODE_FAIL") and job.lines() == ["start 0"]


def test_a_requeued_job_starts_again_when_the_machine_is_back(up, tmp_path):
    job = Submitted(up, tmp_path, SLEEPING, "--requeue")
    wait_until(lambda: job.lines() == ["start 0"], 30, "it runs")
    switch_on = cut_power(up.nodes[1])
    wait_until(lambda: job.state() == "PENDING", PATIENCE_S, "it is back in the queue")
    daemon = switch_on()
    try:
        wait_until(lambda: "end" in job.lines(), REQUEUE_S, "it runs to its end")
    finally:
        daemon.kill()
        daemon.wait(10)
    assert job.lines() == ["start 0", "start 1", "end"]


def test_with_no_kill_an_elastic_training_goes_on_and_slurm_leaves_it(up, tmp_path):
    first = up.nodes[0].address
    script = ELASTIC.format(python=sys.executable, first=first, port=resources.free_port())
    job = Submitted(up, tmp_path, script, "--no-kill", "--no-requeue")
    wait_until(lambda: len(job.lines("steps.txt")) > 5, 60, "it trains")
    assert job.lines("steps.txt")[-1].endswith(" 2")
    cut_power(up.nodes[1])
    wait_until(job.node_is_down, PATIENCE_S, "Slurm gives the node up")
    after = len(job.lines("steps.txt"))
    wait_until(lambda: "end" in job.lines(), 2 * PATIENCE_S, "it runs to its end")
    steps = [line.split() for line in job.lines("steps.txt")]
    assert len(steps) > after and steps[-1][1:] == ["600", "1"]
    numbers = [int(step) for _, step, _ in steps]
    assert numbers == sorted(numbers) and len(set(numbers)) >= len(numbers) - 2
