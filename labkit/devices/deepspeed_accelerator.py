"""The pretend device as one of DeepSpeed's accelerators (0.19.8), so that ZeRO trains on it with
counted memory. ``pretend.install`` gives it to DeepSpeed as soon as that is imported.

DeepSpeed's ops for a CPU serve it too: they are given addresses, and a pretend device's bytes lie
in host memory. So everything that is not written here is the CPU's.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import torch

from labkit.devices import torch_pretend
from labkit.devices.torch_pretend import NAME

if TYPE_CHECKING:
    from deepspeed.accelerator.abstract_accelerator import DeepSpeedAccelerator


def accelerator() -> "DeepSpeedAccelerator":
    """The pretend device, for ``deepspeed.accelerator.set_accelerator``."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    made = type("PretendAccelerator", (Answers, CPU_Accelerator), {})()
    made._name = NAME
    made._communication_backend_name = NAME
    return made


def _maker(dtype: torch.dtype) -> staticmethod:
    """What makes a tensor of the device of numbers, as ``torch.cuda.FloatTensor`` did."""
    return staticmethod(partial(torch.tensor, dtype=dtype, device=NAME))


class Answers:
    """What DeepSpeed asks of a device, answered by ``torch.pretend``."""

    set_device = staticmethod(torch_pretend.set_device)
    current_device = staticmethod(torch_pretend.current_device)
    device_count = staticmethod(torch_pretend.device_count)
    is_available = staticmethod(torch_pretend.is_available)

    get_rng_state = staticmethod(torch_pretend.get_rng_state)
    set_rng_state = staticmethod(torch_pretend.set_rng_state)
    manual_seed = staticmethod(torch_pretend.manual_seed)
    manual_seed_all = staticmethod(torch_pretend.manual_seed_all)
    initial_seed = staticmethod(torch_pretend.initial_seed)

    memory_stats = staticmethod(torch_pretend.memory_stats)
    memory_allocated = staticmethod(torch_pretend.memory_allocated)
    memory_reserved = memory_cached = memory_allocated
    max_memory_allocated = staticmethod(torch_pretend.max_memory_allocated)
    max_memory_reserved = max_memory_cached = max_memory_allocated
    reset_peak_memory_stats = staticmethod(torch_pretend.reset_peak_memory_stats)
    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    ByteTensor = _maker(torch.uint8)
    IntTensor = _maker(torch.int32)
    LongTensor = _maker(torch.int64)
    HalfTensor = _maker(torch.float16)
    BFloat16Tensor = _maker(torch.bfloat16)
    FloatTensor = _maker(torch.float32)
    DoubleTensor = _maker(torch.float64)

    def device_name(self, device_index: int | None = None) -> str:
        """The type of the device, or one device's name."""
        return NAME if device_index is None else f"{NAME}:{device_index}"

    def current_device_name(self) -> str:
        """Of this thread's device."""
        return self.device_name(self.current_device())

    def device(self, device_index: int | None = None) -> AbstractContextManager:
        """Makes a device the current one while a block runs."""
        return torch_pretend.device(device_index)

    def total_memory(self, device_index: int | None = None) -> int:
        """The bytes of a device."""
        return torch_pretend.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        """Those of them that are free."""
        return torch_pretend.mem_get_info(device_index)[0]

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on such a device."""
        return tensor.device.type == NAME
