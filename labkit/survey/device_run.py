"""What one device does alone: how fast it multiplies matrices, and how fast bytes come and go."""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from labkit.devices.place import synchronize
from labkit.words import to_say

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.launching.job import Job

SIDES = (512, 1024, 2048, 4096, 8192)
"""of the square matrices"""
COPIES = (2**20, 2**26, 2**28)
"""in bytes"""
NUM_ROUNDS = 5
TO_DEVICE = to_say("host to device")
TO_HOST = to_say("device to host")
HOST_TO_HOST = to_say("host to host")
PINNED = to_say("pinned")
PAGEABLE = to_say("pageable")


def start(*, most_s: float) -> "Job":
    """Measures on one rank, in the background. ``run[0]`` is a dict: device, versions, matmul
    (dtype, side, time_us) and copies (way, num_bytes, time_us), the median call of each."""
    from labkit.launching import launcher

    return launcher.start(_measure, most_s, ranks=1)


# --- in the rank ---


def _measure(most_s: float) -> dict:
    import torch

    device = torch.get_default_device()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if device.type == "cuda":
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "device": name,
        "versions": {each: text for each, text in versions.items() if text},
        "matmul": _matmul("float32", most_s / 3) + _matmul("bfloat16", most_s / 3),
        "copies": _copies(most_s / 3),
    }


def _matmul(dtype: str, most_s: float) -> list[dict]:
    """Square matrices, until the next would take too long."""
    import torch

    began = time.perf_counter()
    found = []
    for side in SIDES:
        a = torch.randn(side, side).to(getattr(torch, dtype))
        time_s = _median_s(partial(torch.mm, a, a))
        found.append({"dtype": dtype, "side": side, "time_us": 1e6 * time_s})
        if time.perf_counter() - began + 8 * (NUM_ROUNDS + 1) * time_s > most_s:
            break
    return found


def _copies(most_s: float) -> list[dict]:
    """Each way, from a small copy to a large one."""
    import torch

    began = time.perf_counter()
    found = []
    is_accelerator = torch.get_default_device().type != "cpu"
    for num_bytes in COPIES:
        for way, (target, source) in _ways(num_bytes, is_accelerator).items():
            time_s = _median_s(partial(target.copy_, source))
            found.append({"way": way, "num_bytes": num_bytes, "time_us": 1e6 * time_s})
        if time.perf_counter() - began > most_s / 4:
            break
    return found


def _ways(num_bytes: int, is_accelerator: bool) -> "dict[tuple[str, ...], tuple[Tensor, Tensor]]":
    """Which way -> where to and where from."""
    import torch

    host = torch.ones(num_bytes, dtype=torch.uint8).cpu()
    there = torch.ones(num_bytes, dtype=torch.uint8)
    if not is_accelerator:
        return {(HOST_TO_HOST,): (host, there)}
    ways = {(TO_DEVICE, PAGEABLE): (there, host), (TO_HOST, PAGEABLE): (host, there)}
    if there.is_cuda:
        pinned = host.pin_memory()
        ways |= {(TO_DEVICE, PINNED): (there, pinned), (TO_HOST, PINNED): (pinned, there)}
    return ways


def _median_s(call: Callable[[], object]) -> float:
    """Seconds of the median call, after one to warm up."""
    seconds = []
    for _ in range(NUM_ROUNDS + 1):
        synchronize()
        start_s = time.perf_counter()
        call()
        synchronize()
        seconds.append(time.perf_counter() - start_s)
    return sorted(seconds[1:])[NUM_ROUNDS // 2]
