"""A training under torchrun whose rank is killed: how long until all is where it was, in parts."""

import inspect
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit.launching.script import launch_script
from labkit.units import check_whole

__all__ = ["restart_s"]

_TIMEOUT_S = 180
"""for three starts at most, each of which imports torch and labkit"""
_SCRIPT = """
import time
started = time.time()
import os, signal, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook as after_each_step
from labkit import model
from labkit.recovery import checkpoint

{functions}
imported = time.time()
dist.init_process_group()
moments = [started, imported, time.time()]
die_at = {die_at} if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else None
kill, load = os.kill, checkpoint.load

def told_kill(*args):
    print("killed", time.time(), flush=True)
    kill(*args)

def told_load(*args, **options):
    found = load(*args, **options)
    moments.append(time.time())
    after_each_step(lambda *_: ends.append(time.time()))
    print("step", found["step"])
    return found

ends = []
os.kill, checkpoint.load = told_kill, told_load
{name}(sys.argv[1], die_at)
print("ends", *ends)
print("again", *moments, flush=True)
dist.destroy_process_group()
"""


def restart_s(
    train: Callable, folder: str | Path, die_at: int, *, needs: Sequence[Callable] = ()
) -> list[float]:
    """Runs ``train(folder, die_at)`` as a script of torchrun on two ranks; seconds from a rank's
    death until the new start has done step ``die_at`` - 1 again.

    Five parts: until the new Python runs; imports; init_process_group; until the checkpoint is
    loaded; the steps done again. ``train`` loads by ``checkpoint.load``, kills rank 1 by os.kill
    after ``die_at`` steps, and has one optimizer step for each step; in the second start its
    ``die_at`` is None. ``needs``: functions that it calls. They may use torch, dist, nn, os,
    signal, time, labkit's model and checkpoint. Raises ValueError for no step from 1 on, or a run
    whose rank 1 was not killed, or loaded nothing.
    """
    check_whole(1, die_at=die_at)
    functions = "\n\n".join(inspect.getsource(each) for each in (*needs, train))
    script = Path(folder).with_suffix(".py")
    script.write_text(_SCRIPT.format(functions=functions, die_at=die_at, name=train.__name__))
    run = launch_script(script, str(folder), ranks=2, max_restarts=2, timeout_s=_TIMEOUT_S)
    return _parts_s(run.logs[1], die_at)


def _parts_s(log: str, die_at: int) -> list[float]:
    """The five parts, of the log of the rank that died."""
    told = {}
    for line in log.splitlines():
        word, *numbers = line.split() or [""]
        if word in ("killed", "step", "ends", "again"):
            told.setdefault(word, [float(number) for number in numbers])
    if not told.get("killed") or len(told.get("again", ())) != 4:
        raise ValueError(
            "two starts are compared: the first ends by os.kill on rank 1, the second begins with "
            f"checkpoint.load; its log says {log[-200:]!r}"
        )
    num_again = die_at - int(told["step"][0])
    moments = [*told["killed"], *told["again"], told["ends"][num_again - 1]]
    return [end - begin for begin, end in itertools.pairwise(moments)]
