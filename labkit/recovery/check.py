"""The exercises of chapter 13: a save that cannot do harm, from how many GPUs on to copy instead
of write, and training that outlives its ranks."""

import argparse
import os
import signal
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from labkit.check import exercise, faults, hint, on_ranks, over_budget, status, wrong
from labkit.launching.run import Run
from labkit.launching.verdicts.verdict import LaunchError
from labkit.recovery import how_often
from labkit.recovery.disturbed_check import Enough, Training, ambush, compared
from labkit.words import say

__all__ = ["Training", "elastic", "hint", "num_gpus", "safe_save", "status"]

KEYS = ("model", "optimizer", "scheduler", "step", "args", "rng")


@exercise
def safe_save(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(file, net, optimizer, scheduler, step, args)``, called by every rank, leaves one
    file of six keys.

    ``net`` is wrapped in DDP, ``args`` an argparse.Namespace. torch.load(weights_only=True) reads
    model (names of the bare one), optimizer, scheduler, step, args (a dict) and rng
    (torch.get_rng_state() of every rank). Whenever a rank is killed, the file is the old one or the
    new one.
    """
    for num_ranks, kill in ((2, ""), (3, ""), (2, "write"), (2, "rename")):
        case = say("{num_ranks} ranks", num_ranks=num_ranks)
        if kill:
            case = say(
                "{num_ranks} ranks, rank 0 killed in the midst of its second {kill}",
                num_ranks=num_ranks,
                kill=kill,
            )
        with tempfile.TemporaryDirectory() as folder:
            try:
                yield from faults(case, on_ranks(num_ranks, _saved, answer, Path(folder), kill))
            except LaunchError as error:
                if not kill or all(ending.status != -signal.SIGKILL for ending in error.outcomes):
                    raise
                fault = on_ranks(1, _readable, Path(folder, "last.pt"))[0]
                if fault:
                    yield wrong("{case}: {fault}", case=case, fault=fault)


@exercise
def num_gpus(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(write_s, copy_s)``: the fewest GPUs, as reliable as Llama 3's, on which a save that
    stops training for ``copy_s`` loses 1 % of all time less than one of ``write_s``.

    Each at its best interval (``how_often``), no time to come back. May be 3 % off, or one GPU.
    """
    for write_s, copy_s in ((60, 1), (5, 1), (2.4, 0.2), (600, 30)):
        given = float(answer(write_s, copy_s))
        case = say(
            "{copy_s:g} s instead of {write_s:g} s for a save", copy_s=copy_s, write_s=write_s
        )
        if not 1 <= given <= 1_000_000:
            yield wrong("{case}: {given:g} is no number of GPUs here", case=case, given=given)
            return
        fewest = 1 + bisect_left(range(1, 1_000_000), 0.01, key=partial(_gained, write_s, copy_s))
        if abs(given - fewest) > max(1, 0.03 * fewest):
            yield wrong(
                "{case}: with {given:,.0f} GPUs it saves {saved:.3%} of all time",
                case=case,
                given=given,
                saved=_gained(write_s, copy_s, round(given)),
            )


def _gained(write_s: float, copy_s: float, num_gpus: int) -> float:
    """The share of all time that a save of ``copy_s`` loses less than one of ``write_s``."""
    mtbf_s = how_often.mtbf_s(num_gpus)
    written, copied = (
        how_often.lost_share(how_often.cheapest_s(each_s, mtbf_s), each_s, mtbf_s)
        for each_s in (write_s, copy_s)
    )
    return written - copied


@exercise
def elastic(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(training)`` brings a ``Training`` to its end on real ranks that are killed, and
    returns the last Run.

    ``run[0]`` is the trained state_dict, equal to that of undisturbed training. After
    ``max_restarts`` restarts it lets the verdict out. Budget: no failure costs more than ``every``
    steps.
    """
    for ranks, kills, broken in (
        (2, ((5, 1, False),), False),
        (3, ((4, 2, True), (6, None, False)), False),
        (2, (), True),
    ):
        told = say("list|, ").join(_told(*kill) for kill in kills)
        what = told or say("a bug raises at step 4 in every start")
        case = say("{ranks} ranks, {what}", ranks=ranks, what=what)
        with tempfile.TemporaryDirectory() as folder:
            training = Training(home=Path(folder), ranks=ranks, kills=kills, broken=broken)
            training.folder.mkdir()
            yield from _judged(case, training, answer)


def _told(step: int, rank: int | None, is_lost: bool) -> str:
    """A kill in words."""
    if rank is None:
        return say("rank 0 is killed in the save after step {step}", step=step)
    if is_lost:
        return say("rank {rank} is killed for good at step {step}", rank=rank, step=step)
    return say("rank {rank} is killed at step {step}", rank=rank, step=step)


def _judged(case: str, training: Training, answer: Callable) -> Iterator[tuple[str, str]]:
    """What is wrong with an answer in one case."""
    run = error = None
    try:
        run = answer(training)
    except Enough:
        yield wrong(
            "{case}: started {starts} times and still not giving up",
            case=case,
            starts=training.num_starts(),
        )
        return
    except LaunchError as caught:
        has_more_to_come = training.num_kills() < len(training.kills)
        if "your turn" in str(caught) or (has_more_to_come and not training.broken):
            raise
        error = str(caught).partition("\n")[0]
    if training.broken and not error:
        yield wrong(
            "{case}: no verdict came out; a bug in the code is not cured by a restart",
            case=case,
        )
    elif error and not training.broken:
        yield wrong("{case}: the start after it ended so: {error}", case=case, error=error)
    elif not error:
        yield from _judged_run(case, training, run)


def _judged_run(case: str, training: Training, run: object) -> Iterator[tuple[str, str]]:
    """What is wrong with the run that came back, or with the steps that it took."""
    steps = training.steps()
    told = ", ".join(map(str, steps))
    fault = "a Run comes back, and run[0] is a state_dict"
    if isinstance(run, Run) and isinstance(run[0], dict):
        fault = on_ranks(1, compared, training, run[0], steps)[0]
    most = training.num_steps + training.every * len(training.kills)
    if fault:
        yield wrong("{case}: {fault} (steps trained: {told})", case=case, fault=fault, told=told)
    elif len(steps) > most:
        yield over_budget(
            "{case}: {num} steps were trained, {most} are enough: {told}",
            case=case,
            num=len(steps),
            most=most,
            told=told,
        )


# --- in the ranks ---


def _saved(answer: Callable, folder: Path, kill: str) -> tuple[str]:
    """Saves twice, and is killed in the second, or tells what is wrong with the file."""
    import torch
    from torch import distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    file = folder / "last.pt"
    touched: list[str] = []
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    _watch(folder, touched)
    for step in (1, 2):
        net(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
        touched.clear()
        if step == 2 and kill == "write" and rank == 0:
            ambush(folder, lambda: None)
        if step == 2 and kill == "rename" and rank == 0:
            touched.append("kill")
        answer(file, net, optimizer, scheduler, step, argparse.Namespace(lr=0.1, name="a"))
        dist.barrier()
    due = {
        "model": net.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "step": 2,
        "args": {"lr": 0.1, "name": "a"},
        "rng": _of_all_ranks(torch.get_rng_state()),
    }
    wrote = _of_all_ranks(list(touched))
    return (_unlike(file, due) or _careless(wrote),)


def _of_all_ranks(mine: object) -> list:
    from torch import distributed as dist

    everybody: list = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    return everybody


def _watch(folder: Path, touched: list[str]) -> None:
    """Notes what a rank does to the folder: write, fsync, rename; dies before a rename if "kill"
    stands there."""
    import torch

    whole = torch.save
    whole_sync = os.fsync

    def save(value: object, file: Any, *args: Any, **options: Any) -> None:
        if isinstance(file, str | os.PathLike):  # opened where no audit hook sees it
            touched.append("write")
        whole(value, file, *args, **options)

    def sync(number: int) -> None:
        touched.append("fsync")
        whole_sync(number)

    def seen(event: str, arguments: tuple) -> None:
        if event not in ("open", "os.rename") or str(folder) not in str(arguments[0]):
            return
        if event == "os.rename":
            if "kill" in touched:
                os.kill(os.getpid(), signal.SIGKILL)
            touched.append("rename")
        elif arguments[2] & (os.O_WRONLY | os.O_RDWR):
            touched.append("write")

    torch.save = save
    os.fsync = sync
    sys.addaudithook(seen)


def _careless(wrote: list[list[str]]) -> str:
    """What is dangerous about the order of things, by rank."""
    busy = [rank for rank, touched in enumerate(wrote) if "write" in touched or "rename" in touched]
    if busy != [0]:
        return say("ranks {busy} write; one file has one writer, rank 0", busy=busy)
    if "rename" not in wrote[0]:
        return say(
            "the file is written in place: who is killed there leaves half of it, and the old one "
            "is gone"
        )
    if "fsync" not in wrote[0][: wrote[0].index("rename")]:
        return say(
            "no os.fsync before the rename: after a power cut the new name may stand for bytes "
            "that never came"
        )
    return ""


def _readable(file: Path) -> str:
    """What is wrong with a file that a killed rank left: ``run[0]`` of a launch."""
    import torch

    try:
        step = torch.load(file, weights_only=True)["step"] if file.exists() else None
    except Exception as error:
        return say("the file that is there cannot be read: {kind}", kind=type(error).__name__)
    return "" if step in (1, 2) else say("the file of step 1 is gone")


def _unlike(file: Path, due: dict[str, Any]) -> str:
    """Where a file differs from what it should hold."""
    import torch

    if not file.exists():
        return say("{name} is not there", name=file.name)
    try:
        found = torch.load(file, weights_only=True)
    except Exception as error:
        return say(
            "torch.load(weights_only=True) refuses it: {reason:.90}",
            reason=str(error).strip().splitlines()[0],
        )
    for key in KEYS:
        if not isinstance(found, dict) or key not in found:
            return say("the key {key!r} is missing", key=key)
        if not _same(found[key], due[key]):
            return say(
                "{key!r} holds {found!s:.80}; it should be {due!s:.80}",
                key=key,
                found=found[key],
                due=due[key],
            )
    return ""


def _same(a: object, b: object) -> bool:
    import torch

    if isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and torch.equal(a.cpu(), b.cpu())
    if isinstance(b, dict):
        has_keys = isinstance(a, dict) and a.keys() == b.keys()
        return has_keys and all(_same(a[key], b[key]) for key in b)
    if isinstance(b, list | tuple):
        is_as_long = isinstance(a, list | tuple) and len(a) == len(b)
        return is_as_long and all(map(_same, a, b))
    return a == b
