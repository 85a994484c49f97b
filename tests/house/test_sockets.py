"""Nothing of labkit listens beyond this machine, and nobody else reads a run's files."""

import os
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager, start_new_kernel

import labkit as lab
from labkit.launching.fork import zygote_client
from labkit.machine import ops, resources

ROOT = Path(__file__).parents[2]
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def reachable(family: list[psutil.Process]) -> list[str]:
    """Each socket of a process that is bound to another address than loopback's, or joined with
    one."""
    return [
        f"{process.name()} {process.pid}: {joined}"
        for process in family
        for joined in process.net_connections(kind="inet")
        for end in (joined.laddr, joined.raddr)
        if end and end.ip not in LOOPBACK
    ]


def listening(process: psutil.Process) -> int:
    """How many TCP sockets of a process wait for connections."""
    return sum(
        joined.status == psutil.CONN_LISTEN for joined in process.net_connections(kind="tcp")
    )


def test_a_socket_on_every_interface_would_be_found():
    code = (
        "import socket, time; s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); "
        "print(1, flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    found = reachable([psutil.Process(child.pid)])
    count = listening(psutil.Process(child.pid))
    child.communicate(b"\n", timeout=10)
    assert len(found) == count == 1 and "0.0.0.0" in found[0]


CELL = """
import labkit as lab, os, time
from labkit.launching.fork import zygote_client as server
def work():
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(1))
    while not os.path.exists("GO"):
        time.sleep(0.05)
    return os.getpid()
server.seconds_to_complete()
time.sleep(0.5)
"""


def ask(client, code: str) -> dict:
    """Runs a cell of a notebook and returns the reply. Raises AssertionError with its traceback if
    it fails."""
    reply = client.execute_interactive(code, timeout=60, output_hook=lambda _: None)["content"]
    assert reply["status"] == "ok", "\n".join(reply["traceback"])
    return reply


@pytest.fixture
def notebook(tmp_path) -> Iterator[tuple[KernelManager, object]]:
    """A real Jupyter kernel in a folder of its own, with this labkit."""
    kernel, client = start_new_kernel(cwd=str(tmp_path), env=os.environ | {"PYTHONPATH": str(ROOT)})
    yield kernel, client
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def test_no_kernel_zygote_or_rank_is_reachable_from_another_machine(notebook, tmp_path):
    kernel, client = notebook
    me = psutil.Process(kernel.provisioner.pid)
    ask(client, CELL)
    idle = [me, *me.children(recursive=True)]
    assert (
        len(idle) >= 3 and reachable(idle) == []
    )  # kernel, zygote, and the spares that it has forked
    ask(client, "job = lab.start(work, ranks=3, backend='gloo', timeout_s=50)\ntime.sleep(1.5)")
    busy = [me, *me.children(recursive=True)]
    ranks = [process for process in busy if process != me and listening(process)]
    assert len(ranks) == 3 and listening(
        me
    )  # gloo's and the kernel's own: what is looked at is there
    assert reachable(busy) == []
    (tmp_path / "GO").touch()
    ask(client, "assert len(job.wait()) == 3")


SCRIPT = """
import os, psutil, torch.distributed as dist
from labkit.launching import rank
dist.init_process_group("gloo")
dist.barrier()
def open_ends(process):
    ends = process.net_connections(kind="tcp")
    return [end.laddr.ip for end in ends if end.status == psutil.CONN_LISTEN]
rank.current().give((open_ends(psutil.Process()), open_ends(psutil.Process(os.getppid()))))
dist.barrier()
"""


@pytest.mark.again
def test_torchruns_own_store_is_the_one_exception_and_it_is_named(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    mine, store = zip(
        *lab.launch_script(tmp_path / "train.py", ranks=2, show=False, timeout_s=50), strict=True
    )
    assert {ip for ips in mine for ip in ips} <= set(LOOPBACK)
    assert not {ip for ips in store for ip in ips} <= set(LOOPBACK)  # else the words below can go
    assert "listens on every interface" in " ".join(lab.launch_script.__doc__.split())


READ = 'for path; do if test -r "$path" || test -w "$path"; then echo "$path"; fi; done; echo ended'


def test_nobody_else_reads_what_a_run_keeps():
    def work() -> bytes:
        print("a secret")
        while not os.path.exists(os.environ["LABKIT_TEST_GO"]):
            time.sleep(0.05)
        return bytes(3_000_000)

    before = os.umask(0)  # the most careless of users
    try:
        home = zygote_client.running()
        os.environ["LABKIT_TEST_GO"] = str(home.folder / "go")
        job = lab.start(work, ranks=2, timeout_s=50)
        folder = home.folder / f"run-{home.num_runs}"  # those of earlier runs may be going just now
        while len([file for file in folder.rglob("log-*") if file.stat().st_size]) < 2:
            time.sleep(0.05)
        found = [home.folder, folder, *folder.rglob("*")]
        folders = [path for path in found if path.is_dir()]
        assert len(folders) >= 2 and {stat.S_IMODE(path.stat().st_mode) for path in folders} == {
            0o700
        }
        assert {"call.pkl", "log-0.txt"} <= {path.name for path in found}
        if os.geteuid() == 0:  # then it can be tried
            ask = {
                "user": 65534,
                "group": 65534,
                "extra_groups": [],
                "cwd": "/",
                "capture_output": True,
                "text": True,
            }
            told = subprocess.run(["/bin/sh", "-c", READ, "sh", *map(str, found), "/bin/sh"], **ask)
            assert told.stdout.split() == ["/bin/sh", "ended"], told
        (home.folder / "go").touch()
        job.wait()
        (home.folder / "go").unlink()
    finally:
        os.umask(before)


@pytest.mark.again
def test_no_shared_memory_of_the_deepspeed_command_is_left(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import glob, os, deepspeed
        from labkit.launching import rank
        deepspeed.init_distributed("gloo")
        deepspeed.comm.barrier()
        rank.current().give(glob.glob(f"/dev/shm/deepspeed_*_{os.environ['MASTER_PORT']}_*"))
        deepspeed.comm.barrier()
    """)
    )
    buffers, _ = lab.launch_script(
        tmp_path / "train.py", ranks=2, using="deepspeed", show=False, timeout_s=150
    )
    if not ops.missing() and not resources.num_gpus():
        assert len(buffers) == 2  # what is looked for was there
    assert [path for path in buffers if os.path.exists(path)] == []
