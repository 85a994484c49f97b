"""Start real ranks: ``launch`` waits for the result, ``start`` gives a Job in the background.

Ranks are forked from a zygote that has imported torch already (``labkit.launching.zygote_client``),
so a launch takes tens of milliseconds.
"""

import os
import sys
from collections.abc import Callable

from labkit.launching import pickling, zygote_client
from labkit.launching.job import Job, listeners
from labkit.launching.run import Run
from labkit.launching.verdict import Refused
from labkit.machine import resources
from labkit.units import check_real, check_whole

__all__ = ["Job", "launch", "listeners", "start", "warm"]

RANK_BYTES = 120e6  # private memory of one idle rank (measured: 60-100 MB with torch imported)


def start(
    fn: Callable,
    *args: object,
    ranks: int = 2,
    backend: str | None = None,
    seed: int = 0,
    timeout_s: float = 600,
    hang_s: float = 60,
    **kwargs: object,
) -> Job:
    """Starts ``fn(*args, **kwargs)`` on ``ranks`` real processes and returns at once.

    ``backend`` is "nccl" or "gloo" (default: nccl when there is a GPU for each rank, else gloo on
    the CPU). Under nccl a rank's tensors are made on its GPU where nothing else is said
    (torch.set_default_device). Rank r's random numbers start from ``seed + r``. A run without a
    sign of life (a collective, a line of output, ``rank.current().progress``) for ``hang_s``
    seconds, or longer than ``timeout_s``, is ended. Raises Refused before anything starts when the
    machine can't do it.
    """
    check_whole(0, 2**63 - 1, seed=seed)
    check_real(1e-3, 1e9, timeout_s=timeout_s, hang_s=hang_s)
    body = pickling.pack(fn, args, kwargs)
    backend = _checked(ranks, backend, len(body))
    home = zygote_client.running()
    folder = home.new_folder()
    (folder / "payload.pkl").write_bytes(body)
    request = {
        "ranks": ranks,
        "backend": backend,
        "seed": int(seed),
        "folder": str(folder),
        "payload": str(folder / "payload.pkl"),
        "threads": resources.threads(ranks),
        "cwd": os.getcwd(),
        "sys_path": [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)],
        "environ": _environ(ranks, home.environ),
        "sources": pickling.cell_sources(),
    }
    return Job(request, home, timeout_s=timeout_s, hang_s=hang_s)


def launch(fn: Callable, *args: object, ranks: int = 2, **options: object) -> Run:
    """Runs ``fn(*args)`` on ``ranks`` real processes and waits. Takes what ``start`` takes; returns
    a Run, ``run[r]`` per rank.

    Raises RankFailed, Deadlock, Timeout, or Stopped (a KeyboardInterrupt) after the stop button; no
    rank outlives it.
    """
    return start(fn, *args, ranks=ranks, **options).wait()


def warm() -> None:
    """Starts the process that forks ranks, in the background: the first launch then need not wait
    for ``import torch``."""
    zygote_client.running()


def _checked(ranks: int, backend: str | None, payload_bytes: int) -> str:
    """The backend to use. Raises Refused for what this machine can't do."""
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= 10**6:
        raise Refused(f"ranks is a whole number, 1 or more; got {ranks!r}")
    each, most, there = (
        RANK_BYTES + payload_bytes,
        max(16, 8 * resources.cores()),
        resources.available_bytes(),
    )
    if ranks > most or ranks * each > there:
        raise Refused(
            f"{ranks} ranks need about {ranks * each / 1e9:.1f} GB and, to be of use, "
            f"{-(-ranks // 8)} cores; this "
            f"machine has {there / 1e9:.1f} GB free and {resources.cores()} cores. "
            f"Ask for at most {max(1, min(most, int(there // each)))} ranks."
        )
    gpus = resources.num_gpus()
    if backend == "nccl" and gpus < ranks:
        raise Refused(
            f"nccl needs a GPU for each rank; asked for {ranks} ranks, this machine has {gpus} "
            "GPUs. Leave backend "
            "out: labkit then uses gloo on the CPU."
        )
    if backend not in (None, "nccl", "gloo"):
        raise Refused(f'backend is "nccl", "gloo" or None; got {backend!r}')
    return backend or ("nccl" if gpus >= ranks else "gloo")


def _environ(ranks: int, rooms: dict[str, str]) -> dict[str, str]:
    """The notebook's environment as it is now, with what torch programs expect. Its port is only a
    name."""
    ours = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(resources.free_port()),
        "OMP_NUM_THREADS": str(resources.threads(ranks)),
    }
    loopback = {"GLOO_SOCKET_IFNAME": name} if (name := resources.loopback()) else {}
    return {
        **loopback,
        **rooms,
        **os.environ,
        **ours,
        "PATH": rooms.get("PATH", os.environ.get("PATH", os.defpath)),
    }
