"""The ways of ``two_level`` on real ranks of several machines."""

import time

import numpy as np

from labkit.cluster import two_level
from labkit.cluster.examine_run import pairs
from labkit.cluster.matrix import Matrix
from labkit.cluster.two_level import TwoLevel
from labkit.collectives import run as collectives_run
from labkit.collectives.plans import Plan
from labkit.launching.launcher import launch
from labkit.launching.nodes.places import Hosts, Slurm
from labkit.units import check_real

CALLS = 3
"""of each way, one after the other; their mean counts"""


def all_reduces(
    *,
    on: Slurm | Hosts,
    ranks: int = 4,
    num_bytes: float = 1e6,
    timeout_s: float = 120.0,
) -> TwoLevel:
    """Measures the links, then three ways of an all-reduce of ``num_bytes`` on the same ranks, and
    predicts each from the links."""
    check_real(4.0, 1e9, num_bytes=num_bytes)
    ranks_per_host = ranks // on.num_nodes
    plans = two_level.ways(ranks, ranks_per_host)
    run = launch(_measure, plans, num_bytes, ranks=ranks, on=on, timeout_s=timeout_s)
    rows = [result[0] for result in run.results]
    found = Matrix(
        ranks=tuple(about for about, *_ in rows),
        mb_per_s=np.array([sent for _, sent, _ in rows]),
        latency_us=np.array([late for _, _, late in rows]),
    )
    times = [result[1] for result in run.results]
    return TwoLevel(
        num_bytes=num_bytes,
        ranks_per_host=ranks_per_host,
        predicted_us=two_level.predict(found, ranks_per_host, num_bytes),
        measured_us={way: _slowest(times, way) for way in plans},
        crossing={
            way: two_level.crossing_bytes(plan, ranks_per_host, num_bytes)
            for way, plan in plans.items()
        },
        notes=run.notes,
    )


def _slowest(times: list[dict[str, float]], way: str) -> float:
    return max(each[way] for each in times)


def _measure(plans: dict[str, Plan], num_bytes: float) -> tuple[tuple, dict[str, float]]:
    """On a rank: what it measured of the links, and microseconds of each way."""
    import torch
    import torch.distributed as dist

    links = pairs(max(1, round(num_bytes / 4)))
    took_us = {}
    for way, plan in plans.items():
        buffer = torch.ones(round(num_bytes / 4))
        collectives_run.execute(plan, buffer)
        if not torch.equal(buffer, torch.full_like(buffer, dist.get_world_size())):
            raise AssertionError(f"{way} is no all-reduce")
        dist.barrier()
        began = time.perf_counter()
        for _ in range(CALLS):
            collectives_run.execute(plan, buffer)
        took_us[way] = (time.perf_counter() - began) / CALLS * 1e6
    return links, took_us
