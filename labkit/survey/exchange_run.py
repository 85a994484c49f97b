"""How long collectives take on these ranks, from small messages to as large as time and memory
permit, as nccl-tests does it: several calls after one another, the mean of them, the slowest rank
counts.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from labkit.devices.place import synchronize

if TYPE_CHECKING:
    from labkit.launching.job import Job

SIZES = tuple(4**step for step in range(5, 17))
"""1 kB to 4.3 GB, in bytes, each four times the one before"""
NUM_ROUNDS = 3
ROUND_S = 0.1
MOST_CALLS = 20


def start(primitive: str, *, ranks: int, most_s: float) -> "Job":
    """Times one collective on real ranks, in the background. ``run[r]`` is a dict: num_bytes (as
    nccl-tests counts them) and times_us (the mean call of each round, per size)."""
    from labkit.launching import launcher

    return launcher.start(_measure, primitive, most_s, ranks=ranks)


# --- in the ranks ---


def _measure(primitive: str, most_s: float) -> dict[str, list]:
    """One rank: each size in turn, until the next would take too long or too much."""
    import torch.distributed as dist

    began = time.perf_counter()
    num_ranks = dist.get_world_size()
    room_bytes = _room_bytes()
    sizes: list[int] = []
    times_us: list[list[float]] = []
    for size in SIZES:
        num_values = num_ranks * max(1, size // 4 // num_ranks)
        if 4 * num_values > room_bytes:
            break
        call = _call(primitive, num_values)
        call()  # connects the ranks
        once_s = _agreed(_timed_s(call, 1))
        num_calls = max(1, min(MOST_CALLS, int(ROUND_S / once_s)))
        rounds = [1e6 * _timed_s(call, num_calls) for _ in range(NUM_ROUNDS)]
        sizes.append(4 * num_values)
        times_us.append(rounds)
        next_s = 4 * (2 + NUM_ROUNDS) * min(rounds) / 1e6
        if _agreed(time.perf_counter() - began + next_s) > most_s:
            break
    return {"num_bytes": sizes, "times_us": times_us}


def _call(primitive: str, num_values: int) -> Callable[[], None]:
    """One collective on float32 buffers of this rank's device."""
    import torch
    import torch.distributed as dist

    whole = torch.zeros(num_values)
    if primitive == "all_reduce":
        return partial(dist.all_reduce, whole)
    if primitive == "all_to_all":
        return partial(dist.all_to_all_single, torch.zeros_like(whole), whole)
    part = torch.zeros(num_values // dist.get_world_size())
    if primitive == "all_gather":
        return partial(dist.all_gather_single, whole, part)
    return partial(dist.reduce_scatter_single, part, whole)


def _timed_s(call: Callable[[], None], num_calls: int) -> float:
    """Seconds of the mean call, all ranks beginning together."""
    import torch.distributed as dist

    dist.barrier()
    synchronize()
    start_s = time.perf_counter()
    for _ in range(num_calls):
        call()
    synchronize()
    return (time.perf_counter() - start_s) / num_calls


def _agreed(value: float) -> float:
    """The largest of what the ranks have, so that all decide alike."""
    import torch
    import torch.distributed as dist

    largest = torch.tensor(value, dtype=torch.float32)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()


def _room_bytes() -> float:
    """How large a buffer may be: a quarter of what is free on the device, or of this rank's share
    of what all of them take from."""
    import torch
    import torch.distributed as dist

    from labkit.machine import resources

    free_bytes = resources.available_bytes() / dist.get_world_size()
    if torch.get_default_device().type == "cuda":
        shared_by = 1 if dist.get_backend() == "nccl" else dist.get_world_size()
        free_bytes = torch.cuda.mem_get_info()[0] / shared_by
    return -_agreed(-free_bytes / 4)
