"""A launch on several machines: real ones of the practice cluster, and told ones."""

import json
import os
import signal
import socket
import time

import pytest

import labkit as lab
from labkit import cluster
from labkit.cluster.one_machine import up_run
from labkit.cluster.one_machine.plan import Layout
from labkit.launching.fork import messages
from labkit.launching.fork.messages import Failed, Returned, Started
from labkit.launching.nodes import clocks, practice, spread
from labkit.launching.nodes.launchers import Launcher
from labkit.launching.nodes.nodes_job import NodesJob
from labkit.launching.nodes.places import Hosts, Slurm, host_name
from labkit.launching.nodes.worker import Teller
from labkit.launching.settings import Settings

pytestmark = pytest.mark.real


def train(wrong: str = "") -> tuple[str, float]:
    import torch
    import torch.distributed as dist

    total = torch.ones(4) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print("hello from", socket.gethostname())
    if wrong == "missing" and dist.get_rank() == 1:
        return "", 0.0
    if wrong == "slow":
        time.sleep(60)
    if wrong:
        dist.all_reduce(total)
    return socket.gethostname(), float(total[0])


def test_slurm_gives_the_same_run(two_nodes):
    run = lab.launch(train, ranks=2, on=lab.Slurm(nodes=2), timeout_s=60, record=True)
    assert run.results == (("node0", 3.0), ("node1", 3.0))
    assert run.logs == ("hello from node0\n", "hello from node1\n")
    assert [each["host"] for each in run.machine["ranks"]] == ["node0", "node1"]
    assert {"gloo", "slurm", "2 nodes"} <= set(run.notes) and "clocks" in run.badge
    timeline = run.timeline()
    assert set(timeline.rank) == {0, 1} and "clocks" in timeline.badge
    assert [call["op"] for call in run.calls()[1]] == ["all_reduce"]
    # two nodes of one machine share a clock, and it was measured all the same
    about = run.machine["ranks"][1]
    assert abs(about["offset_ns"]) <= about["error_ns"] and about["error_ns"] > 500_000
    folder = run.folder
    assert folder.exists()
    del run, timeline
    deadline = time.monotonic() + 10
    while folder.exists():  # once the job has left Slurm
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started_by() -> tuple[str, str]:
    from pathlib import Path

    parent = Path("/proc") / str(os.getppid())
    return socket.gethostname(), (parent / "cmdline").read_text()


def test_the_ranks_of_a_node_are_forked_by_its_torchrun(two_nodes):
    run = lab.launch(started_by, ranks=4, on=lab.Hosts(), timeout_s=60)
    assert [host for host, _ in run.results] == ["node0", "node0", "node1", "node1"]
    assert all("torch.distributed.run" in command for _, command in run.results)


def dies() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_of_a_rank_that_is_killed_its_torchrun_tells(two_nodes):
    with pytest.raises(lab.RankFailed, match="rank 1 was killed by SIGKILL"):
        lab.launch(dies, ranks=4, on=lab.Hosts(), timeout_s=60)


@pytest.mark.again
def test_a_deadlock_across_nodes_has_its_verdict(two_nodes):
    with pytest.raises(lab.Deadlock, match=r"rank 1 already returned; rank 0 waits.*all_reduce"):
        lab.launch(train, "missing", ranks=2, on=lab.Hosts(), timeout_s=60)


@pytest.mark.again
def test_a_stop_ends_the_job_on_every_node(two_nodes):
    job = lab.start(train, "slow", ranks=2, on=lab.Slurm(nodes=2), timeout_s=60)
    deadline = time.monotonic() + 40
    while not all(
        "sleep" in row["where"].get("text", "") for row in job.progress or [{"where": {}}]
    ):
        assert time.monotonic() < deadline and not job.done
        time.sleep(0.05)
    assert all("train" in stack for stack in job.stacks().values()) and len(job.stacks()) == 2
    began = time.monotonic()
    job.stop()
    assert job.done and time.monotonic() - began < 15
    with pytest.raises(lab.Stopped):
        job.wait()
    assert not job._client._slurm("squeue", "--noheader")


class Told(Launcher):
    """A launch in which the test plays torchrun and the ranks."""

    name = "torchrun"
    over = False

    def start(self) -> None:
        """Nothing."""

    def ended(self) -> bool:
        return self.over

    def stop(self) -> None:
        self.over = True


def told_job(tmp_path, monkeypatch, ranks: int = 2) -> tuple[NodesJob, Told]:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    request = spread._request(Slurm(nodes=1, folder=tmp_path), ranks, Settings(), None)
    launcher = Told(request.folder, ranks)
    return NodesJob(request, launcher, timeout_s=20, hang_s=10), launcher


def tell(launcher: Told, rank: int, *said: messages.Message) -> None:
    with open(launcher.folder / f"told-{rank}.jsonl", "a") as file:
        for message in said:
            file.write(json.dumps(messages.encode(message)) + "\n")


def test_a_launcher_that_fails_is_quoted(tmp_path, monkeypatch):
    job, launcher = told_job(tmp_path, monkeypatch)
    (launcher.folder / "launcher.txt").write_text("srun: command not found\n")
    launcher.over = True
    with pytest.raises(lab.RankFailed, match=r"no rank came up[\s\S]*srun: command not found"):
        job.wait()
    assert not launcher.folder.exists()


