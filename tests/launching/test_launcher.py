"""Laws of launching: results come back by rank, nothing leaks from run to run, and what can't be
done or could mean two things is refused before anything starts."""

import contextlib
import functools
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import labkit as lab
from labkit.launching import launcher, settings
from labkit.machine import resources

pytestmark = [
    pytest.mark.alone,  # bounds in seconds: how soon a launch and each of its endings come
    pytest.mark.usefixtures("zygote", "nothing_left"),
]
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
    sums = [5.0 * num_ranks * (num_ranks - 1)] * 3
    assert all(x.tolist() == sums for _, x in run.results)
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
    assert not any(leaked for leaked, *_ in (*first, *again, *other))


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


def test_stacks_of_ranks_that_only_begin_do_no_harm():
    def work():
        time.sleep(0.3)
        return 1

    job = lab.start(work, ranks=3)
    while len(job.progress) < 3:
        time.sleep(0.001)
    job.stacks()
    assert list(job.wait()) == [1, 1, 1]


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


def test_an_option_that_the_function_could_be_meant_to_get_is_refused_by_name():
    def train(step, seed=7, *, timeout_s=1):
        return step, seed, timeout_s

    words = "train has a parameter 'seed', and so has launch, where it says where the random"
    for launching in (lab.launch, lab.start):
        with pytest.raises(lab.Refused, match=words) as caught:
            launching(train, 3, ranks=1, seed=5)
        assert "functools.partial(train, seed=...)" in str(caught.value)
    with pytest.raises(lab.Refused, match=r"a parameter 'timeout_s'.* how long the run may take"):
        lab.launch(train, 3, 4, ranks=1, timeout_s=50)


def test_a_function_of_any_keyword_is_asked_which_seed_is_meant():
    def train(step, **others):
        import torch

        return step, others, torch.initial_seed()

    for name in ("seed", "backend"):
        with pytest.raises(lab.Refused, match=f"takes any keyword, and {name}= is launch's"):
            lab.launch(train, 3, ranks=1, **{name: 5})
    # the two ways out, and what is plainly launch's
    own = functools.partial(train, seed=4)
    assert lab.launch(own, 3, ranks=1, timeout_s=60)[0] == (3, {"seed": 4}, 0)
    assert lab.launch(lambda: train(3), ranks=1, seed=5)[0] == (3, {}, 5)


@pytest.mark.parametrize(
    ("args", "keywords", "words"),
    [
        ((1,), {"rank": 4}, "train can't be called .* unexpected keyword argument 'rank'"),
        ((), {}, "missing a required argument: 'step'"),
        ((1, 2), {}, "too many positional arguments"),
    ],
)
def test_a_call_that_the_function_cannot_take_starts_nothing(args, keywords, words, monkeypatch):
    def train(step):
        return step

    monkeypatch.setattr(launcher.zygote_client, "running", pytest.fail)
    with pytest.raises(lab.Refused, match=words) as caught:
        lab.launch(train, *args, **keywords)
    assert "itself takes ranks, devices, backend, seed, timeout_s, hang_s" in str(caught.value)


def test_what_a_launch_is_not_told_is_as_it_was_set_once():
    def seen():
        import torch

        return torch.initial_seed()

    before = settings.current()
    assert (before.ranks, before.seed, before.timeout_s, before.hang_s) == (2, 0, 600, 60)
    settings.change(ranks=3, seed=7, timeout_s=50, hang_s=40)
    try:
        job = lab.start(seen)
        assert (job.num_ranks, job.timeout_s, job.hang_s) == (3, 50, 40)
        assert job.wait().results == (7, 8, 9)
        told = lab.start(seen, ranks=1, seed=1, timeout_s=20, hang_s=10)
        assert (told.num_ranks, told.timeout_s, told.hang_s) == (1, 20, 10)
        assert told.wait().results == (1,)
        with pytest.raises(ValueError, match="timeout_s is a number"):
            settings.change(timeout_s=-1)
        assert settings.current().timeout_s == 50
    finally:
        settings.reset()
    assert settings.current() == before


def test_whoever_gives_the_function_its_own_may_give_launch_its_own_as_well():
    def train(step, seed=7, **others):
        import torch

        return step, seed, others, torch.initial_seed()

    assert lab.launch(train, 3, ranks=1)[0] == (3, 7, {}, 0)
    assert lab.launch(train, 3, 4, ranks=1, seed=5)[0] == (3, 4, {}, 5)
    assert lab.launch(functools.partial(train, seed=4), 3, ranks=1, seed=5)[0] == (3, 4, {}, 5)
    assert lab.launch(train, 3, ranks=1, fn=2)[0] == (3, 7, {"fn": 2}, 0)


def test_a_healthy_run_is_watched_without_reading_its_logs(tmp_path):
    go = tmp_path / "GO"

    def work():
        import torch
        import torch.distributed as dist

        seen = torch.zeros(1)
        while not seen:  # all leave in the same round
            print("still here")
            dist.all_reduce(seen.fill_(go.exists()))
            time.sleep(0.02)
        if dist.get_rank() == 0:
            time.sleep(1)  # now the others wait, and are asked what for
        dist.all_reduce(torch.ones(1))
        (tmp_path / f"done-{dist.get_rank()}").touch()
        while not (tmp_path / "LEAVE").exists():
            time.sleep(0.02)

    opened = []
    with audited(lambda file: "/log-" in file and opened.append(file)):
        job = lab.start(work, ranks=2, hang_s=50)
        try:
            time.sleep(1.5)
            go.touch()
            while len(list(tmp_path.glob("done-*"))) < 2 and not job.done:
                time.sleep(0.02)
            assert not job.done and opened == []
            (tmp_path / "LEAVE").touch()
            assert all("still here" in log for log in job.wait().logs)
            assert len(opened) == 2  # once each, at the end: what is looked for can be seen
        finally:
            job.stop()


@contextlib.contextmanager
def audited(hear):
    """Tells ``hear`` the name of every file that this process opens inside."""
    hearing = [hear]

    def hook(event, arguments):
        if event == "open" and hearing:
            hearing[0](str(arguments[0]))

    sys.addaudithook(hook)  # for ever, but deaf after the end
    yield
    hearing.clear()


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
