"""Laws of bad endings: every one is a readable exception that names rank, line and cause, and what
is no fault is none. Delays are asserted at ten times the stated bound."""

import os
import signal
import time
from pathlib import Path

import pytest
from rank_processes import seconds_of

import labkit as lab
from labkit.launching import job

pytestmark = [
    pytest.mark.alone,  # bounds in seconds: how soon each ending comes
    pytest.mark.usefixtures("zygote", "nothing_left"),
]


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


def test_no_rank_begins_before_all_are_connected():
    """Else one that raises at once leaves another in the midst of connecting."""

    def connect_late():
        import torch.distributed as dist

        connect = dist.init_process_group
        woke = []

        def slowly(*args, **meeting):
            connect(*args, **meeting)
            if dist.get_rank() == 1:
                time.sleep(0.5)
            woke.append(time.monotonic())

        dist.init_process_group = slowly
        return lambda: (time.monotonic(), woke[0])

    class Late:
        def __reduce__(self):
            return connect_late, ()

        def __call__(self):
            raise AssertionError("a rank calls what it unpickles")

    run = lab.launch(Late(), ranks=3)
    assert min(begun for begun, _ in run) >= run[1][1]


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

        rank = dist.get_rank()
        size = dist.get_world_size()
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
        and f"of {Path(__file__).name}" in str(error)
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


def test_timeout_is_kept():
    def chat():
        while True:
            print("still here")
            time.sleep(0.1)

    seconds, error = seconds_of(chat, lab.Timeout, ranks=1, timeout_s=1)
    assert seconds < 10 and "given 1 s (timeout_s)" in str(error)


def test_a_result_that_cannot_be_sent_is_named():
    def give():
        return (x for x in range(3))

    _, error = seconds_of(give, lab.RankFailed, ranks=1)
    assert "rank 0 returned a generator" in str(error)
