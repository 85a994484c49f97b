"""The practice cluster is real while it is up, and leaves nothing, also after a crash."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from labkit.cluster.one_machine import network_run, things_run, up_run
from labkit.cluster.one_machine.plan import Layout
from labkit.launching.nodes import practice

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.real


def on(enter: tuple[str, ...], line: str, **environ: str) -> str:
    """What a line of shell prints on a node."""
    done = subprocess.run(
        [*enter, line], capture_output=True, text=True, timeout=20, env={**os.environ, **environ}
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_every_node_has_a_name_and_a_network_of_its_own(two_nodes):
    names = [on(node.enter, "hostname").strip() for node in two_nodes.nodes]
    assert names == ["node0", "node1"]
    shown = on(two_nodes.nodes[0].enter, "ip -brief addr")
    assert "wire0" in shown and "10.78.0.1" in shown and "10.78.0.2" not in shown


def test_slurm_runs_a_step_on_both_nodes(two_nodes):
    told = on(two_nodes.login, "srun --nodes=2 hostname", **two_nodes.environment())
    assert sorted(told.split()) == ["node0", "node1"]
    states = {cells[-1] for cells in up_run.status().cells}  # the step may just be leaving
    assert states <= {"idle", "completing", "allocated", "mixed"}


ECHO = """
import socket, sys, time
if sys.argv[1] == "serve":
    server = socket.create_server(("0.0.0.0", 9000))
    peer, _ = server.accept()
    while peer.recv(1 << 20):
        pass
else:
    deadline = time.monotonic() + 10
    while True:
        try:
            peer = socket.create_connection(("node1", 9000), timeout=10)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    began = time.monotonic()
    peer.sendall(bytes(int(sys.argv[2])))
    peer.shutdown(1)
    peer.recv(1)
    print(time.monotonic() - began)
"""


def seconds_across(cluster: practice.Practice, num_bytes: int, script: Path) -> float:
    """How long bytes take from node 0 to node 1, with the answer's way back."""
    script.write_text(ECHO)
    first, second = cluster.nodes
    line = f"exec {sys.executable} {script}"
    server = subprocess.Popen([*second.enter, f"{line} serve"])
    try:
        return float(on(first.enter, f"{line} send {num_bytes}"))
    finally:
        server.wait(timeout=10)


def test_the_link_is_as_slow_as_stated_and_can_get_slower(two_nodes, tmp_path):
    script = tmp_path / "echo.py"
    assert seconds_across(two_nodes, 1, script) > 0.002  # 1 ms each way
    # 8 Mbit at 200 Mbit/s; the quickest of three, for other programs may be computing
    fast = min(seconds_across(two_nodes, 1_000_000, script) for _ in range(3))
    assert 0.04 < fast < 0.2
    network_run.slow(0, "20Mbit")
    slow = seconds_across(two_nodes, 1_000_000, script)
    network_run.slow(0, "200Mbit")
    assert slow > 0.4


def test_there_is_one_cluster_at_a_time(two_nodes):
    with pytest.raises(ValueError, match="one practice cluster at a time"):
        up_run.up(Layout(plain=True))


def test_after_a_crash_all_of_it_is_removed(namespaces, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    crash = (
        "import os, signal\n"
        "from labkit.cluster.one_machine import network_run, up_run, plan\n"
        "network_run.wait_until = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "up_run.up(plan.Layout(plain=True, latency_s=0.001))\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run([sys.executable, "-c", crash], timeout=30, env=environ, cwd=tmp_path)
    assert died.returncode == -signal.SIGKILL
    things = json.loads(practice.record_file().read_text())["things"]
    spaces = {what[0] for kind, *what in things if kind == "namespace"}
    (folder,) = [Path(what[0]) for kind, *what in things if kind == "folder"]
    (relay,) = [what[0] for kind, *what in things if kind == "process"]
    assert len(spaces) == 3 and spaces <= things_run.namespaces() and folder.exists()
    assert psutil.pid_exists(relay)
    with pytest.raises(ValueError, match="only half"):
        up_run.status()
    assert up_run.down() and not up_run.down()
    assert not spaces & things_run.namespaces() and not folder.exists()
    assert not psutil.pid_exists(relay) and not practice.record_file().exists()


def test_a_process_of_the_same_number_that_began_later_is_not_ended():
    other = subprocess.Popen(["sleep", "20"])
    try:
        began = psutil.Process(other.pid).create_time()
        things_run.remove([["process", other.pid, began - 60, "munged"]])
        assert other.poll() is None
        things_run.remove([["process", other.pid, began, "munged"]])
        assert not psutil.pid_exists(other.pid)
    finally:
        other.kill()


def test_nodes_on_the_loopback_need_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    found = up_run.up(Layout(plain=True, loopback=True, nodes=3))
    assert [node.address for node in found.nodes] == ["127.0.0.1"] * 3
    assert practice.current() == found and len(up_run.status().cells) == 3
    assert up_run.down() and not found.folder.exists()
