"""Launch a script by the command its users type: torchrun, accelerate launch, deepspeed. The
command is real, and shown."""

import contextlib
import functools
import os
import pickle
import shlex
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import psutil

from labkit.devices import on_pretend
from labkit.devices.rung import Pretend
from labkit.launching import gate, settings
from labkit.launching.fork import zygote_client
from labkit.launching.rank_state import RankFiles, last_lines
from labkit.launching.run import Run, remove
from labkit.launching.script_command import (
    ALONE,
    LAUNCHERS,
    RECORDED,
    command,
    config_file,
    needs,
    num_nodes,
    stand,
)
from labkit.launching.verdicts import verdict
from labkit.launching.verdicts.outcome import PEER_GONE
from labkit.machine import ops, resources
from labkit.units import check_real
from labkit.words import say

__all__ = ["LAUNCHERS", "command", "launch_script"]

ABORTED = "terminate called without an active exception"
"""what C++ says where a thread is still running when its object goes: at the end of one process in
a hundred or so, with torch 2.13 and gloo"""

# SIGTERM when we die
_LEASH = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,15); os.execv(sys.argv[1],sys.argv[1:])"
_REPOSITORY = Path(__file__).parents[2]


def launch_script(
    path: str | Path,
    *args: str,
    ranks: int = 2,
    using: str = "torchrun",
    timeout_s: float | None = None,
    show: bool = True,
    max_restarts: int = 0,
    nodes: tuple[int, int] = (1, 1),
    config: str | Path | dict | None = None,
    devices: str | Pretend | None = None,
    record: bool | int = False,
) -> Run:
    """Runs a script on ``ranks`` ranks by torchrun, accelerate or deepspeed, or on one by "python",
    and waits. The command is printed first.

    ``run.logs[r]`` is what rank r printed; ``run[r]`` is what it gave to
    ``labkit.launching.rank.current().give``, else None. Raises RankFailed with the guilty rank's
    traceback, Timeout, or KeyboardInterrupt after the stop button; no process is left. torchrun's
    own store listens on every interface while it runs: only there does labkit leave the loopback.

    torchrun starts all ranks anew when one dies, ``max_restarts`` times. With ``nodes=(1, 2)`` two
    torchruns stand for two machines; when one is killed with its ranks, the other goes on, and the
    ranks that are no more give None. ``config`` is accelerate's configuration file, or a dict that
    becomes one beside the script; ``ranks`` counts for more than its num_processes.

    ``devices``: "pretend" or ``lab.pretend(memory_mib=...)`` gives each rank of torchrun a pretend
    device, which ``torch.accelerator`` finds like a GPU; "cpu" hides GPUs. ``record=True`` records
    the ranks' first ten optimizer steps (40: so many), or a whole script without: run.timeline().
    """
    timeout_s = settings.current().timeout_s if timeout_s is None else timeout_s
    check_real(1e-3, 1e9, timeout_s=timeout_s)
    chosen = stand(devices, ranks, using)
    how = {"ranks": ranks, "using": using, "max_restarts": max_restarts, "nodes": nodes}
    how |= {"port": resources.free_port(), "config": config_file(config, Path(path))}
    how |= {"front": _front(chosen.pretend, using, record)}
    each_line = functools.partial(command, path, *map(str, args), **how)
    needed = needs(chosen, using, restarts=max_restarts > 0, config=how["config"])
    shown = [each_line(node=node) for node in range(num_nodes(nodes))]
    client = zygote_client.running()
    folder = client.new_folder()
    lines = [each_line(node=node, logs=folder / "logs") for node in range(len(shown))]
    _show(shown if show else [], needed)
    environ = _environ(lines[0][0], ranks, client.environ, LABKIT_RUN_DIR=str(folder), **needed)
    return _run(lines, folder, ranks, (*chosen.notes, using), environ, timeout_s)


def _front(pretend: Pretend | None, using: str, record: bool | int) -> list[str]:
    """What stands before the script. Raises ValueError for what can't be recorded."""
    if not record:
        return on_pretend.front(pretend)
    if pretend is not None or using == "deepspeed":
        raise ValueError(
            "a script is recorded by torchrun, accelerate or python, on what the machine has; got "
            f"using={using!r}{', on pretend devices' if pretend else ''}. Leave that out, or "
            "record=True"
        )
    return [*RECORDED] if record is True else [*RECORDED, f"--steps={record}"]


