"""An all-reduce over two levels of network: three ways to do it, each predicted and measured.

Ranks of a host reach each other quickly; between hosts all of them share one link. What counts is
how many bytes a way sends over that link.
"""

from dataclasses import dataclass, field

import numpy as np

from labkit import tables
from labkit.cluster.matrix import Matrix
from labkit.collectives import algorithms
from labkit.collectives.network import Link, Network, islands, time_us
from labkit.collectives.plans import Plan
from labkit.units import check_whole
from labkit.words import say


def ways(num_ranks: int, ranks_per_host: int) -> dict[str, Plan]:
    """A ring that keeps neighbours on one host, a ring that goes to another host at every step, and
    the hierarchical way: inside, across, inside."""
    check_whole(2, 64, num_ranks=num_ranks)
    if num_ranks % ranks_per_host or num_ranks == ranks_per_host:
        raise ValueError(
            f"two hosts or more have as many ranks each; got {num_ranks} ranks, {ranks_per_host} "
            "on a host"
        )
    scattered = np.arange(num_ranks).reshape(-1, ranks_per_host).T.ravel().tolist()
    return {
        "ring": algorithms.plan("all_reduce", "ring", num_ranks),
        "scattered ring": algorithms.plan("all_reduce", "ring", num_ranks, order=scattered),
        "hierarchical": algorithms.plan(
            "all_reduce", "hierarchical", num_ranks, island_size=ranks_per_host
        ),
    }


def crossing_bytes(plan: Plan, ranks_per_host: int, num_bytes: float) -> float:
    """Bytes that the busiest host sends to others."""
    sent: dict[int, float] = {}
    for message in plan.messages():
        host = message.src // ranks_per_host
        if host != message.dst // ranks_per_host:
            size = len(message.chunks) * plan.chunk_bytes(num_bytes)
            sent[host] = sent.get(host, 0.0) + size
    return max(sent.values(), default=0.0)


def network(found: Matrix, ranks_per_host: int) -> Network:
    """The network that a set-up check has measured: the medians inside hosts and between them.
    Between hosts all ranks share a link."""
    hosts = np.array(found.hosts)
    same = hosts[:, None] == hosts[None, :]
    inside = same & ~np.eye(len(hosts), dtype=bool)

    def link(mask: np.ndarray) -> Link:
        return Link(
            alpha_us=float(np.median(found.latency_us[mask])),
            bandwidth_gb_per_s=float(np.median(found.mb_per_s[mask])) / 1e3,
        )

    quick = link(inside) if inside.any() else link(~same)
    return islands(len(hosts), ranks_per_host, inside=quick, between=link(~same), shared=True)


@dataclass(frozen=True, kw_only=True)
class TwoLevel:
    """Three ways of an all-reduce, predicted and measured."""

    num_bytes: float
    """of the buffer"""
    ranks_per_host: int
    """how many ranks share a host"""
    predicted_us: dict[str, float]
    """by way: chapter 02's simulation on the measured matrix, in microseconds"""
    measured_us: dict[str, float]
    """by way: the slowest rank's mean over several calls, in microseconds"""
    crossing: dict[str, float]
    """by way: bytes that the busiest host sends to others"""
    notes: tuple[str, ...] = field(default=())
    """what must be said with it"""

    def table(self, *, language: str | None = None) -> tables.Table:
        """A row per way, the quickest first."""
        rows = [
            {
                "way": way,
                "across_bytes": round(self.crossing[way]),
                "predicted_us": round(self.predicted_us[way], 1),
                "measured_us": round(took_us, 1),
            }
            for way, took_us in sorted(self.measured_us.items(), key=lambda item: item[1])
        ]
        title = say("All-reduce over two levels: measured beside predicted")
        return tables.table(rows, title=title, language=language)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        table = self.table()
        return {"text/html": table._repr_html_(), "text/plain": str(table)}


def predict(found: Matrix, ranks_per_host: int, num_bytes: float) -> dict[str, float]:
    """Microseconds by way, on the network that was measured."""
    links = network(found, ranks_per_host)
    plans = ways(len(found.ranks), ranks_per_host)
    return {way: time_us(plan, links, num_bytes) for way, plan in plans.items()}
