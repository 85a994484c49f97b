"""Lets a rank die at a chosen moment of a save. Called in ranks."""

import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.recovery import sealed_folder
from labkit.recovery.disturbed_check import ambush

__all__ = ["MOMENTS", "die_in_save"]

MOMENTS = ("fsync", "rename", "renamed", "half-way")
"""instead of a checkpoint's first ``fsync``, instead of its ``rename``, right after the ``rename``;
with half of the bytes of a ``torch.save`` written"""


def die_in_save(moment: str, number: int = 2) -> None:
    """From now on, rank 0 kills itself by SIGKILL at this moment of its ``number``-th save (1: the
    next). Other ranks go on. Raises ValueError for another moment, or no number from 1 on."""
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


def _arm_write(number: int) -> None:
    """The ``number``-th torch.save from now on is this process's last."""
    whole = torch.save
    num_begun = 0

    def counted(value: object, file: Any, *args: Any, **options: Any) -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun == number:
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
