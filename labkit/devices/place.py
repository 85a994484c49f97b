"""Puts a process on its rung: from then on torch makes its tensors there."""

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from labkit.devices import imported, library, rung
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
    imported.then("deepspeed.runtime.zero.stage3", _offload_to_the_host)
    imported.then("deepspeed.runtime.utils", _whole_on_the_device)


def _offload_to_the_host(stage3: ModuleType) -> None:
    """DeepSpeed's stage 3 (0.19.8) makes the host's memory for offloaded parameters on torch's
    default device, which it takes for the CPU. Here that is the rank's device, so it gets the
    CPU."""
    import torch

    made_on = stage3.DeepSpeedZeroOptimizer_Stage3
    make = made_on._create_param_groups_fp16_flat_cpu_memory

    @functools.wraps(make)
    def make_on_the_host(optimizer: Any) -> None:
        with torch.device("cpu"):
            make(optimizer)

    made_on._create_param_groups_fp16_flat_cpu_memory = make_on_the_host


def _whole_on_the_device(utils: ModuleType) -> None:
    """DeepSpeed's pipeline (0.19.8) makes a tensor whole of its parts on the device that it saw
    when it was imported, which may have been before this process chose one."""
    import torch

    from_meta = utils.PartitionedTensor.from_meta.__func__
    from_meta.__defaults__ = (torch.get_default_device().type,)


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
