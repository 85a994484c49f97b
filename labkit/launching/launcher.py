"""Start real ranks: ``launch`` waits for the result, ``start`` gives a Job in the background.

Ranks are forked from a zygote that has imported torch already
(``labkit.launching.fork.zygote_client``), so a launch takes tens of milliseconds.
"""

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable

from labkit.devices import library, place, rung
from labkit.devices.rung import Pretend, Rung
from labkit.launching import engines, gate, settings
from labkit.launching.fork import pickling, zygote_client
from labkit.launching.fork.imports import WRAPPING
from labkit.launching.fork.request import surroundings
from labkit.launching.job import Job
from labkit.launching.nodes import spread
from labkit.launching.nodes.places import Hosts, Slurm
from labkit.launching.run import Run
from labkit.launching.verdicts.verdict import Refused
from labkit.machine import ops, resources
from labkit.words import say

__all__ = ["launch", "start", "warm"]

_OPTIONS = {
    "ranks": "how many processes there are",
    "devices": "what the ranks compute on",
    "backend": "what they communicate with",
    "seed": "where the random numbers of rank 0 start",
    "timeout_s": "how long the run may take",
    "hang_s": "how long it may be silent",
    "on": "which machines the ranks are on",
    "record": "whether the ranks record what they do",
}
"""What launch is told, and what it means."""


_OFTEN_THEIRS = ("seed", "backend", "devices")
"""Options that a function which takes any keyword is as likely to be meant to get."""


def _keeps_apart(launching: Callable) -> Callable:
    """Refuses an option that the launched function could have been meant to get, and a call that
    the function can't take."""

    @functools.wraps(launching)
    def checked(fn: Callable, /, *args: object, **keywords: object) -> object:
        called = _name_of(fn)
        for name in [name for name in _OPTIONS if name in keywords]:
            if name in _open_parameters(fn, args):
                raise Refused(
                    f"{called} has a parameter {name!r}, and so has launch, where it says "
                    f"{_OPTIONS[name]}. Which is meant? Give {called} its own by position or "
                    f"with functools.partial({called}, {name}=...); {name}= is then launch's."
                )
            if name in _OFTEN_THEIRS and _takes_any(fn, name):
                raise Refused(
                    f"{called} takes any keyword, and {name}= is launch's, where it says "
                    f"{_OPTIONS[name]}. Which is meant? For {called} write "
                    f"functools.partial({called}, {name}=...), for launch "
                    f"launch(lambda: {called}(...), {name}=...)."
                )
        own = {name: value for name, value in keywords.items() if name not in _OPTIONS}
        if why := _misfit(fn, args, own):
            raise Refused(
                f"{called} can't be called with what is left for it: {why}. launch itself takes "
                f"{', '.join(_OPTIONS)}; everything else goes to {called}."
            )
        return launching(fn, *args, **keywords)

    return checked


def _name_of(fn: Callable) -> str:
    return getattr(getattr(fn, "func", fn), "__name__", "the function")


@_keeps_apart
def start(
    fn: Callable,
    /,
    *args: object,
    ranks: int | None = None,
    devices: str | Pretend | None = None,
    backend: str | None = None,
    seed: int | None = None,
    timeout_s: float | None = None,
    hang_s: float | None = None,
    on: Slurm | Hosts | None = None,
    record: bool = False,
    **kwargs: object,
) -> Job:
    """Starts ``fn(*args, **kwargs)`` on ``ranks`` real processes and returns at once.

    ``devices`` is what the ranks compute on: "cuda" (a GPU each), "shared" (the GPUs there are),
    "pretend" or ``lab.pretend(memory_mib=...)``, "cpu"; without it what LABKIT_DEVICE says, else a
    GPU each, else the CPU. It is torch's default device there. ``backend`` ("nccl", "gloo") is for
    where that is the subject. Rank r's random numbers start from ``seed + r``. A run without a sign
    of life (a collective, a line of output, ``rank.current().progress``) for ``hang_s`` seconds, or
    longer than ``timeout_s``, is ended. ``on`` (``lab.Slurm``, ``lab.Hosts``) has the ranks on
    other machines, as many on each. ``record=True`` records all that ``fn`` does. What is left out
    is as ``lab.begin`` has set it, or 2 ranks, seed 0, 600 s, 60 s. Raises Refused at once where
    the machine can't do it, ``fn`` can't be called so, or one of these could be meant for it.
    """
    told = settings.filled(seed=seed, timeout_s=timeout_s, hang_s=hang_s)
    ranks = told.ranks if ranks is None else ranks
    call = pickling.pack_call(_recorded(fn) if record else fn, args, kwargs)
    if on is not None:
        return spread.start(call, on, ranks, told, devices=devices, backend=backend)
    _check_room(ranks, len(call))
    chosen, deepspeed = _chosen_rung(fn, (*args, *kwargs.values()), ranks, devices, backend)
    client = _zygote_for(fn)
    request = surroundings(
        num_ranks=ranks,
        rung=chosen,
        seed=int(told.seed),
        folder=client.new_folder(),
        num_threads=resources.threads(ranks),
        environ=_environ(ranks, chosen),
        deepspeed=deepspeed or engines.imports_deepspeed(fn),
    )
    request.call_file.write_bytes(call)
    return Job(request, client, timeout_s=told.timeout_s, hang_s=told.hang_s, turn=gate.turn(ranks))


