"""Pretend devices: torch tensors of a device of our own, "pretend:0", on a machine without GPUs.

Their bytes lie in host memory and the CPU computes with them, to the same bits. What they keep of
an accelerator are its rules: a memory of its own with a limit (torch.OutOfMemoryError), counted
copies that may take a stated time, and no operation that mixes a tensor here with one there.

    install(Pretend(memory_mib=64))
    torch.ones(2, device="pretend") + torch.ones(2)     # RuntimeError, in CUDA's words
    torch.accelerator.memory_allocated()                # bytes

What they lack: nothing is asynchronous, there is one stream, and freed memory is not cached.
``native/pretend/`` is the device, ``torch_pretend`` its Python half.
"""

import atexit
import os
from dataclasses import dataclass, field
from types import ModuleType

import torch

from labkit.devices import imported, library, torch_pretend
from labkit.devices.rung import Pretend

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What crossed between the host and this process's devices."""

    to_device_bytes: int
    """bytes copied to a device"""
    to_host_bytes: int
    """bytes copied from a device, numbers for Python (``.item()``) included"""
    crossings: int
    """how many copies that were, both ways together"""
    took_us: float = field(default=0.0, compare=False)
    """how long they took together, by the clock, in microseconds"""


def install(settings: Pretend, *, num_devices: int = 1, index: int = 0) -> None:
    """Gives this process pretend devices, ``index`` the current one: once, before the first tensor
    of one. They are then torch's accelerator, and ``torch.pretend`` answers as torch.cuda would.

    A rank sees as many as there are ranks on its machine, and computes on its own; every process
    counts and limits only what it allocates itself. Raises ValueError where the library is not
    built, for a second call, and for an index that is none of the devices'.
    """
    if hasattr(torch, torch_pretend.NAME):
        raise ValueError("a process installs its pretend devices once; these are there already")
    if not 0 <= index < num_devices:
        raise ValueError(
            f"index is one of num_devices={num_devices} devices, counted from 0; got {index}"
        )
    native = library.load("pretend")
    limit_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if settings.memory_mib is not None:
        limit_bytes = round(settings.memory_mib * MIB)
    torch.utils.rename_privateuse1_backend(torch_pretend.NAME)
    native.install(num_devices, index, limit_bytes)
    native.set_link((settings.link_gb_per_s or 0.0) * 1e9, settings.link_latency_us * 1e-6)
    torch._register_device_module(torch_pretend.NAME, torch_pretend)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    torch_pretend.manual_seed_all(torch.initial_seed())
    atexit.register(_let_backward_end)
    imported.then("deepspeed.accelerator", _tell_deepspeed)


def copied() -> Copied:
    """What was copied between host and devices since ``install`` or ``reset_copied``: bytes,
    number of copies, and the time they took."""
    to_device_bytes, to_host_bytes, crossings, took_ns = library.load("pretend").copied()
    return Copied(
        to_device_bytes=to_device_bytes,
        to_host_bytes=to_host_bytes,
        crossings=crossings,
        took_us=took_ns / 1e3,
    )


def reset_copied() -> None:
    """Counts copies from here on."""
    library.load("pretend").reset_copied()


def _let_backward_end() -> None:
    """At the interpreter's end: see ``let_backward_end`` in module.cpp."""
    if torch_pretend.is_initialized():
        library.load("pretend").let_backward_end()


def _tell_deepspeed(accelerators: ModuleType) -> None:
    """DeepSpeed computes on the pretend device from here on."""
    from labkit.devices.deepspeed_accelerator import accelerator

    accelerators.set_accelerator(accelerator())
