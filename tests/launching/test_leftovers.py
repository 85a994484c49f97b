"""Laws of the end: after a stop, a failure, an interrupt or the death of the notebook no process,
port or file is left. Delays are asserted at ten times the stated bound."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import labkit as lab
from labkit.launching import job
from labkit.launching.fork import zygote_client
from labkit.launching.fork.messages import Ready

pytestmark = pytest.mark.usefixtures("zygote", "nothing_left")


@pytest.mark.alone  # a bound in seconds
def test_stop_ends_every_rank_and_stacks_tell_where_they_are():
    def wait_for_ever():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            time.sleep(600)
        dist.all_reduce(torch.ones(1))

    job = lab.start(wait_for_ever, ranks=2)
    time.sleep(1)
    stacks = job.stacks()
    assert "wait_for_ever" in stacks[0] and "all_reduce" in stacks[1]
    began = time.monotonic()
    job.stop()
    assert time.monotonic() - began < 10 * 0.2 and job.done
    with pytest.raises(lab.Stopped) as caught:
        job.wait()
    assert isinstance(caught.value, KeyboardInterrupt)


@pytest.mark.alone  # a bound in seconds
def test_a_run_that_is_stopped_before_the_zygote_reads_of_it_never_begins():
    zygote = psutil.Process(zygote_client.running().process.pid)
    lab.launch(int)
    time.sleep(1)  # its spares are forked
    spares = set(zygote.children())
    zygote.suspend()
    try:
        job = lab.start(time.sleep, 600, ranks=2)
        began = time.monotonic()
        job.stop()
        assert time.monotonic() - began < 1 and job.done
    finally:
        zygote.resume()
    time.sleep(0.5)
    assert spares and set(zygote.children()) == spares
    assert list(lab.launch(int)) == [0, 0]


def test_children_of_a_rank_die_with_it():
    def parent():
        subprocess.Popen(["sleep", "600"])
        return os.getpid()

    lab.launch(parent, ranks=1)  # the fixture then finds nothing left


def test_ranks_zygote_and_files_go_when_the_notebook_is_killed(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(
        textwrap.dedent("""
        import time, labkit as lab
        from labkit.launching.fork import zygote_client
        def forever():
            time.sleep(600)
        if __name__ == "__main__":
            job = lab.start(forever, ranks=2)
            while len(job.progress) < 2: time.sleep(0.05)
            time.sleep(0.5)
            print(zygote_client.running().process.pid, zygote_client.running().folder, flush=True)
            job.wait()
    """)
    )
    notebook = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    pid, folder = notebook.stdout.readline().split()
    zygote = psutil.Process(int(pid))
    family = [zygote, *zygote.children(recursive=True)]
    assert len(family) >= 3
    notebook.kill()
    notebook.communicate()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive and not Path(folder).exists()


def test_a_dead_zygote_is_replaced():
    def name():
        return "here"

    zygote = zygote_client.running().process
    zygote.kill()
    zygote.wait(timeout=30)
    assert list(lab.launch(name, ranks=2)) == ["here", "here"]


def test_a_zygote_that_ends_as_it_is_asked_is_told_of_in_words():
    client = zygote_client.running()
    client.wait_for(Ready)
    client.process.kill()
    client.process.wait(timeout=30)
    assert not client.alive
    request = SimpleNamespace(num_ranks=2, to_json=dict)
    with pytest.raises(lab.LaunchError, match=r"has just ended.*launch again"):
        client.fork(request)


def test_interrupt_ends_the_run_and_is_passed_on(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, threading, time, labkit as lab
        def forever():
            time.sleep(600)
        if __name__ == "__main__":
            # a shell may start its background jobs without
            signal.signal(signal.SIGINT, signal.default_int_handler)
            lab.launch(print, ranks=1)
            threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                lab.launch(forever, ranks=2)
            except KeyboardInterrupt:
                print("interrupted")
    """)
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == "interrupted", ended.stderr


def test_no_folder_is_left_after_a_failure():
    def fail():
        raise ValueError("no")

    before = set(zygote_client.running().folder.iterdir())
    with pytest.raises(lab.RankFailed):
        lab.launch(fail, ranks=1)
    assert set(zygote_client.running().folder.iterdir()) == before
    assert job.listeners == []