def _zygote_for(fn: Callable) -> zygote_client.ZygoteClient:
    """What forks the ranks, told what they will import, as far as the function names it."""
    client = zygote_client.running()
    if engines.names_a_wrapper(fn):
        zygote_client.expect(*WRAPPING)
    return client


def _recorded(fn: Callable) -> Callable:
    """The function, recorded. Measure stands right of launching: only when asked for."""
    from labkit.measure import trace

    return functools.partial(trace.recorded, fn)


@_keeps_apart
def launch(fn: Callable, /, *args: object, ranks: int | None = None, **options: object) -> Run:
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


def _takes_any(fn: Callable, name: str) -> bool:
    """Whether a function takes keywords of any name, and this one neither has a parameter of its
    own nor was given by a partial."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False
    given = fn.keywords if isinstance(fn, functools.partial) else {}
    kinds = {each.kind for each in parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds and name not in {*parameters, *given}


def _misfit(fn: Callable, args: tuple, keywords: dict) -> str:
    """Why a function can't be called with these arguments, "" where it can, or does not tell."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        return str(error)
    return ""


def _check_room(ranks: int, call_bytes: int) -> None:
    """Raises Refused for more ranks than this machine can hold."""
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= 10**6:
        raise Refused(f"ranks is a whole number, 1 or more; got {ranks!r}")
    rank_bytes = gate.RANK_BYTES + call_bytes
    # at a gate, others' runs are waited for
    at_gate = gate.chosen_folder() is not None
    free_bytes = resources.total_bytes() if at_gate else resources.available_bytes()
    most = max(16, 8 * resources.cores())
    if ranks > most or ranks * rank_bytes > free_bytes:
        fitting = max(1, min(most, int(free_bytes // rank_bytes)))
        raise Refused(
            f"{ranks} ranks need about {ranks * rank_bytes / 1e9:.1f} GB and, to be of use, "
            f"{-(-ranks // 8)} cores; this machine has {free_bytes / 1e9:.1f} GB free and "
            f"{resources.cores()} cores. Ask for at most {fitting} ranks."
        )


def _chosen_rung(
    fn: Callable, given: tuple, ranks: int, devices: str | Pretend | None, backend: str | None
) -> tuple[Rung, bool]:
    """What the ranks stand on, and whether they may train with DeepSpeed. Raises Refused for what
    this machine does not have."""
    if devices == rung.DEEPSPEED and not importlib.util.find_spec("deepspeed"):
        raise Refused(say("DeepSpeed is not installed here: make env installs it"))
    deepspeed = engines.names_deepspeed(fn) or engines.given_deepspeed(given)
    is_open = devices is None and backend is None
    is_told = devices == rung.DEEPSPEED
    if is_open and engines.names_trainer(fn):
        devices = rung.TRAINER
    elif is_open and deepspeed:
        devices = rung.DEEPSPEED
    deepspeed = deepspeed or devices == rung.DEEPSPEED
    try:
        chosen = place.choose(ranks, devices=devices, backend=backend)
    except ValueError as error:
        raise Refused(str(error)) from None
    if is_told and not chosen.has_gpu and (reason := ops.hopeless()):
        raise Refused(f"DeepSpeed's ops are not built here, and it would stop at them: {reason}")
    for name in rung.LIBRARIES[chosen.name]:
        if reason := library.why_not(name):
            raise Refused(f"devices={chosen.name!r} can't be had: {reason}")
    return chosen, deepspeed


def _environ(ranks: int, chosen: Rung) -> dict[str, str]:
    """The notebook's environment as it is now, with what torch programs expect. Its port is only a
    name. Off the GPUs none is to be seen, and DeepSpeed finds its ops for a CPU."""
    found = {} if chosen.has_gpu else ops.environment()
    hidden = {} if chosen.has_gpu else {"CUDA_VISIBLE_DEVICES": ""}
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
        **hidden,
        gate.VARIABLE: "",  # what a rank launches is part of its run
    }
