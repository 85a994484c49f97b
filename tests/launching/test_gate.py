"""On a shared machine launches wait their turn: in order, fairly, and for nobody who is gone."""

import collections
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import labkit as lab
from labkit.check import grading
from labkit.launching import gate, script
from labkit.launching.fork.zygote_client import ZygoteClient
from labkit.launching.gate import Ticket, Turn, runs_ahead

RUNNING = 16
"""ranks that leave no core for others on any machine with up to seven"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A gate, and the environment that names it."""
    folder = tmp_path / "gate"
    folder.mkdir(mode=0o1777)
    monkeypatch.setenv(gate.VARIABLE, str(folder))
    monkeypatch.setattr(gate.resources, "cores", lambda: 2)
    return folder


@pytest.fixture
def held(folder):
    """Somebody's run under way, which leaves no room for another."""
    turn = Turn(folder, RUNNING)
    assert turn.wait(threading.Event())
    yield turn
    turn.leave()


def ticket(name: str, *, learner: str = "", ranks: int = 4, running: bool = False) -> Ticket:
    """A ticket that came in the order of the names."""
    return Ticket(
        name=name, arrived_ns=ord(name), learner=learner or name, ranks=ranks, running=running
    )


def ahead(mine: Ticket, *others: Ticket, cores: int = 2, free_ranks: float = 100) -> int:
    """How many of the others come before."""
    return runs_ahead(mine, [mine, *others], cores=cores, free_ranks=free_ranks)


def gate_of_rank() -> str | None:
    """What a rank finds in its environment."""
    return os.environ.get(gate.VARIABLE)


