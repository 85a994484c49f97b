"""Lets a rank die at a chosen moment of a save, and tells what is left."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.launching.launcher import launch
from labkit.launching.verdicts.verdict import RankFailed
from labkit.recovery import sealed_folder
from labkit.recovery.disturbed_check import ambush

__all__ = ["MOMENTS", "die_in_save", "left_by_a_kill"]

MOMENTS = ("fsync", "rename", "renamed", "half-way")
"""instead of a checkpoint's first ``fsync``, instead of its ``rename``, right after the ``rename``;
with half of the bytes of a ``torch.save`` into a file written (a checkpoint has one, on rank 0)"""


def die_in_save(moment: str, number: int = 2) -> None:
    """Called in ranks. From now on, rank 0 kills itself by SIGKILL at this moment of its
    ``number``-th save (1: the next). Other ranks go on. Raises ValueError for another moment, or no
    number from 1 on."""
    if moment not in MOMENTS or number < 1:
        raise ValueError(
            f"a moment of a save is one of {', '.join(MOMENTS)}, and saves count from 1; got "
            f"{moment!r} and {number}"
        )
    if dist.get_rank() > 0:
        return
    if moment == "half-way":
        _arm_write(number)
        return
    begin = sealed_folder.begin
    num_begun = 0

    def counted(folder: Path, step: int, group: Any) -> Path:
        nonlocal num_begun
        num_begun += 1
        draft = begin(folder, step, group)
        if num_begun == number:
            _arm(moment)
        return draft

    sealed_folder.begin = counted


def left_by_a_kill(
    train: Callable[[Path], object], folder: Path, moment: str
) -> tuple[str, int | str]:
    """Launches ``train(folder)`` on two ranks, where rank 0 dies at this moment of its second save
    (``die_in_save``).

    Returns the names in the folder, and what can be loaded from it: the step of the newest whole
    checkpoint; without one, what torch says of the file that is there. Raises RankFailed where
    something else ended the ranks, ValueError where nothing did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        launch(_trained_to_death, train, folder, moment, ranks=2)
    except RankFailed as error:
        if all(outcome.status != -signal.SIGKILL for outcome in error.outcomes):
            raise
    else:
        raise ValueError(f"rank 0 dies in its second save; {train.__name__} saves less than twice")
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    return names, _loadable(folder)


def _trained_to_death(train: Callable[[Path], object], folder: Path, moment: str) -> None:
    """A rank of ``left_by_a_kill``."""
    die_in_save(moment)
    train(folder)


def _loadable(folder: Path) -> int | str:
    """The step of the newest whole checkpoint; else the error of the folder's first file, or its
    name where it can be read."""
    for path in sealed_folder.checkpoints(folder):
        if not sealed_folder.fault(path):
            return sealed_folder.about(path)["step"]
    file = min(folder.iterdir())
    try:
        torch.load(file, weights_only=True)
    except (RuntimeError, OSError) as error:
        return str(error).split(": ")[0]
    return file.name


def _arm_write(number: int) -> None:
    """The ``number``-th torch.save into a file from now on is this process's last."""
    whole = torch.save
    num_begun = 0

    def counted(value: object, file: Any, *args: Any, **options: Any) -> None:
        nonlocal num_begun
        is_file = isinstance(file, str | os.PathLike)
        num_begun += is_file
        if is_file and num_begun == number:
            ambush(Path(file), lambda: None)
            torch.save(value, file, *args, **options)
        whole(value, file, *args, **options)

    torch.save = counted


def _arm(moment: str) -> None:
    """The next call of os.fsync, or of os.rename, is this process's last."""
    call = "fsync" if moment == "fsync" else "rename"
    whole = getattr(os, call)

    def deadly(*args: Any) -> None:
        if moment == "renamed":
            whole(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, call, deadly)
