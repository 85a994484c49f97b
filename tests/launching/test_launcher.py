"""Laws of launching: results come back by rank, nothing leaks from run to run, every bad ending is
one readable exception, and afterwards no process, port or file is left. Delays are asserted at ten
times the stated bound."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

import labkit as lab
from labkit.launching import job, zygote_client
from labkit.machine import resources


@pytest.fixture(scope="module", autouse=True)
def _warm():
    zygote_client.seconds_to_ready()
    yield


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    deadline = time.monotonic() + 5
    while ranks_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ranks_alive() == []


def ranks_alive():
    """Whatever the zygote started, but for the spares: these have not begun, and are still in its
    session."""
    zygote = zygote_client.running().process.pid
    below = psutil.Process(zygote).children(recursive=True)
    return [child for child in below if session_of(child.pid) not in (zygote, None)]


def session_of(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def seconds_of(fn, error, **options):
    began = time.monotonic()
    with pytest.raises(error) as caught:
        lab.launch(fn, **options)
    return time.monotonic() - began, caught.value


GPUS = resources.num_gpus()
NCCL = pytest.param(
    "nccl",
    max(GPUS, 1),
    marks=[pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no GPU here")],
)


@pytest.mark.parametrize(("backend", "num_ranks"), [("gloo", 3), NCCL])
def test_results_come_back_by_rank(backend, num_ranks):
    def total(factor):
        import torch
        import torch.distributed as dist

        x = torch.full((3,), float(dist.get_rank() * factor))
        dist.all_reduce(x)
        return dist.get_rank(), x

    run = lab.launch(total, 10, ranks=num_ranks, backend=backend)
    assert [run[r][0] for r in range(num_ranks)] == list(range(num_ranks))
    assert all(
        run[r][1].tolist() == [5.0 * num_ranks * (num_ranks - 1)] * 3 for r in range(num_ranks)
    )
    assert run.backend == backend and backend in run.notes and len(run) == num_ranks


def test_a_rank_is_an_ordinary_torch_program():
    def look():
        import torch
        import torch.distributed as dist

        names = (
            "RANK",
            "LOCAL_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "LABKIT_TEST",
        )
        return (
            dist.is_initialized(),
            torch.get_num_threads(),
            os.getcwd(),
            {name: os.environ[name] for name in names},
        )

    os.environ["LABKIT_TEST"] = "seen"
    run = lab.launch(look, ranks=2)
    initialized, threads, cwd, environ = run[1]
    assert initialized and threads == max(1, resources.cores() // 2) and cwd == os.getcwd()
    assert environ["RANK"] == environ["LOCAL_RANK"] == "1" and environ["WORLD_SIZE"] == "2"
    assert environ["LABKIT_TEST"] == "seen"


def test_nothing_leaks_between_runs_and_seeds_differ_by_rank():
    def draw():
        import random
        import sys as system

        import numpy as np
        import torch

        leaked = hasattr(system, "labkit_leak")
        system.labkit_leak = True
        return leaked, random.random(), float(np.random.rand()), torch.rand(1).item()

    first, again, other = (lab.launch(draw, ranks=2, seed=seed) for seed in (0, 0, 5))
    assert first[0] == again[0] and first[0] != first[1] and first[0] != other[0]
    assert not any(run[r][0] for run in (first, again, other) for r in range(2))


def test_what_ranks_print_is_kept_apart():
    def say():
        print("I am", os.environ["RANK"])
        os.system("echo from a child")

    run = lab.launch(say, ranks=2)
    assert [log.splitlines() for log in run.logs] == [
        ["I am 0", "from a child"],
        ["I am 1", "from a child"],
    ]


def test_large_results_arrive_whole():
    def big():
        import torch

        return torch.arange(20_000_000)

    run = lab.launch(big, ranks=1)
    assert run[0].shape == (20_000_000,) and run[0][-1].item() == 19_999_999


def test_exception_names_the_rank_and_the_line():
    def fail():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            raise KeyError("no such layer")
        dist.all_reduce(torch.ones(1))

    seconds, error = seconds_of(fail, lab.RankFailed, ranks=3)
    assert seconds < 10 * 0.2 + 1
    assert "rank 1 failed at line" in str(error) and "KeyError: 'no such layer'" in str(error)
    assert 'raise KeyError("no such layer")' in str(error)
    assert (
        str(error).count("Traceback") == 1 and "rank 0:" in str(error) and "rank 2:" in str(error)
    )


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_death_by_a_signal_names_the_signal_and_the_likely_cause(name):
    def die():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            os.kill(os.getpid(), getattr(signal, name))
        dist.all_reduce(torch.ones(1))

    seconds, error = seconds_of(die, lab.RankFailed, ranks=2)
    assert seconds < 10 * 0.1 + 1
    assert f"rank 0 was killed by {name}" in str(error)
    assert ("memory ran out" in str(error)) == (name == "SIGKILL")


def test_exit_before_the_result_is_a_failure():
    def leave():
        os._exit(3)

    _, error = seconds_of(leave, lab.RankFailed, ranks=1)
    assert "left with exit code 3" in str(error)


def test_early_return_names_who_left_and_where_the_others_wait():
    def leave_early():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 1:
            return
        dist.all_reduce(torch.ones(1))  # here

    seconds, error = seconds_of(leave_early, lab.Deadlock, ranks=3)
    assert seconds < 10 * 0.7
    assert "rank 1 already returned; ranks 0, 2 wait for it in all_reduce at line" in str(error)
    assert "dist.all_reduce(torch.ones(1))  # here" in str(error)


def test_early_return_is_seen_in_a_subgroup():
    def leave_early():
        import torch
        import torch.distributed as dist

        group = dist.new_group([0, 2])
        if dist.get_rank() == 0:
            dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1), group=group)

    seconds, error = seconds_of(leave_early, lab.Deadlock, ranks=3)
    assert (
        seconds < 10 * 0.7
        and "rank 2 already returned; rank 0 waits for it in all_gather" in str(error)
    )


def test_a_slow_collective_of_others_is_no_deadlock():
    def slow_pair():
        import torch
        import torch.distributed as dist

        group = dist.new_group([0, 1])
        if dist.get_rank() == 1:
            time.sleep(1.5)
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(1), group=group)
        return "fine"

    assert list(lab.launch(slow_pair, ranks=3)) == ["fine"] * 3


@pytest.mark.parametrize("program", ["uneven", "subgroup", "destroyed"])
def test_correct_programs_with_a_late_rank_are_no_deadlock(program):
    def late(name):
        import torch
        import torch.distributed as dist

        rank, size = dist.get_rank(), dist.get_world_size()
        group = None
        if name == "subgroup":
            dist.new_group([0, 1])
            group = dist.new_group([0, 2, 3])
        if rank == size - 1:
            time.sleep(1.5)
        if name == "uneven":
            x = torch.ones(size * (rank + 1))
            dist.all_to_all_single(torch.empty(6), x, [1, 2, 3], [rank + 1] * size)
        elif name == "destroyed" or rank != 1:
            num = 3
            dist.gather(
                torch.ones(1), [torch.ones(1)] * num if rank == 0 else None, dst=0, group=group
            )
        if name == "destroyed" and rank:
            dist.destroy_process_group()
        return "fine"

    assert set(lab.launch(late, program, ranks=4 if program == "subgroup" else 3)) == {"fine"}


def test_a_rank_that_does_not_listen_cannot_hold_up_the_verdict(monkeypatch):
    def deaf():
        import torch.distributed as dist

        if dist.get_rank() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            print("busy")
            time.sleep(0.05)

    monkeypatch.setattr(job, "POLL_S", 0.002)  # more questions in two seconds than a socket holds
    seconds, _ = seconds_of(deaf, lab.Timeout, ranks=2, timeout_s=2)
    assert seconds < 10


def test_stacks_of_ranks_that_only_begin_do_no_harm():
    def work():
        time.sleep(0.3)
        return 1

    job = lab.start(work, ranks=3)
    while len(job.progress) < 3:
        time.sleep(0.001)
    job.stacks()
    assert list(job.wait()) == [1, 1, 1]


@pytest.mark.parametrize("shapes", [False, True], ids=["ops", "shapes"])
def test_different_collectives_are_told_apart(shapes):
    def differ():
        import torch
        import torch.distributed as dist

        x = torch.ones(4)
        if dist.get_rank() == 0:
            dist.all_reduce(x)
        elif shapes:
            dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2))
        else:
            dist.broadcast(x, src=1)
            dist.broadcast(x, src=0)

    seconds, error = seconds_of(differ, lab.Deadlock, ranks=2)
    assert seconds < 10 * 0.7
    assert "different collectives" in str(error) and "all_reduce of [[4]]" in str(error)
    assert ("all_gather of [[2]]" if shapes else "broadcast of [[4]]") in str(error)


def test_different_sizes_lift_gloos_own_reason():
    def differ():
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(4 + 4 * dist.get_rank()))

    seconds, error = seconds_of(differ, (lab.RankFailed, lab.Deadlock), ranks=2)
    assert seconds < 5 and ("gloo's reason" in str(error) or "different collectives" in str(error))


def test_an_endless_loop_is_ended_with_its_line():
    def loop():
        while True:
            pass

    seconds, error = seconds_of(loop, lab.Timeout, ranks=2, hang_s=1)
    assert (
        1 <= seconds < 10
        and "no sign of life for 1 s" in str(error)
        and "of test_launcher.py" in str(error)
    )


def test_a_stopped_rank_does_not_answer_and_a_send_cycle_names_its_call():
    def cycle():
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.send(torch.ones(1), dst=1 - dist.get_rank())

    seconds, error = seconds_of(cycle, lab.Timeout, ranks=3, hang_s=1)
    assert seconds < 10
    assert "rank 0: in send at line" in str(error) and "rank 2: does not answer" in str(error)


def test_progress_keeps_a_quiet_run_alive_and_is_seen():
    def work():
        from labkit.launching import rank

        for step in range(8):
            rank.current().progress(step=step, loss=1.0 / (step + 1))
            time.sleep(0.25)
        return "done"

    job = lab.start(work, ranks=2, hang_s=1)
    deadline = time.monotonic() + 5
    while not any(row.get("step") for row in job.progress) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert any(row.get("step", 0) > 0 and row["loss"] < 1 for row in job.progress)
    assert list(job.wait()) == ["done", "done"]


def test_timeout_is_kept():
    def chat():
        while True:
            print("still here")
            time.sleep(0.1)

    seconds, error = seconds_of(chat, lab.Timeout, ranks=1, timeout_s=1)
    assert seconds < 10 and "given 1 s (timeout_s)" in str(error)


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


def test_children_of_a_rank_die_with_it():
    def parent():
        subprocess.Popen(["sleep", "600"])
        return os.getpid()

    lab.launch(parent, ranks=1)  # the fixture then finds nothing left


def test_many_jobs_at_once():
    def name(text):
        return text

    jobs = [lab.start(name, str(number), ranks=2) for number in range(4)]
    assert [job.wait()[1] for job in jobs] == ["0", "1", "2", "3"]


def test_too_much_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(resources, "cores", lambda: 2)
    with pytest.raises(
        lab.Refused, match=r"64 ranks need about .* GB .* cores\. Ask for at most \d+ ranks"
    ):
        lab.launch(print, ranks=64)
    monkeypatch.setattr(resources, "available_bytes", lambda: 300e6)
    with pytest.raises(lab.Refused, match=r"0\.3 GB free"):
        lab.launch(print, ranks=8)


def test_what_cannot_be_sent_is_refused_by_name():
    import threading

    door = threading.Lock()

    def use():
        return door

    with pytest.raises(lab.Refused, match=r"door \(a lock\) can't be"):
        lab.launch(use)
    with pytest.raises(lab.Refused, match="takes a function and its arguments"):
        lab.launch(3)
    with pytest.raises(lab.Refused, match="ranks is a whole number"):
        lab.launch(print, ranks=0)
    with pytest.raises(lab.Refused, match="nccl needs a GPU for each rank"):
        lab.launch(print, ranks=2 + resources.num_gpus(), backend="nccl")


def test_a_result_that_cannot_be_sent_is_named():
    def give():
        return (x for x in range(3))

    _, error = seconds_of(give, lab.RankFailed, ranks=1)
    assert "rank 0 returned a generator" in str(error)


def test_classes_of_the_callers_main_keep_their_identity(tmp_path):
    script = tmp_path / "cells.py"
    script.write_text(
        textwrap.dedent("""
        import labkit as lab
        class Point:
            def __init__(self, x): self.x = x
        def give():
            import io, torch, torch.distributed as dist
            everyone = [None, None]
            dist.all_gather_object(everyone, Point(dist.get_rank()))
            torch.save(Point(1), io.BytesIO())
            return everyone[1]
        if __name__ == "__main__":
            run = lab.launch(give, ranks=2)
            assert isinstance(run[0], Point) and run[0].x == 1
            print("same class")
    """)
    )
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert "same class" in ended.stdout, ended.stderr


def test_ranks_zygote_and_files_go_when_the_notebook_is_killed(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(
        textwrap.dedent("""
        import time, labkit as lab
        from labkit.launching import zygote_client as server
        def forever():
            time.sleep(600)
        if __name__ == "__main__":
            job = lab.start(forever, ranks=2)
            while len(job.progress) < 2: time.sleep(0.05)
            time.sleep(0.5)
            print(server.running().process.pid, server.running().folder, flush=True)
            job.wait()
    """)
    )
    notebook = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    pid, folder = notebook.stdout.readline().split()
    zygote = psutil.Process(int(pid))
    family = [zygote, *zygote.children(recursive=True)]
    assert len(family) >= 3
    notebook.kill()
    notebook.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive and not Path(folder).exists()


def test_a_dead_zygote_is_replaced():
    def name():
        return "here"

    zygote_client.running().process.kill()
    time.sleep(0.2)
    assert list(lab.launch(name, ranks=2)) == ["here", "here"]


def test_interrupt_ends_the_run_and_is_passed_on(tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, threading, time, labkit as lab
        def forever():
            time.sleep(600)
        if __name__ == "__main__":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may start its background jobs without
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


def policies():
    """This thread's policy, and those of the threads that gloo began and has named."""
    named = {
        int(each): Path(f"/proc/self/task/{each}/comm").read_text()
        for each in os.listdir("/proc/self/task")
    }
    return os.sched_getscheduler(0), {
        os.sched_getscheduler(each) for each, name in named.items() if "gloo" in name
    }


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies are Linux's")
def test_gloos_threads_do_not_interrupt_a_running_one():
    run = lab.launch(policies, ranks=2, backend="gloo")
    assert list(run) == [(os.sched_getscheduler(0), {os.SCHED_BATCH})] * 2
