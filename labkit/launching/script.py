"""Launch a script by the command its users type: torchrun, accelerate launch, deepspeed. The
command is real, and shown."""

import contextlib
import json
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

from labkit.launching import verdict, zygote_client
from labkit.launching.outcome import PEER_GONE
from labkit.launching.run import Run, remove, tail
from labkit.machine import ops, resources
from labkit.units import check_real, check_whole, check_word

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
# SIGTERM when we die
_LEASH = "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,15); os.execv(sys.argv[1],sys.argv[1:])"


def command(
    path: str | Path,
    *args: str,
    ranks: int,
    using: str,
    logs: Path | None = None,
    max_restarts: int = 0,
    nodes: tuple[int, int] = (1, 1),
    node: int = 0,
    port: int = 29400,
    config: str | Path | None = None,
) -> list[str]:
    """The command line that starts ``path`` on ``ranks`` ranks. With ``logs``, each rank's output
    goes to files there.

    Of several nodes, the line for ``node``; they meet at ``port``, where node 0 listens. Raises
    ValueError for an unknown launcher, a script that does not exist, restarts and nodes that are
    none, or a ``config`` that its launcher has no use for.
    """
    check_word(using, LAUNCHERS, "what a script is launched using")
    check_whole(1, 4096, ranks=ranks)
    if not Path(path).is_file():
        raise ValueError(
            f"launch_script takes the path of a script; {str(path)!r} is no file (folder: "
            f"{os.getcwd()})"
        )
    if using != "torchrun" and (nodes != (1, 1) or max_restarts):
        raise ValueError(
            f"torchrun alone restarts ranks; got using={using!r}. Leave nodes and max_restarts out"
        )
    if config is not None and using != "accelerate":
        raise ValueError(
            f"a configuration file is accelerate's; {using} takes none: give the script its path "
            "instead"
        )
    if using == "torchrun":
        line = _torchrun(ranks, max_restarts, nodes, node, port)
        line += ["--log-dir", str(logs / f"node-{node}"), "--redirects", "3"] if logs else []
    elif using == "accelerate":
        line = [
            "accelerate",
            "launch",
            *(["--config_file", str(config)] if config is not None else []),
        ]
        line += ["--num_processes", str(ranks), "--main_process_port", str(resources.free_port())]
        if config is None:
            line += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
            # its only launcher of several processes; ACCELERATE_USE_CPU makes them CPU's
            line += ["--multi_gpu"] if ranks > 1 else []
        line += ["--log_dir", str(logs), "--tee", "3"] if logs else []
    else:
        line = ["deepspeed", "--num_gpus", str(ranks)]
        line += ["--master_addr", "127.0.0.1", "--master_port", str(resources.free_port())]
        line += ["--enable_each_rank_log", str(logs)] if logs else []
    return [*line, str(path), *args]


def _num_nodes(nodes: tuple[int, int]) -> int:
    """The most nodes there may be. Raises ValueError for what is no (fewest, most)."""
    if not isinstance(nodes, tuple) or len(nodes) != 2:
        raise ValueError(f"nodes are (fewest, most); got {nodes!r}")
    check_whole(1, 64, most_nodes=nodes[1])
    check_whole(1, nodes[1], fewest_nodes=nodes[0])
    return nodes[1]


