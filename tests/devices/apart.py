"""Laws about pretend devices, each in a process of its own: who has such devices has them for good,
and pytest's process shall not.

A forkserver has imported torch; it forks a child for each law, which installs the devices.
"""

import functools
import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

import pytest

from labkit.devices import library
from labkit.devices.rung import Pretend

LIMIT_S = 100
UNLIMITED = Pretend()
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["labkit.devices.pretend", "labkit.model"])


def apart(law: Callable, *arguments: object, settings: Pretend | None = UNLIMITED, **install: int):
    """What a law returns, called in a process that has pretend devices, or none if ``settings`` is
    None; its failure is ours."""
    build()
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    child = _CONTEXT.Process(target=_run, args=(theirs, law, arguments, settings, install))
    child.start()
    theirs.close()
    try:
        failure, result = ours.recv() if ours.poll(LIMIT_S) else ("it does not end", None)
    except EOFError:
        child.join(LIMIT_S)
        failure = f"the process ended with code {child.exitcode}"
        result = None
    child.kill()
    child.join()
    assert not failure, failure
    return result


@functools.cache
def build() -> None:
    """The library is there, or built now, or can't be had here."""
    if "pretend" in library.missing():
        if reason := library.obstacle():
            pytest.skip(reason)
        assert library.build("pretend") == ""


def _run(answer: Connection, law: Callable, arguments: tuple, settings: Pretend, install: dict):
    import torch

    from labkit.devices import pretend

    torch.set_num_threads(1)
    try:
        if settings is not None:
            pretend.install(settings, **install)
        answer.send(("", law(*arguments)))
    except BaseException:
        answer.send((traceback.format_exc(), None))
