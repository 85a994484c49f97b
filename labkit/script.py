"""Launch a script by the command its users type: torchrun, accelerate launch, deepspeed. The command is real, and
shown."""

import contextlib
import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import psutil

from labkit import machine, ops, server, verdict
from labkit.ending import PEER_GONE
from labkit.run import Run, remove, tail
from labkit.units import check_real, check_whole, check_word

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
# SIGTERM when we die
_LEASH = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,15); os.execv(sys.argv[1],sys.argv[1:])"


def command(path: str | Path, *args: str, ranks: int, using: str, logs: Path | None = None) -> list[str]:
    """The command line that starts ``path`` on ``ranks`` ranks. With ``logs``, each rank's output goes to files there.

    Raises ValueError for an unknown launcher or a script that does not exist.
    """
    check_word(using, LAUNCHERS, "what a script is launched using")
    check_whole(1, 4096, ranks=ranks)
    if not Path(path).is_file():
        raise ValueError(f"launch_script takes the path of a script; {str(path)!r} is no file (folder: {os.getcwd()})")
    if using == "torchrun":
        line = ["torchrun", "--standalone", "--nproc-per-node", str(ranks)]
        line += ["--log-dir", str(logs), "--redirects", "3"] if logs else []
    elif using == "accelerate":
        line = ["accelerate", "launch", "--num_processes", str(ranks), "--num_machines", "1", "--mixed_precision", "no"]
        line += ["--dynamo_backend", "no", "--main_process_port", str(machine.free_port())]
        # its only launcher of several processes; ACCELERATE_USE_CPU makes them CPU's
        line += ["--multi_gpu"] if ranks > 1 else []
        line += ["--log_dir", str(logs), "--tee", "3"] if logs else []
    else:
        line = ["deepspeed", "--num_gpus", str(ranks)]
        line += ["--master_addr", "127.0.0.1", "--master_port", str(machine.free_port())]
        line += ["--enable_each_rank_log", str(logs)] if logs else []
    return [*line, str(path), *args]


def launch_script(
    path: str | Path,
    *args: str,
    ranks: int = 2,
    using: str = "torchrun",
    timeout_s: float = 600,
    show: bool = True,
) -> Run:
    """Runs a script on ``ranks`` ranks by torchrun, accelerate or deepspeed, and waits. The command is printed first.

    ``run.logs[r]`` is what rank r printed; ``run[r]`` is what it gave to ``labkit.rank.current().give``, else None.
    Raises RankFailed with the guilty rank's traceback, Timeout, or KeyboardInterrupt after the stop button; no
    process is left. torchrun's own store listens on every interface while it runs: the one place where labkit leaves
    the loopback.
    """
    shown = shlex.join(command(path, *map(str, args), ranks=ranks, using=using))
    check_real(1e-3, 1e9, timeout_s=timeout_s)
    home, began = server.running(), time.monotonic()
    folder = home.new_folder()
    line = command(path, *map(str, args), ranks=ranks, using=using, logs=folder / "logs")
    if show:
        print("$", *(f"{name}={value}" for name, value in _needs(ranks, using).items()), end=" ")
        print(shown, flush=True)
    try:
        code = _follow(line, folder, ranks, {**home.environ, **_needs(ranks, using)}, timeout_s)
        run = _collect(folder, ranks, using, code, time.monotonic() - began)
    except BaseException:
        remove(folder)
        raise
    finally:
        if using == "deepspeed":
            ops.free_shared_memory(line[line.index("--master_port") + 1])
    weakref.finalize(run, remove, folder)
    return run


def _collect(folder: Path, ranks: int, using: str, code: int, seconds: float) -> Run:
    """What the script's ranks left. torch aborts now and then at exit, after success: a result counts for more."""
    logs = _rank_logs(folder, ranks)
    files = [folder / f"result-{rank}.pkl" for rank in range(ranks)]
    raised = any("Traceback (most recent call" in log for log in logs)  # an abort at exit prints none
    if code and (raised or not all(file.exists() for file in files)):
        raise _failure(folder, logs, using, code)
    backend = "nccl" if machine.num_gpus() >= ranks else "gloo"
    return Run(
        results=tuple(pickle.loads(file.read_bytes()) if file.exists() else None for file in files),
        logs=logs,
        seconds=seconds,
        backend=backend,
        notes=(backend, using),
        machine=machine.summary(),
        folder=folder,
    )


def _needs(ranks: int, using: str) -> dict[str, str]:
    """What a launcher's environment must say on a machine without enough GPUs."""
    names = {"accelerate": "ACCELERATE_USE_CPU", "deepspeed": "DS_ACCELERATOR"}
    values = {"accelerate": "true", "deepspeed": "cpu"}
    return {} if machine.num_gpus() >= ranks or using not in names else {names[using]: values[using]}


def _follow(line: list[str], folder: Path, ranks: int, needs: dict[str, str], timeout_s: float) -> int:
    """Runs the command to its end and returns its exit code; on a timeout or an interrupt ends everything it
    started."""
    found = Path(sys.executable).with_name(line[0])
    path = os.pathsep.join([str(found.parent), os.environ.get("PATH", "")])
    threads = str(machine.threads(ranks))
    loopback = {"GLOO_SOCKET_IFNAME": name} if (name := machine.loopback()) else {}
    environ = {
        **loopback,
        **needs,
        "OMP_NUM_THREADS": threads,
        **os.environ,
        "PATH": path,
        "LABKIT_RUN_DIR": str(folder),
    }
    environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])
    )
    leash = [sys.executable, "-c", _LEASH, sys.executable, str(found)] if sys.platform == "linux" else [str(found)]
    with open(folder / "launcher.txt", "wb") as output:
        process = subprocess.Popen(
            [*leash, *line[1:]],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            logs = _rank_logs(folder, ranks)
            said = "\n".join(f"rank {rank} last said: {tail(log, 2)}" for rank, log in enumerate(logs))
            raise verdict.Timeout(
                f"the script was given {timeout_s:g} s (timeout_s) and is not done.\n{said}", (), logs
            ) from None
        finally:
            _end(process)


def _end(process: subprocess.Popen) -> None:
    """Ends a launcher and everything below it: politely, and after three seconds by force."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        launcher = psutil.Process(process.pid)
        family = [*launcher.children(recursive=True), launcher]
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(family, timeout=3)
    for one in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=3)


def _rank_logs(folder: Path, ranks: int) -> tuple[str, ...]:
    """What each rank printed, from wherever its launcher put it."""
    logs = []
    for rank in range(ranks):
        files = sorted((folder / "logs").glob(f"*/attempt_*/{rank}/std*.log")) or sorted(
            (folder / "logs").glob(f"*rank{rank}.log")
        )
        logs.append("".join(file.read_text(errors="replace") for file in files))
    return tuple(logs)


def _failure(folder: Path, logs: tuple[str, ...], using: str, code: int) -> verdict.RankFailed:
    """The verdict on a script: the traceback of the rank that is to blame, else the launcher's own last words."""
    spoken = {rank: log[log.index("Traceback") :] for rank, log in enumerate(logs) if "Traceback" in log}
    own = {rank: text for rank, text in spoken.items() if not any(words in text for words in PEER_GONE)}
    for rank, text in own.items():
        return verdict.RankFailed(
            f"rank {rank} of the script failed ({using} ended with exit code {code}):\n{text}", (), logs
        )
    said = tail((folder / "launcher.txt").read_text(errors="replace"), 40)
    return verdict.RankFailed(f"{using} ended with exit code {code}. Its last words:\n{said}", (), logs)