def _torchrun(
    ranks: int, max_restarts: int, nodes: tuple[int, int], node: int, port: int
) -> list[str]:
    check_whole(0, 1000, max_restarts=max_restarts)
    most = _num_nodes(nodes)
    if ranks % most:
        raise ValueError(
            f"every node has as many ranks; {ranks} ranks are not shared by {most} nodes: take a "
            "multiple"
        )
    conf = f"is_host={int(node == 0)},keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"
    meet = [
        "--nnodes",
        f"{nodes[0]}:{most}",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{port}",
    ]
    meet += ["--rdzv-conf", conf, "--local-addr", "127.0.0.1"]
    line = [
        "torchrun",
        *(meet if most > 1 else ["--standalone"]),
        "--nproc-per-node",
        str(ranks // most),
    ]
    return line + (["--max-restarts", str(max_restarts)] if max_restarts else [])


def launch_script(
    path: str | Path,
    *args: str,
    ranks: int = 2,
    using: str = "torchrun",
    timeout_s: float = 600,
    show: bool = True,
    max_restarts: int = 0,
    nodes: tuple[int, int] = (1, 1),
    config: str | Path | dict | None = None,
) -> Run:
    """Runs a script on ``ranks`` ranks by torchrun, accelerate or deepspeed, and waits. The command
    is printed first.

    ``run.logs[r]`` is what rank r printed; ``run[r]`` is what it gave to
    ``labkit.launching.rank.current().give``, else None. Raises RankFailed with the guilty rank's
    traceback, Timeout, or KeyboardInterrupt after the stop button; no process is left. torchrun's
    own store listens on every interface while it runs: the one place where labkit leaves the
    loopback.

    torchrun starts all ranks anew when one dies, ``max_restarts`` times. With ``nodes=(1, 2)`` two
    torchruns stand for two machines; when one is killed with its ranks, the other goes on, and the
    ranks that are no more give None. ``config`` is accelerate's configuration file, or a dict that
    becomes one beside the script; ``ranks`` counts for more than its num_processes.
    """
    check_real(1e-3, 1e9, timeout_s=timeout_s)
    how = {
        "ranks": ranks,
        "using": using,
        "max_restarts": max_restarts,
        "nodes": nodes,
        "port": resources.free_port(),
        "config": _written(config, Path(path)),
    }
    needs, args = _needs(ranks, using, max_restarts > 0), tuple(map(str, args))
    shown = [
        shlex.join(command(path, *args, node=node, **how)) for node in range(_num_nodes(nodes))
    ]
    home, began = zygote_client.running(), time.monotonic()
    folder = home.new_folder()
    lines = [
        command(path, *args, logs=folder / "logs", node=node, **how) for node in range(len(shown))
    ]
    if show:
        print(
            *(" ".join(["$", *map("=".join, needs.items()), line]) for line in shown),
            sep=" &\n",
            flush=True,
        )
    try:
        code = _follow(lines, folder, ranks, {**home.environ, **needs}, timeout_s)
        run = _collect(folder, ranks, using, code, time.monotonic() - began)
    except BaseException:
        remove(folder)
        raise
    finally:
        if using == "deepspeed":
            ops.free_shared_memory(lines[0][lines[0].index("--master_port") + 1])
    weakref.finalize(run, remove, folder)
    return run


def _written(config: str | Path | dict | None, path: Path) -> str | Path | None:
    """The file of a configuration. A dict is written beside the script; JSON is YAML, too."""
    if not isinstance(config, dict) or not path.is_file():
        return None if isinstance(config, dict) else config
    path.with_suffix(".json").write_text(json.dumps(config, indent=1))
    return path.with_suffix(".json")


def _collect(folder: Path, ranks: int, using: str, code: int, seconds: float) -> Run:
    """What the script's ranks left. torch aborts now and then at exit, after success: a result
    counts for more."""
    logs = _rank_logs(folder, ranks)
    files = [folder / f"result-{rank}.pkl" for rank in range(ranks)]
    raised = any(
        "Traceback (most recent call" in log for log in logs
    )  # an abort at exit prints none
    if code and (raised or not all(file.exists() for file in files)):
        raise _failure(folder, logs, using, code)
    backend = "nccl" if resources.num_gpus() >= ranks else "gloo"
    return Run(
        results=tuple(pickle.loads(file.read_bytes()) if file.exists() else None for file in files),
        logs=logs,
        seconds=seconds,
        backend=backend,
        notes=(backend, using),
        machine=resources.summary(),
        folder=folder,
    )


def _needs(ranks: int, using: str, restarts: bool) -> dict[str, str]:
    """What a launcher's environment must say: on a machine without enough GPUs, and where ranks may
    be restarted.

    torchrun (2.13) keeps one store for all its starts, and gloo then finds a dead rank's address in
    it: about every second restart hung. With sharing switched off each start has a store of its own
    (pytorch issue 135712).
    """
    if restarts:
        return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    names = {"accelerate": "ACCELERATE_USE_CPU", "deepspeed": "DS_ACCELERATOR"}
    values = {"accelerate": "true", "deepspeed": "cpu"}
    return (
        {} if resources.num_gpus() >= ranks or using not in names else {names[using]: values[using]}
    )


def _follow(
    lines: list[list[str]], folder: Path, ranks: int, needs: dict[str, str], timeout_s: float
) -> int:
    """Runs the commands to their end and returns the best exit code; on a timeout or an interrupt
    ends everything that they started."""
    found = Path(sys.executable).with_name(lines[0][0])
    path = os.pathsep.join([str(found.parent), os.environ.get("PATH", "")])
    threads = str(resources.threads(ranks))
    loopback = {"GLOO_SOCKET_IFNAME": name} if (name := resources.loopback()) else {}
    environ = {
        **loopback,
        **needs,
        "OMP_NUM_THREADS": threads,
        **os.environ,
        "PATH": path,
        "LABKIT_RUN_DIR": str(folder),
    }
    environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
    )
    leash = (
        [sys.executable, "-c", _LEASH, sys.executable, str(found)]
        if sys.platform == "linux"
        else [str(found)]
    )
    launchers: list[psutil.Popen] = []
    with open(folder / "launcher.txt", "wb") as output:
        pipes = {"stdout": output, "stderr": output, "stdin": subprocess.DEVNULL}
        try:
            for line in lines:
                launchers.append(
                    psutil.Popen([*leash, *line[1:]], **pipes, env=environ, start_new_session=True)
                )
            if psutil.wait_procs(launchers, timeout=timeout_s)[1]:
                logs = _rank_logs(folder, ranks)
                said = "\n".join(
                    f"rank {rank} last said: {tail(log, 2)}" for rank, log in enumerate(logs)
                )
                raise verdict.Timeout(
                    f"the script was given {timeout_s:g} s (timeout_s) and is not done.\n{said}",
                    (),
                    logs,
                )
            return min((each.returncode for each in launchers), key=abs)
        finally:
            _end(launchers, folder)


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


