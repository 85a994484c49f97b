"""DDP's ``join``: ranks that have unlike numbers of batches, held against one process.

    heterogeneous.join((6, 3))[0]["weight_difference"]

A rank that has run out shadows the others' all-reduces with zeros. ``divide_by_initial``: a sum is
divided by all ranks of the beginning (torch's default), so that every batch counts alike; else by
those that still have some.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.heterogeneous.run import here, images
from labkit.large_batch.digits_run import Digits, classifier
from labkit.measure import pace, trace
from labkit.measure.apart import difference
from labkit.units import check_whole

if TYPE_CHECKING:
    from labkit.launching.run import Run

SAMPLES = 16
"""of a batch"""
RATE = 0.2
BATCH_MS = 6.0
"""forward and backward of a batch, paced"""


def join(batches: Sequence[int] = (6, 3), *, divide_by_initial: bool = True) -> "Run":
    """Rank r trains on ``batches[r]`` batches within ``join``.

    Each rank returns a dict: steps (with a batch of its own), weight_difference (largest, from one
    process that averages as ``join`` says it does), spread (of the weights over the ranks). The
    run is recorded. Raises ValueError for fewer than two ranks, or no batch.
    """
    from labkit.launching import launcher

    check_whole(2, 64, ranks=len(batches))
    check_whole(0, 1000, **{f"batches of rank {rank}": each for rank, each in enumerate(batches)})
    check_whole(1, **{"batches of all ranks": sum(batches)})
    told = (tuple(batches), divide_by_initial, images())
    return launcher.launch(_train, *told, ranks=len(batches))


# --- in the ranks ---


def _train(batches: tuple[int, ...], divide_by_initial: bool, data: Digits) -> dict:
    """One rank."""
    torch.set_num_threads(1)
    me = dist.get_rank()
    data = here(data)
    paced = pace.Paced(classifier(), forward_us=0.0, name="0")
    ddp = DistributedDataParallel(paced)
    optimizer = torch.optim.SGD(ddp.parameters(), RATE)
    _loss(ddp, data, me, 0).backward()  # warms up
    optimizer.zero_grad()
    paced.forward_us = 1e3 * BATCH_MS / 3
    paced.backward_us = 2 * paced.forward_us
    joined = ddp.join(divide_by_initial_world_size=divide_by_initial)
    steps = 0
    with trace.record(operators=False), joined:
        for number in range(batches[me]):
            _loss(ddp, data, me, number).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    mine = [each.detach() for each in paced.parameters()]
    right = [each.detach() for each in _alone(batches, divide_by_initial, data).parameters()]
    first = [each.clone() for each in mine]
    for each in first:
        dist.broadcast(each, 0)
    return {
        "steps": steps,
        "weight_difference": difference(mine, right),
        "spread": difference(mine, first),
    }


def _loss(net: nn.Module, data: Digits, rank: int, number: int) -> torch.Tensor:
    """The mean over a rank's batch."""
    start = SAMPLES * (dist.get_world_size() * number + rank)
    chosen = [each % len(data.y) for each in range(start, start + SAMPLES)]
    return F.cross_entropy(net(data.x[chosen]), data.y[chosen])


def _alone(batches: tuple[int, ...], divide_by_initial: bool, data: Digits) -> nn.Module:
    """One process that does what ``join`` promises."""
    net = classifier()
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for number in range(max(batches)):
        having = [rank for rank, num in enumerate(batches) if number < num]
        divisor = len(batches) if divide_by_initial else len(having)
        for rank in having:
            (_loss(net, data, rank, number) / divisor).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net
