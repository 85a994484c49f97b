"""Training with a parameter server: the workers' side, and a launch in which one of them is slow.

    run = server_run.launch(serve, 18, bound=2)
    run[0]["latest"]

``serve(weights, total, bound)`` is the server itself: it takes gradients and answers with weights,
until it has all of them. It returns how late each was, and which workers wait for an answer.
Chapter 03 writes it.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit.units import check_whole

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.run import Run

RANKS = 4
"""the server, rank 0, and three workers"""
FORWARD_US = 8000
"""of a worker's step; its backward takes twice that"""
SLOW = 4
"""so many times as long a step of the last worker takes"""


def launch(serve: Callable, total: int, bound: int) -> "Run":
    """Three workers train one linear layer of 64 x 64 against ``serve(weights, total, bound)`` on
    rank 0: 24 ms for a step, four times as long on worker 3.

    ``run[0]`` is a dict: took_ms (until the last gradient was there; the steps then under way are
    not counted), mean lateness, latest. Each rank warms up before the clock and the recording's
    first action.
    """
    check_whole(1, 100_000, total=total)
    check_whole(0, 10**9, bound=bound)
    return on_host(_serve_or_work, serve, total, bound, record=True)


def on_host(fn: Callable, *args: object, ranks: int = RANKS, record: bool = False) -> "Run":
    """Launches a server and its workers on the CPU, because a server receives from whoever comes
    first, which NCCL can't."""
    from labkit.launching import launcher

    return launcher.launch(fn, *args, ranks=ranks, devices="cpu", record=record)


def stamped(values: "Tensor", version: int) -> "Tensor":
    """Values and the version of the weights that they belong to, in one message."""
    import torch

    return torch.cat([values.flatten(), torch.tensor([float(version)])])


def finish(message: "Tensor", waiting: list[int]) -> None:
    """Ends a server: takes the gradients that are still under way, into ``message`` and without
    using them, and tells every worker that it is over. ``waiting``: those that have delivered."""
    import torch.distributed as dist

    waiting = list(waiting)
    while len(waiting) < dist.get_world_size() - 1:
        waiting.append(dist.recv(message))
    for worker in waiting:
        dist.send(stamped(message[:-1], -1), worker)


# --- in the ranks ---


def _serve_or_work(serve: Callable, total: int, bound: int) -> dict | None:
    """One rank: the server or, but for rank 0, a worker."""
    import torch
    import torch.distributed as dist

    from labkit.measure import pace

    rank = dist.get_rank()
    net = torch.nn.Linear(64, 64, bias=False)
    net(torch.randn(16, 64)).square().mean().backward()
    forward_us = FORWARD_US * (SLOW if rank == RANKS - 1 else 1)
    paced = pace.Paced(net, forward_us=forward_us, name=str(rank))
    dist.barrier()
    began_s = time.perf_counter()
    if rank > 0:
        return _work(net, paced)
    weights = net.weight.detach().flatten()
    late, waiting = serve(weights, total, bound)
    took_ms = 1e3 * (time.perf_counter() - began_s)
    finish(stamped(weights, -1), waiting)
    return {"took_ms": took_ms, "mean lateness": sum(late) / len(late), "latest": max(late)}


def _work(net: "nn.Linear", paced: "nn.Module") -> None:
    """Sends gradients and takes weights until their version says that it is over."""
    import torch
    import torch.distributed as dist

    version = 0
    while version >= 0:
        net.zero_grad()
        paced(torch.randn(16, 64)).square().mean().backward()
        message = stamped(net.weight.grad, version)
        dist.send(message, 0)
        dist.recv(message, 0)
        net.weight.data = message[:-1].view_as(net.weight)
        version = int(message[-1])
