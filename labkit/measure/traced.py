"""Runs a script unchanged and records it: ``python -m labkit.measure.traced train.py``, on each
rank that torchrun or accelerate starts, or alone.

Kineto records from the first line until the optimizer has stepped often enough, or to the end; into
``trace-<rank>.json`` of LABKIT_RUN_DIR. Beside it ``script-<rank>.json`` says how many steps there
were and whether the script made a group. A script that starts a profiler of its own keeps it: ours
ends there. ``--steps=40`` before the script says how many steps are enough.
"""

import atexit
import contextlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from labkit.devices import on_pretend

STEPS = "LABKIT_RECORD_STEPS"
"""the setting that says how many optimizer steps are recorded"""
ASKED = "--steps="
"""how the command line says it, before the script"""
MOST_STEPS = 10
"""that are recorded whole"""


def facts_file(folder: str | Path, rank: int) -> Path:
    """Where a rank says what it saw."""
    return Path(folder) / f"script-{rank}.json"


def main() -> None:
    """Runs the script that the command line names."""
    most_steps = os.environ.get(STEPS, MOST_STEPS)
    given = sys.argv[1:]
    if given[0].startswith(ASKED):
        most_steps = given.pop(0).removeprefix(ASKED)
    script, *arguments = given
    ending = on_pretend.Ending()
    atexit.register(ending.leave)  # the first to be registered is the last to be called
    watch = _Watch(int(most_steps))
    watch.begin()
    try:
        ending.code = on_pretend.run(script, arguments)
    finally:
        watch.end()


class _Watch:
    """The recording of this process, and what it sees meanwhile."""

    def __init__(self, most_steps: int) -> None:
        self._most_steps = most_steps
        self._recording = contextlib.ExitStack()
        self._thread = threading.get_ident()
        self._on = False
        self._facts = {"steps": 0, "group": False, "own_profiler": False, "cut": False}

    def begin(self) -> None:
        """Starts recording."""
        import torch
        from torch import distributed as dist
        from torch.optim import optimizer

        from labkit.measure import trace

        self._recording.enter_context(trace.record(operators=True))
        self._on = True
        optimizer.register_optimizer_step_pre_hook(self._stepping)
        optimizer.register_optimizer_step_post_hook(self._stepped)
        if dist.is_available():
            self._around(dist, "init_process_group", self._grouped)
        self._around(torch.profiler.profile, "start", self._profiled)

    def end(self) -> None:
        """Writes the recording, once."""
        if self._on:
            self._on = False
            self._recording.close()
        from labkit.launching import rank

        here = rank.current()
        if here.folder is not None:
            facts_file(here.folder, here.rank).write_text(json.dumps(self._facts))

    def _stepping(self, *_: Any) -> None:
        """At the begin of an optimizer's step: ends the recording if there were enough. Torch has
        begun that step's span by then; it is cut off, and lasts as long as the recording takes to
        be written."""
        mine = threading.get_ident() == self._thread
        if self._on and mine and self._facts["steps"] >= self._most_steps:
            self._facts["cut"] = True
            self.end()

    def _stepped(self, *_: Any) -> None:
        self._facts["steps"] += 1

    def _grouped(self) -> None:
        self._facts["group"] = True

    def _profiled(self) -> None:
        self._facts["own_profiler"] = self._on
        self.end()

    def _around(self, owner: Any, name: str, seen: Any) -> None:
        """Makes a call tell of itself before it is made."""
        called = getattr(owner, name)

        def telling(*args: Any, **kwargs: Any) -> Any:
            seen()
            return called(*args, **kwargs)

        telling.__wrapped__ = called
        setattr(owner, name, telling)


if __name__ == "__main__":
    main()
