"""``torch.pretend``: what a program asks of the pretend device, by the names of ``torch.cuda``.

``pretend.install`` registers this module with torch, which then finds here what it needs to seed,
to checkpoint, to save and to autocast. Sizes are in bytes, as torch has them; a ``device`` is None
for the current one, an index, "pretend:1", or a torch.device.
"""

import contextlib
import types

import torch
from torch import accelerator

from labkit.devices import library

NAME = "pretend"
Device = torch.device | str | int | None


class Stream:
    """The device's only stream. Work on it is done at once, so nothing ever waits."""

    def __new__(cls, device: Device = None, priority: int = 0) -> torch.Stream:
        return torch.Stream(device=torch.device(NAME, _index(device)))


class Event:
    """The time at which it was recorded; ``elapsed_time`` is in milliseconds."""

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        return torch.Event(device=torch.device(NAME, _index()), enable_timing=enable_timing)


def _native() -> types.ModuleType:
    return library.load("pretend")


def _index(device: Device = None) -> int:
    """Of a device, the current one where none is named. Raises ValueError for another's."""
    if isinstance(device, int):
        return device
    found = torch.device(NAME if device is None else device)
    if found.type != NAME:
        raise ValueError(f"Expected a pretend device, but got: {found}. Name pretend:0.")
    return current_device() if found.index is None else found.index


# --- devices ---


def is_available() -> bool:
    """Whether this process has a device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether a device was chosen or used; a DeviceMesh chooses one where that is not so."""
    return _native().is_initialized()


def init() -> None:
    """Nothing: there is nothing to start."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """How many devices this process sees."""
    return _native().device_count()


def current_device() -> int:
    """The index of this thread's current device."""
    return accelerator.current_device_index()


def set_device(device: Device) -> None:
    """Makes a device this thread's current one."""
    accelerator.set_device_index(_index(device))


def device(device: Device) -> contextlib.AbstractContextManager:
    """Makes a device the current one while a block runs."""
    return accelerator.device_index(_index(device))


def get_device_name(device: Device = None) -> str:
    """What it is called."""
    return "pretend device"


def get_device_properties(device: Device = None) -> types.SimpleNamespace:
    """Its name and its memory in bytes (``total_memory``)."""
    return types.SimpleNamespace(
        name=get_device_name(device), total_memory=mem_get_info(device)[1]
    )


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Of no generation of GPUs."""
    return 0, 0


# --- streams: one, never behind ---


def synchronize(device: Device = None) -> None:
    """Nothing: what was asked for is done."""


def current_stream(device: Device = None) -> torch.Stream:
    """The only stream of a device."""
    return accelerator.current_stream(_index(device))


default_stream = current_stream


def set_stream(stream: torch.Stream) -> None:
    """Nothing: there is no other."""


def stream(stream: torch.Stream | None) -> contextlib.AbstractContextManager:
    """A block on a stream, which is where it is anyway."""
    return contextlib.nullcontext()


# --- memory, in bytes ---


def memory_allocated(device: Device = None) -> int:
    """Bytes in use, in blocks of 512."""
    return accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that were in use at one time since the last reset."""
    return accelerator.max_memory_allocated(_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes in use: nothing is kept back for later."""
    return accelerator.memory_reserved(_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """As ``max_memory_allocated``."""
    return accelerator.max_memory_reserved(_index(device))


def memory_stats(device: Device = None) -> dict:
    """All counts, by torch's names for them."""
    return accelerator.memory_stats(_index(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """The peak is what is in use now."""
    accelerator.reset_peak_memory_stats(_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """(bytes free, bytes that there are)."""
    return accelerator.get_memory_info(_index(device))


def empty_cache() -> None:
    """Nothing: what is freed is free."""


# --- random numbers ---


def manual_seed(seed: int) -> None:
    """Seeds the current device's generator."""
    _native().seed(_index(), seed % 2**64)


def manual_seed_all(seed: int) -> None:
    """Seeds every device's generator, as torch.manual_seed does."""
    for index in range(device_count()):
        _native().seed(index, seed % 2**64)


def initial_seed() -> int:
    """The seed of the current device's generator."""
    seed, _ = _native().random_state(_index())
    return seed


def get_rng_state(device: Device = None) -> torch.Tensor:
    """16 bytes on the CPU: the seed, and how far the generator has come."""
    words = torch.tensor(_native().random_state(_index(device)), dtype=torch.uint64, device="cpu")
    return words.view(torch.uint8)


def set_rng_state(state: torch.Tensor, device: Device = None) -> None:
    """Puts a generator where ``get_rng_state`` found it."""
    seed, offset = state.cpu().view(torch.uint64).tolist()
    _native().set_random_state(_index(device), seed, offset)


# --- number formats ---


def is_bf16_supported() -> bool:
    """The CPU computes in it."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may compute in."""
    return [torch.bfloat16, torch.float16]