def until(condition) -> None:
    """Waits, at most 20 seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_is_alone_starts_at_once_however_many_ranks_it_has():
    assert ahead(ticket("b"), cores=2) == 0
    assert ahead(ticket("b", ranks=100), cores=2) == 0
    assert ahead(ticket("b"), free_ranks=0) == 0


def test_order_is_that_of_arrival():
    assert ahead(ticket("b"), ticket("a"), ticket("c")) == 1
    assert ahead(ticket("d"), ticket("a"), ticket("b"), ticket("c", running=True)) == 3


@pytest.mark.parametrize(("cores", "free_ranks", "waits"), [(4, 100, 0), (2, 100, 1), (4, 7, 1)])
def test_two_runs_go_together_where_cores_and_memory_allow(cores, free_ranks, waits):
    running = ticket("a", running=True)
    assert ahead(ticket("b"), running, cores=cores, free_ranks=free_ranks) == waits


def test_who_has_a_run_stands_behind_who_has_none():
    others = [ticket("a", learner="ann", running=True), ticket("c", learner="bob")]
    assert ahead(ticket("b", learner="ann"), *others) == 2
    assert ahead(others[1], others[0], ticket("b", learner="ann")) == 1


def test_a_launch_waits_says_so_and_goes_in(folder, held):
    job = lab.start(int, ranks=2)
    until(lambda: job.ahead == 1)
    time.sleep(0.2)
    assert not job.done
    freed = time.monotonic()
    held.leave()
    run = job.wait()
    assert list(run) == [0, 0]
    assert run.waited_s > 0.2
    assert job.began >= freed  # its deadlines count from there
    until(lambda: not os.listdir(folder))


def test_a_script_waits_as_well_and_says_so(folder, held, tmp_path, capsys):
    path = tmp_path / "train.py"
    seen = tmp_path / "seen"
    path.write_text(f"import os; open({str(seen)!r}, 'w').write(repr(os.environ['LABKIT_GATE']))")
    freed = threading.Timer(0.5, held.leave)
    freed.start()
    run = lab.launch_script(path, ranks=1, using="python", timeout_s=60)
    freed.join()
    assert "1 run ahead of you" in capsys.readouterr().out
    assert run.waited_s > 0.3
    assert seen.read_text() == "''"  # what it launches is part of its run
    assert not os.listdir(folder)


def test_a_script_that_is_stopped_in_the_queue_leaves_nothing(folder, held, tmp_path, monkeypatch):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "_say_ahead", stopped)
    path = tmp_path / "train.py"
    path.touch()
    with pytest.raises(KeyboardInterrupt):
        lab.launch_script(path, ranks=1, using="python")
    assert len(os.listdir(folder)) == 1


def test_who_imports_torch_first_holds_nobody_up(folder, monkeypatch):
    """A launch lays its ticket down when its ranks can start."""
    ready = threading.Event()
    wait_for = ZygoteClient.wait_for

    def slow(client, said, unless=None):
        return ready.wait(20) and wait_for(client, said, unless)

    monkeypatch.setattr(ZygoteClient, "wait_for", slow)
    job = lab.start(int, ranks=2)
    other = Turn(folder, RUNNING)
    assert other.wait(threading.Event()) and other.waited_s == 0
    ready.set()
    until(lambda: job.ahead == 1)
    other.leave()
    assert list(job.wait()) == [0, 0]


def test_the_time_in_the_queue_is_not_an_answer_s(held):
    freed = threading.Timer(1.0, held.leave)
    freed.start()
    began = time.monotonic()
    with grading.limit(0.8):
        assert list(lab.launch(int, ranks=2)) == [0, 0]
    assert time.monotonic() - began > 0.9
    freed.join()
    with pytest.raises(TimeoutError), grading.limit(0.2):
        time.sleep(5)


def test_the_last_ones_look_less_often(folder, held, monkeypatch):
    """Thirty that wait leave the cores to those who run."""
    looks = collections.Counter()
    may_start = Turn._may_start

    def counted(turn):
        looks[turn] += 1
        return may_start(turn)

    monkeypatch.setattr(Turn, "_may_start", counted)
    stopping = threading.Event()
    turns = []
    threads = []
    for number in range(12):
        monkeypatch.setenv("JUPYTERHUB_USER", f"learner-{number}")
        turns.append(Turn(folder, 4))
        threads.append(threading.Thread(target=turns[-1].wait, args=(stopping,)))
        threads[-1].start()
        until(lambda: turns[-1].ahead == len(turns))
    looks.clear()
    time.sleep(2)
    stopping.set()
    for turn, thread in zip(turns, threads, strict=True):
        thread.join(20)
        turn.leave()
    assert 2 * looks[turns[-1]] < looks[turns[0]]


def test_the_panel_says_how_many_runs_are_ahead(held):
    from labkit.widgets.live import Panel

    job = lab.start(int, ranks=2)
    until(lambda: job.ahead == 1)
    assert "1 run ahead of you" in Panel(job, "en").lines.value
    assert "前面还有 1 个运行" in Panel(job, "zh").lines.value
    job.stop()


def test_stop_leaves_the_queue(folder, held):
    job = lab.start(int, ranks=2)
    until(lambda: job.ahead == 1)
    job.stop()
    assert job.done
    with pytest.raises(lab.Stopped):
        job.wait()
    assert len(os.listdir(folder)) == 1


def test_a_run_that_failed_has_left(folder):
    with pytest.raises(lab.RankFailed):
        lab.launch(int, "no number", ranks=2)
    until(lambda: not os.listdir(folder))


def test_what_a_rank_launches_belongs_to_its_run(folder):
    assert list(lab.launch(gate_of_rank, ranks=2)) == ["", ""]


def test_a_dead_kernel_holds_nobody_up(folder):
    code = (
        "import sys, threading, time; from pathlib import Path; "
        "from labkit.launching.gate import Turn; "
        "turn = Turn(Path(sys.argv[1]), 16); turn.wait(threading.Event()); "
        "print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"in\n"
        waiting = Turn(folder, 4)
        stopped = threading.Event()
        threading.Thread(target=waiting.wait, args=(stopped,), daemon=True).start()
        until(lambda: waiting.ahead == 1)
        process.send_signal(signal.SIGKILL)
    until(lambda: waiting.ahead == 0)
    assert len(os.listdir(folder)) == 1
    stopped.set()
    waiting.leave()


def test_strange_files_harm_nobody(folder):
    (folder / "empty.ticket").touch()
    (folder / "text.ticket").write_text("w no JSON")
    (folder / "big.ticket").write_bytes(b"r" * 100_000)
    (folder / "link.ticket").symlink_to("/dev/zero")
    (folder / "folder.ticket").mkdir()
    os.mkfifo(folder / "pipe.ticket")
    texts = ['w{"learner": "x"}', 'r{"learner": "x", "ranks": 1000000}', "w[1, 2]"]
    for number, text in enumerate(texts):
        lock = open(folder / f"locked{number}.ticket", "w+")  # noqa: SIM115
        lock.write(text)
        lock.flush()
        gate.fcntl.flock(lock, gate.fcntl.LOCK_EX)
    turn = Turn(folder, 4)
    assert turn.wait(threading.Event())
    assert turn.waited_s == 0
    turn.leave()


def test_who_closes_the_gate_does_not_close_it_for_good(folder, held, monkeypatch):
    monkeypatch.setattr(gate, "PATIENCE_S", 0.3)
    turn = Turn(folder, 4)
    assert turn.wait(threading.Event())
    turn.leave()


def test_a_folder_that_goes_queues_nobody(folder, held):
    job = lab.start(int, ranks=2)
    until(lambda: job.ahead == 1)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert list(job.wait()) == [0, 0]


def test_a_folder_that_knows_no_locks_queues_nobody(folder, held, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(gate.fcntl, "flock", refused)
    turn = Turn(folder, 4)
    assert turn.wait(threading.Event())
    turn.leave()
    assert len(os.listdir(folder)) == 1


def test_a_gate_that_is_no_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(gate.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(lab.Refused, match=r"LABKIT_GATE names a folder.*nowhere"):
        lab.launch(int, ranks=2)


def test_without_a_gate_nobody_waits(monkeypatch):
    monkeypatch.delenv(gate.VARIABLE, raising=False)
    assert lab.launch(int, ranks=2).waited_s == 0
