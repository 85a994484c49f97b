"""Puts a process on its rung: from then on torch makes its tensors there."""

import functools
from typing import TYPE_CHECKING

from labkit.devices.rung import Rung

if TYPE_CHECKING:
    import torch


def take(rung: Rung, rank: int, num_ranks: int) -> None:
    """Chooses the rank's device, makes it torch's default, and registers what its messages need.
    Once per process, before its first tensor and its seed."""
    if rung.name == "cpu":
        return
    import torch

    if rung.name == "pretend":
        from labkit.devices import pretend

        pretend.install(rung.pretend, num_devices=num_ranks, index=rank)
        device = torch.device("pretend", rank)
    else:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if rung.name in ("shared", "pretend"):
        from labkit.devices import through_host

        through_host.register(rung.backend)
    # the same cell then runs on any rung
    torch.set_default_device(device)


@functools.cache
def has_accelerator() -> bool:
    """Whether this process computes on anything but the CPU: a GPU or a pretend device."""
    import torch

    return torch.accelerator.is_available()


def synchronize(device: "torch.device | None" = None) -> None:
    """Waits until a device (by default this thread's) has done all that it was asked to do; a CPU
    always has."""
    import torch

    if has_accelerator():
        torch.accelerator.synchronize(device)
