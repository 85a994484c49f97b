"""Puts a process on its rung: from then on torch makes its tensors there."""

import functools
from typing import TYPE_CHECKING

from labkit.devices import library, rung
from labkit.devices.rung import Pretend, Rung
from labkit.machine import resources

if TYPE_CHECKING:
    import torch


def choose(
    num_ranks: int, *, devices: str | Pretend | None = None, backend: str | None = None
) -> Rung:
    """The rung for a launch on this machine: see ``rung.choose``, which raises ValueError for what
    can't be."""
    return rung.choose(
        num_ranks,
        resources.num_gpus(),
        devices=devices,
        backend=backend,
        has_pretend=all(map(library.is_ready, rung.LIBRARIES["pretend"])),
    )


def take(chosen: Rung, rank: int, num_ranks: int) -> None:
    """Chooses the rank's device, makes it torch's default, and registers what its messages need.
    Once per process, before its first tensor and its seed."""
    if chosen.name == "cpu":
        return
    import torch

    if chosen.name == "pretend":
        from labkit.devices import pretend

        pretend.install(chosen.pretend, num_devices=num_ranks, index=rank)
        device = torch.device("pretend", rank)
    else:
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if chosen.name in ("shared", "pretend"):
        from labkit.devices import through_host

        through_host.register(chosen.backend)
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