def _rank_logs(folder: Path, ranks: int) -> tuple[str, ...]:
    """What each rank printed, all its starts one after the other, from wherever its launcher put
    it."""
    num_nodes, logs = max(1, len(list((folder / "logs").glob("node-*")))), []
    for rank in range(ranks):
        node, local = divmod(rank, max(1, ranks // num_nodes))
        files = sorted((folder / "logs").glob(f"node-{node}/*/attempt_*/{local}/std*.log"))
        files = files or sorted((folder / "logs").glob(f"*/attempt_*/{rank}/std*.log"))
        files = files or sorted((folder / "logs").glob(f"*rank{rank}.log"))
        logs.append("".join(file.read_text(errors="replace") for file in files))
    return tuple(logs)


def _failure(folder: Path, logs: tuple[str, ...], using: str, code: int) -> verdict.RankFailed:
    """The verdict on a script: the traceback of the rank that is to blame, else the launcher's own
    last words."""
    spoken = {
        rank: log[log.index("Traceback") :] for rank, log in enumerate(logs) if "Traceback" in log
    }
    own = {
        rank: text for rank, text in spoken.items() if not any(words in text for words in PEER_GONE)
    }
    for rank, text in own.items():
        return verdict.RankFailed(
            f"rank {rank} of the script failed ({using} ended with exit code {code}):\n{text}",
            (),
            logs,
        )
    said = tail((folder / "launcher.txt").read_text(errors="replace"), 40)
    return verdict.RankFailed(
        f"{using} ended with exit code {code}. Its last words:\n{said}", (), logs
    )
