"""Start real ranks: ``launch`` waits for the result, ``start`` gives a Job in the background.

Ranks are forked from a zygote that has imported torch already
(``labkit.launching.fork.zygote_client``), so a launch takes tens of milliseconds.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable

from labkit import words
from labkit.launching.fork import pickling, zygote_client
from labkit.launching.fork.request import Request, cell_sources
from labkit.launching.job import Job
from labkit.launching.run import Run
from labkit.launching.verdicts.verdict import Refused
from labkit.machine import resources
from labkit.units import check_real, check_whole

__all__ = ["launch", "start", "warm"]

RANK_BYTES = 120e6  # private memory of one idle rank (measured: 60-100 MB with torch imported)
_OPTIONS = {
    "ranks": "how many processes there are",
    "backend": "what they communicate with",
    "seed": "where the random numbers of rank 0 start",
    "timeout_s": "how long the run may take",
    "hang_s": "how long it may be silent",
}
"""What launch is told, and what it means."""


def _keeps_apart(launching: Callable) -> Callable:
    """Refuses an option that the launched function could have been meant to get."""

    @functools.wraps(launching)
    def checked(fn: Callable, /, *args: object, **keywords: object) -> object:
        for name in _OPTIONS:
            if name in keywords and name in _open_parameters(fn, args):
                called = getattr(fn, "__name__", "the function")
                raise Refused(
                    f"{called} has a parameter {name!r}, and so has launch, where it says "
                    f"{_OPTIONS[name]}. Which is meant? Give {called} its own by position or "
                    f"with functools.partial({called}, {name}=...); {name}= is then launch's."
                )
        return launching(fn, *args, **keywords)

    return checked


@_keeps_apart
def start(
    fn: Callable,
    /,
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
    machine can't do it, or when one of these names is also a parameter of ``fn`` that no position
    fills: give that one by position or with functools.partial.
    """
    check_whole(0, 2**63 - 1, seed=seed)
    check_real(1e-3, 1e9, timeout_s=timeout_s, hang_s=hang_s)
    call = pickling.pack_call(fn, args, kwargs)
    _check_room(ranks, len(call))
    backend = _chosen_backend(backend, ranks)
    client = zygote_client.running()
    request = Request(
        num_ranks=ranks,
        backend=backend,
        seed=int(seed),
        folder=client.new_folder(),
        num_threads=resources.threads(ranks),
        cwd=os.getcwd(),
        sys_path=tuple(entry or os.getcwd() for entry in sys.path if isinstance(entry, str)),
        environ=_environ(ranks, client.environ),
        sources=cell_sources(),
        language=words.language(),
    )
    request.call_file.write_bytes(call)
    return Job(request, client, timeout_s=timeout_s, hang_s=hang_s)


@_keeps_apart
def launch(fn: Callable, /, *args: object, ranks: int = 2, **options: object) -> Run:
    """Runs ``fn(*args)`` on ``ranks`` real processes and waits. Takes what ``start`` takes; returns
    a Run, ``run[r]`` per rank.

    Raises RankFailed, Deadlock, Timeout, or Stopped (a KeyboardInterrupt) after the stop button; no
    rank outlives it.
    """
    return start.__wrapped__(fn, *args, ranks=ranks, **options).wait()


def warm() -> None:
    """Starts the process that forks ranks, in the background: the first launch then need not wait
    for ``import torch``."""
    zygote_client.running()


def _open_parameters(fn: Callable, args: tuple) -> set[str]:
    """Parameters of a function that a keyword could still fill: neither a position nor a partial
    has given them."""
    try:
        signature = inspect.signature(fn)
        given = set(signature.bind_partial(*args).arguments)
    except (TypeError, ValueError):  # it does not tell, or it will be refused for another reason
        return set()
    if isinstance(fn, functools.partial):
        given |= set(fn.keywords)
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {name for name, each in signature.parameters.items() if each.kind in by_keyword}
    return named - given


def _check_room(ranks: int, call_bytes: int) -> None:
    """Raises Refused for more ranks than this machine can hold."""
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= 10**6:
        raise Refused(f"ranks is a whole number, 1 or more; got {ranks!r}")
    rank_bytes = RANK_BYTES + call_bytes
    free_bytes = resources.available_bytes()
    most = max(16, 8 * resources.cores())
    if ranks > most or ranks * rank_bytes > free_bytes:
        fitting = max(1, min(most, int(free_bytes // rank_bytes)))
        raise Refused(
            f"{ranks} ranks need about {ranks * rank_bytes / 1e9:.1f} GB and, to be of use, "
            f"{-(-ranks // 8)} cores; this machine has {free_bytes / 1e9:.1f} GB free and "
            f"{resources.cores()} cores. Ask for at most {fitting} ranks."
        )


def _chosen_backend(backend: str | None, ranks: int) -> str:
    """The backend to use. Raises Refused for what this machine does not have."""
    gpus = resources.num_gpus()
    if backend == "nccl" and gpus < ranks:
        raise Refused(
            f"nccl needs a GPU for each rank; asked for {ranks} ranks, this machine has {gpus} "
            "GPUs. Leave backend out: labkit then uses gloo on the CPU."
        )
    if backend not in (None, "nccl", "gloo"):
        raise Refused(f'backend is "nccl", "gloo" or None; got {backend!r}')
    return backend or ("nccl" if gpus >= ranks else "gloo")


def _environ(ranks: int, found: dict[str, str]) -> dict[str, str]:
    """The notebook's environment as it is now, with what torch programs expect. Its port is only a
    name. ``found``: where DeepSpeed's ops are found."""
    return {
        **resources.gloo_environment(),
        **found,
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(resources.free_port()),
        "OMP_NUM_THREADS": str(resources.threads(ranks)),
        "PATH": found.get("PATH", os.environ.get("PATH", os.defpath)),
    }
