"""A real hub on the loopback: learners log in, get a server, launch ranks; then nothing is left."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from classroom.hub_learner import Learner

from labkit.classroom import hub_command, hub_run
from labkit.classroom.hub_run import PASSWORD, TEACHER_PASSWORD, Room
from labkit.launching.gate import Turn
from labkit.machine import resources

UP_S = 120
END_S = 60
pytestmark = [pytest.mark.real, pytest.mark.again, pytest.mark.timeout(600)]
START = """
import os, time
import labkit as lab
from labkit.check import record
from labkit.launching.fork import zygote_client

def add(token):
    import torch
    import torch.distributed as dist

    x = torch.tensor(float(token))
    dist.all_reduce(x)
    return x.item()

job = lab.start(add, TOKEN, ranks=4)
deadline = time.monotonic() + 60
while not job.ahead and not job.done and time.monotonic() < deadline:
    time.sleep(0.05)
print(job.ahead, os.getcwd(), record.home(), zygote_client.running().folder, sep="\\n")
"""
END = """
run = job.wait()
print(*run, run.waited_s > 0, len(lab.launch(add, 1, ranks=2)))
"""


def needs_a_hub():
    """Skips where there is none; in CI it must be there."""
    if lacks := hub_run.missing():
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop(f"needs {' and '.join(lacks)}: make hub")


def free_port():
    """The first of three ports that are free, side by side."""
    for port in range(18000, 30000, 3):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for each in range(port, port + 3):
                held.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
    raise AssertionError("no free ports")


@contextlib.contextmanager
def hub_of(room):
    """The hub of a room, up. When it has ended, none of its processes is left."""
    home = room.folder.parent / "home"
    home.mkdir()
    log = room.folder.parent / "log"
    with log.open("wb") as file:
        started = subprocess.Popen(
            hub_command.command(hub_command.write(room)),
            cwd=home,
            env={**os.environ, "HOME": str(home)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    process = psutil.Process(started.pid)
    family = []
    try:
        wait_for(f"{room.url}/hub/login", started, log)
        yield process
        family = [process, *process.children(recursive=True)]
        started.send_signal(signal.SIGTERM)
        started.wait(END_S)
        _, left = psutil.wait_procs(family, timeout=END_S)
        assert not left
    finally:
        for each in family or [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                each.kill()
        started.wait(END_S)
    assert "not recognized" not in log.read_text()  # an option that JupyterHub does not have
    # JupyterHub and its proxy write into the room only
    assert not [path for path in home.rglob("*") if path.is_file()]


def wait_for(page, started, log):
    """Returns when the hub serves a page."""
    deadline = time.monotonic() + UP_S
    while True:
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(page, timeout=UP_S).ok:
                return
        assert started.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.2)


def go_in(learner, password):
    """Logs in, has a server started, and starts a launch that has to wait."""
    assert learner.log_in(password)
    learner.spawn()
    token = 1 + len(learner.name)
    return learner.run(START.replace("TOKEN", str(token))).splitlines()


@pytest.mark.parametrize("names", [["ann"], ["ann", "berta", "christof"]])
def test_learners_share_a_machine_and_leave_nothing(tmp_path, names):
    needs_a_hub()
    room = Room(
        folder=tmp_path / "room",
        notebooks=hub_command.NOTEBOOKS,
        names=tuple(names),
        port=free_port(),
        as_root=True,
    )
    with hub_of(room):
        password = (room.folder / PASSWORD).read_text().strip()
        for name, tried in (("eve", password), ("ann", "a wrong one"), ("teacher", password)):
            assert not Learner(room.url, name).log_in(tried)
        teacher = Learner(room.url, "teacher")
        assert teacher.log_in((room.folder / TEACHER_PASSWORD).read_text().strip())
        held = Turn(room.folder / "gate", 8 * max(2, resources.cores()))
        assert held.wait(threading.Event())
        learners = [Learner(room.url, name) for name in names]
        with ThreadPoolExecutor(len(names)) as side_by_side:
            told = list(side_by_side.map(go_in, learners, [password] * len(names)))
            held.leave()
            ended = list(side_by_side.map(lambda each: each.run(END).split(), learners))
    folders = []
    for learner, (ahead, course, record, folder), words in zip(learners, told, ended, strict=True):
        home = room.folder / "learners" / learner.name
        assert int(ahead) >= 1  # it has read how many runs come first
        assert (Path(course), Path(record)) == (home / "course", home / ".labkit")
        assert (home / "course" / "08_pipeline_parallel.ipynb").is_file()
        total = str(4.0 * (1 + len(learner.name)))
        assert words == [*[total] * 4, "True", "2"]
        folders.append(folder)
    assert len(set(folders)) == len(names)
    assert not [folder for folder in folders if Path(folder).exists()]
    assert not list((room.folder / "gate").iterdir())


def test_a_hub_without_a_password_does_not_start(tmp_path):
    needs_a_hub()
    room = Room(folder=tmp_path, notebooks=hub_command.NOTEBOOKS, as_root=True, port=free_port())
    config = hub_command.write(room)
    (tmp_path / PASSWORD).write_text("\n")
    done = subprocess.run(
        hub_command.command(config), cwd=tmp_path, capture_output=True, text=True, timeout=UP_S
    )
    assert done.returncode and "at least 8 characters" in done.stderr
