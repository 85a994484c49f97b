"""The set-up check: every rank of every node says who it is, and how fast it reaches each other."""

import itertools
import platform
import socket
import time
from typing import TYPE_CHECKING

import numpy as np

from labkit.cluster.matrix import Matrix
from labkit.launching.launcher import launch
from labkit.launching.nodes.places import Hosts, Slurm, host_name
from labkit.units import check_real, check_whole

if TYPE_CHECKING:
    import torch

ROUNDS = 3
"""of every measurement; the quickest counts"""


def examine(
    *,
    on: Slurm | Hosts | None = None,
    ranks: int | None = None,
    mib: float = 1.0,
    timeout_s: float = 120.0,
) -> Matrix:
    """Starts ``ranks`` ranks (default: one per node, or 2 here), and measures every pair of them,
    one after the other, both ways, with messages of ``mib`` MiB. Without ``on``, on this
    machine."""
    check_real(1e-3, 1024.0, mib=mib)
    num_ranks = ranks or (2 if on is None else on.num_nodes)
    check_whole(2, 256, ranks=num_ranks)
    run = launch(pairs, int(mib * 2**20), ranks=num_ranks, on=on, timeout_s=timeout_s)
    clocks = run.machine.get("ranks", [{}] * num_ranks)
    rows = []
    for (about, *_), clock in zip(run.results, clocks, strict=True):
        offset_us = clock.get("offset_ns", 0) / 1e3
        error_us = clock.get("error_ns", 0) / 1e3
        rows.append({**about, "offset_us": round(offset_us), "error_us": round(error_us)})
    return Matrix(
        ranks=tuple(rows),
        mb_per_s=np.array([sent for _, sent, _ in run.results]),
        latency_us=np.array([late for _, _, late in run.results]),
        notes=run.notes,
    )


def pairs(num_bytes: int) -> tuple[dict, list[float], list[float]]:
    """On a rank: who it is, and what it measured as the sender to every other: MB/s, and half of a
    short message's round trip in microseconds."""
    import torch
    import torch.distributed as dist

    here = dist.get_rank()
    world = dist.get_world_size()
    large = torch.zeros(num_bytes, dtype=torch.uint8)
    small = torch.zeros(1, dtype=torch.uint8)
    sent = [float("nan")] * world
    late = [float("nan")] * world
    for source, target in itertools.permutations(range(world), 2):
        dist.barrier()  # one pair at a time: nobody shares the link
        short_s = _quickest(small, small, source, target)
        long_s = _quickest(large, small, source, target)
        if here == source:
            late[target] = short_s / 2 * 1e6
            sent[target] = _mb_per_s(num_bytes, long_s, short_s)
    about = {
        "host": host_name(),
        "address": _address(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return about, sent, late


def _mb_per_s(num_bytes: int, long_s: float, short_s: float) -> float:
    """The speed of a long message. A short one's way there and the answer's way back are in both
    times, and are taken off; unless they are most of it, on a busy machine, where the rest is no
    measurement: then they stay in, and the link is at least so fast."""
    own_s = long_s - short_s if short_s < long_s / 2 else long_s
    return num_bytes / 1e6 / own_s


def _quickest(message: "torch.Tensor", answer: "torch.Tensor", source: int, target: int) -> float:
    """Seconds from a message's sending to its answer, on the sender."""
    import torch.distributed as dist

    here = dist.get_rank()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        if here == source:
            dist.send(message, target)
            dist.recv(answer, target)
            times.append(time.perf_counter() - began)
        elif here == target:
            dist.recv(message, source)
            dist.send(answer, source)
    return min(times, default=0.0)


def _address() -> str:
    """This host's address, as its own name service tells."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "?"