def test_of_ranks_that_only_noticed_torchrun_tells_who_died(tmp_path, monkeypatch):
    job, launcher = told_job(tmp_path, monkeypatch)
    where = {"file": "a.py", "line": 3, "function": "f", "text": "dist.barrier()"}
    echo = {"type": "RuntimeError", "message": "Connection closed by peer", "traceback": ""}
    report = messages.Report(where=where, pending=(), groups={}, last={})
    Teller(launcher.folder, 1).put(report)
    tell(launcher, 0, Started(), Failed(**echo, where=where))
    time.sleep(0.8)
    assert not job.done
    death = "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n"
    (launcher.folder / "launcher.txt").write_text(death)
    launcher.over = True
    with pytest.raises(lab.RankFailed, match=r"rank 1 was killed by SIGKILL[\s\S]*rank 0: notice"):
        job.wait()


@pytest.mark.parametrize("replaced", [True, False], ids=["another one", "none"])
def test_a_run_whose_cluster_is_gone_ends_at_once(tmp_path, monkeypatch, replaced):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    up_run.up(Layout(plain=True, loopback=True))
    try:
        job, launcher = told_job(tmp_path, monkeypatch)
        launcher.cluster = practice.current()
        time.sleep(1.3)
        assert not job.done
        up_run.down()
        if replaced:
            up_run.up(Layout(plain=True, loopback=True))
        with pytest.raises(lab.LaunchError, match="has been taken down, or another one"):
            job.wait()
        assert launcher.over
    finally:
        up_run.down()


def test_half_a_line_is_not_read(tmp_path, monkeypatch):
    job, launcher = told_job(tmp_path, monkeypatch, ranks=1)
    whole = json.dumps(messages.encode(Returned(notes=("x",), peak_rss_bytes=1, last={})))
    (launcher.folder / "told-0.jsonl").write_text(whole[:20])
    time.sleep(0.3)
    assert not job.done and job.progress[0]["state"] == "running"
    job.stop()
    with pytest.raises(lab.Stopped):
        job.wait()


def test_a_clock_is_read_in_the_quickest_round():
    # the other clock is 100 ahead; it answers at once; the way there takes 30, the way back 10
    quick = (0, 130, 130, 40)
    slow = (1000, 1100 + 500, 1600, 1510)
    found = clocks.estimate([slow, quick])
    assert found.offset_ns == 110 and found.error_ns == 20
    assert abs(found.offset_ns - 100) <= found.error_ns


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"on": Slurm(nodes=2), "ranks": 3}, "take a multiple"),
        ({"on": Slurm(nodes=2), "ranks": 2, "devices": lab.pretend(memory_mib=9)}, "Pretend"),
        ({"on": Slurm(nodes=2), "ranks": 2, "devices": "cuda"}, "gpus_per_node"),
        ({"on": Slurm(nodes=2), "ranks": 2, "backend": "nccl"}, "leave it out"),
        ({"on": "node0", "ranks": 2}, "lab.Slurm or a lab.Hosts"),
        ({"on": Hosts(), "ranks": 2}, "none is named"),
    ],
)
def test_what_has_no_meaning_on_several_machines_is_refused(tmp_path, monkeypatch, wrong, told):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    with pytest.raises(ValueError, match=told):
        lab.launch(train, **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Slurm(nodes=0),
        lambda: Slurm(options=("partition=long",)),
        lambda: Slurm(options=("--a\n--b",)),
        lambda: Slurm(minutes=0),
        lambda: Hosts(names="node0"),
        lambda: Hosts(names=("a",), through="ssh"),
        lambda: Hosts(port=-1),
    ],
)
def test_places_that_are_none_are_refused(wrong):
    with pytest.raises(ValueError):
        wrong()


def test_the_script_is_what_one_would_write(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    on = Slurm(nodes=4, gpus_per_node=8, options=("--partition=long",), setup=("module load cuda",))
    text = on.script(train, ranks=32)
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=run-")
    for line in ("#SBATCH --nodes=4", "#SBATCH --gpus-per-node=8", "#SBATCH --partition=long"):
        assert f"{line}\n" in text
    assert "\nmodule load cuda\n" in text and "--nnodes=4 --nproc-per-node=8" in text
    (folder,) = (tmp_path / "runs").iterdir()
    assert str(folder) in text and (folder / "call.pkl").exists()


def test_a_machine_is_reached_by_the_command_that_is_told(tmp_path):
    on = Hosts(names=("a", "b"), through="ssh -p 22 {host}", port=29500)
    first, second = on.commands(tmp_path, 4, 29500)
    assert first[:4] == ["ssh", "-p", "22", "a"] and second[3] == "b" and len(first) == 5
    assert "--node-rank=1" in second[4] and "--master-addr=a" in second[4]
    assert "--nproc-per-node=2" in second[4]


def test_practice_nodes_on_one_loopback_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    up_run.up(Layout(plain=True, loopback=True))
    try:
        first, second = Hosts().commands(tmp_path, 2, 1)
        assert "LABKIT_NODE_NAME=node0" in first[-1] and "LABKIT_NODE_NAME=node1" in second[-1]
    finally:
        up_run.down()
    monkeypatch.setenv("LABKIT_NODE_NAME", "node7")
    assert host_name() == "node7"


@pytest.mark.real
@pytest.mark.again
def test_they_are_examined_as_two_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    up_run.up(Layout(plain=True, loopback=True))
    try:
        found = cluster.examine(on=Hosts(), mib=0.01)
    finally:
        up_run.down()
    assert found.hosts == ["node0", "node1"] and len(found.links().cells) == 2