def run_here(path: str | Path, *args: str, ranks: int, devices: str | Pretend) -> int:
    """Runs a script by torchrun in this terminal, after the command and what it stands on; its exit
    code. Raises ValueError as ``launch_script`` does."""
    chosen = stand(devices, ranks, "torchrun")
    front = on_pretend.front(chosen.pretend)
    line = command(path, *args, ranks=ranks, using="torchrun", front=front)
    needed = needs(chosen, "torchrun")
    _show([line], needed)
    if chosen.pretend:
        print(
            say(
                "Each rank has a pretend device: an accelerator's memory and rules, the CPU's "
                "speed. Times say nothing of a GPU."
            ),
            flush=True,
        )
    environ = _environ(line[0], ranks, {}, **needed)
    return subprocess.run(_on_a_leash(line), env=environ).returncode


def _show(lines: list[list[str]], needed: dict[str, str]) -> None:
    """Prints commands as one types them, with what their environment needs; nothing if none."""
    settings = [f"{name}={value}" for name, value in needed.items()]
    if not lines:
        return
    typed = [" ".join(["$", *settings, shlex.join(line)]) for line in lines]
    print(*typed, sep=" &\n", flush=True)


def _run(
    lines: list[list[str]],
    folder: Path,
    ranks: int,
    labels: tuple[str, ...],
    environ: dict[str, str],
    timeout_s: float,
) -> Run:
    """Runs the commands to their end and gathers what the ranks left. ``labels``: what is said of
    the run, first what carries messages, last the launcher."""
    turn = None
    try:
        turn = gate.turn(ranks)
        turn.wait(threading.Event(), _say_ahead)
        began = time.monotonic()
        code = _follow(lines, folder, ranks, environ, timeout_s)
        run = _collect(folder, ranks, labels, code, time.monotonic() - began)
        run = replace(run, waited_s=turn.waited_s)
    except BaseException:
        remove(folder)
        raise
    finally:
        if turn is not None:
            turn.leave()
        if labels[-1] == "deepspeed":
            ops.free_shared_memory(lines[0][lines[0].index("--master_port") + 1])
    weakref.finalize(run, remove, folder)
    return run


def _say_ahead(ahead: int) -> None:
    told = say("1 run ahead of you") if ahead == 1 else say("{} runs ahead of you").format(ahead)
    print(told, flush=True)


def _environ(launcher: str, ranks: int, found: dict[str, str], **needed: str) -> dict[str, str]:
    """The environment of the launchers, and so of the ranks. ``found``: where DeepSpeed's ops are,
    if ours does not say it; ``needed``: what they must be told."""
    path = [str(_executable(launcher).parent), os.environ.get("PATH", "")]
    python_path = [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **resources.gloo_environment(),
        **resources.WAITING,
        **found,
        "OMP_NUM_THREADS": str(resources.threads(ranks)),
        **os.environ,
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        gate.VARIABLE: "",  # what a rank launches is part of its run
        **needed,
    }


def _executable(launcher: str) -> Path:
    """The command of this environment, also where the environment is not activated."""
    return Path(sys.executable).with_name(launcher)


def _follow(
    lines: list[list[str]], folder: Path, ranks: int, environ: dict[str, str], timeout_s: float
) -> int:
    """Runs the commands to their end and returns the best exit code. On a timeout or an interrupt
    too, everything that they started is then gone."""
    launchers: list[psutil.Popen] = []
    with open(folder / "launcher.txt", "wb") as output:
        try:
            for line in lines:
                launchers.append(
                    psutil.Popen(
                        _on_a_leash(line),
                        stdout=output,
                        stderr=output,
                        stdin=subprocess.DEVNULL,
                        env=environ,
                        start_new_session=True,
                    )
                )
            _, alive = psutil.wait_procs(launchers, timeout=timeout_s)
            if alive:
                raise _timeout(_rank_logs(folder, ranks), timeout_s)
            return min((each.returncode for each in launchers), key=abs)
        finally:
            _end(launchers, folder)


def _on_a_leash(line: list[str]) -> list[str]:
    """A command that ends when this process does, where the system can do that."""
    name = line[0]
    rest = line[1:]
    if line[:2] == ["accelerate", "launch"]:  # its other name, which imports no other command
        name = "accelerate-launch"
        rest = line[2:]
    executable = str(_executable(name))
    if sys.platform != "linux":
        return [executable, *rest]
    reader = [] if name == ALONE else [sys.executable]
    return [sys.executable, "-c", _LEASH, *reader, executable, *rest]


def _family(folder: Path) -> set[psutil.Process]:
    """Everything that runs with this run's folder in its environment, and below: a launcher that
    was killed no longer knows its ranks."""
    found: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("LABKIT_RUN_DIR") == str(folder):
                found |= {process, *process.children(recursive=True)}
    return found


def _end(launchers: list[psutil.Popen], folder: Path) -> None:
    """Ends launchers and everything that they started: politely, and after three seconds by
    force."""
    family = _family(folder)
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family | {*launchers}, timeout=3)
    for one in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(launchers, timeout=3)


def _collect(folder: Path, ranks: int, labels: tuple[str, ...], code: int, seconds: float) -> Run:
    """What the script's ranks left. torch aborts now and then at exit, after success: a result
    counts for more."""
    logs = _rank_logs(folder, ranks)
    files = [each.result for each in RankFiles.of_run(folder, ranks)]
    # an abort at exit prints no traceback
    raised = any("Traceback (most recent call" in log for log in logs)
    if code and (raised or not all(file.exists() for file in files)):
        raise _failure(folder, logs, labels[-1], code)
    return Run(
        results=tuple(pickle.loads(file.read_bytes()) if file.exists() else None for file in files),
        logs=logs,
        seconds=seconds,
        backend=labels[0],
        notes=labels,
        machine=resources.summary(),
        folder=folder,
    )


def _rank_logs(folder: Path, ranks: int) -> tuple[str, ...]:
    """What each rank printed, all its starts one after the other."""
    num_nodes = max(1, len(list((folder / "logs").glob("node-*"))))
    ranks_per_node = max(1, ranks // num_nodes)
    logs = []
    for rank in range(ranks):
        files = _log_files(folder / "logs", rank, ranks_per_node)
        logs.append("".join(file.read_text(errors="replace") for file in files))
    return tuple(logs)


def _log_files(logs: Path, rank: int, ranks_per_node: int) -> list[Path]:
    """A rank's output, from wherever its launcher put it."""
    node, local_rank = divmod(rank, ranks_per_node)
    for pattern in (
        f"node-{node}/*/attempt_*/{local_rank}/std*.log",  # torchrun
        f"*/attempt_*/{rank}/std*.log",  # accelerate
        f"*rank{rank}.log",  # deepspeed
    ):
        files = sorted(logs.glob(pattern))
        if files:
            return files
    return []


def _timeout(logs: tuple[str, ...], timeout_s: float) -> verdict.Timeout:
    """The verdict when time is up."""
    lines = [
        say("the script was given {seconds:g} s (timeout_s) and is not done.", seconds=timeout_s)
    ]
    for rank, log in enumerate(logs):
        lines.append(say("rank {rank} last said: {said}", rank=rank, said=last_lines(log, 2)))
    return verdict.Timeout("\n".join(lines), (), logs)


def _failure(folder: Path, logs: tuple[str, ...], using: str, code: int) -> verdict.RankFailed:
    """The verdict on a script: the traceback of the rank that is to blame, else the launcher's own
    last words."""
    ended = say("{launcher} ended with exit code {code}", launcher=using, code=code)
    for rank, log in enumerate(logs):
        _, found, rest = log.partition("Traceback")
        if found and not any(words in rest for words in PEER_GONE):
            text = say("rank {rank} of the script failed ({ended}):", rank=rank, ended=ended)
            text += f"\n{found}{rest}"
            return verdict.RankFailed(text, (), logs)
    launcher = (folder / "launcher.txt").read_text(errors="replace")
    for rank, log in enumerate(logs if any(logs) else (launcher,)):
        if ABORTED in log:
            text = say(
                "rank {rank} aborted without an error of Python, with torch's words “{words}” "
                "({ended}). Its threads do so now and then in a process that is just ending, also "
                "after a script that is right. Run it again.",
                rank=rank,
                words=ABORTED,
                ended=ended,
            )
            return verdict.RankFailed(text, (), logs)
    said = last_lines(launcher, 40)
    text = say("{ended}. Its last words:", ended=ended) + f"\n{said}"
    return verdict.RankFailed(text, (), logs)
