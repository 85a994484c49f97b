"""What a collective costs: links of a latency and a bandwidth (the alpha-beta model), plans
simulated on them, closed forms, and the line through measured times.

Lengths are bytes, times microseconds, bandwidths GB/s to base 10: 1 GB/s = 1000 bytes per
microsecond.
"""

import collections
import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from labkit.collectives.algorithms import ALGORITHMS, lower_bound_bytes, square_island
from labkit.collectives.plans import Plan, dependencies
from labkit.shown import Shown
from labkit.timeline import COMM, Timeline, column, from_rows
from labkit.units import check_real, check_whole

if TYPE_CHECKING:
    from labkit.shown import Picture


@dataclass(frozen=True, kw_only=True)
class Link:
    """One way from a rank to another: a message of n bytes takes alpha + n / bandwidth (Hockney
    1994)."""

    alpha_us: float
    """what any message takes, however short"""
    bandwidth_gb_per_s: float
    """how fast a long one goes"""
    wire: str = ""
    """links that name the same wire share it: their messages go over it one at a time"""

    def __post_init__(self) -> None:
        if not (0 <= self.alpha_us <= 1e18 and self.bandwidth_gb_per_s > 0):
            raise ValueError(
                f"a link's alpha_us is at least 0 and its bandwidth_gb_per_s above 0; got {self}"
            )

    def us(self, num_bytes: float) -> float:
        """How long a message of num_bytes takes, in microseconds."""
        return self.alpha_us + num_bytes / (self.bandwidth_gb_per_s * 1e3)


@dataclass(frozen=True, kw_only=True)
class Network(Shown):
    """Which rank is linked with which."""

    name: str
    """words for a picture's title"""
    links: tuple[tuple[Link | None, ...], ...]
    """links[src][dst]; None where there is no way"""

    @property
    def num_ranks(self) -> int:
        """How many ranks it joins."""
        return len(self.links)

    def _picture(self, language: str) -> "Picture":
        from labkit.collectives import network_picture

        return network_picture.network(self, language=language)

    def link(self, src: int, dst: int) -> Link:
        """The link from src to dst. Raises ValueError where there is none."""
        ranks = range(self.num_ranks)
        found = self.links[src][dst] if src in ranks and dst in ranks else None
        if found is None:
            raise ValueError(
                f"{self.name} has no link from rank {src} to {dst}; choose another algorithm or "
                "order"
            )
        return found


def uniform(num_ranks: int, link: Link) -> Network:
    """Every rank linked with every other in the same way."""
    return islands(num_ranks, num_ranks, inside=link, between=link)


def islands(
    num_ranks: int, island_size: int, *, inside: Link, between: Link, shared: bool = False
) -> Network:
    """Neighbouring ranks in islands ("NVLink inside, network between").

    ``shared``: all that goes from one island to another goes over one wire; the way back is another
    wire. Otherwise each pair of ranks has a link of its own, and it does not matter how many
    messages cross at once.
    """
    check_whole(1, 512, num_ranks=num_ranks)
    check_whole(island_size=island_size)

    def link(src: int, dst: int) -> Link | None:
        here = src // island_size
        there = dst // island_size
        if here == there:
            return inside if src != dst else None
        return replace(between, wire=f"island {here}>{there}") if shared else between

    def links_from(src: int) -> tuple[Link | None, ...]:
        return tuple(link(src, dst) for dst in range(num_ranks))

    num_islands = -(-num_ranks // island_size)
    name = f"{num_ranks} ranks"
    if num_islands > 1:
        name += f" on {num_islands} islands"
    return Network(name=name, links=tuple(links_from(src) for src in range(num_ranks)))


def simulate(plan: Plan, network: Network, num_bytes: float) -> Timeline:
    """When every message of a plan goes, on the comm lane: "send" on its sender and "recv" on its
    receiver.

    The rule, for simulated and for real ranks: a message starts when both its sender and its
    receiver are through with their messages of earlier steps and its wire, if it shares one, is
    free; first come, first served. It then takes ``link.us`` of its bytes, and holds its wire and
    both its ends (one port out, one port in) until it is over. Ranks do not wait for one another at
    the end of a step. ``num_bytes`` is read as by ``Plan.chunk_bytes``. Raises ValueError for a
    network of another size, or without a link that is needed.
    """
    if network.num_ranks != plan.num_ranks:
        raise ValueError(
            f"a plan of {plan.num_ranks} ranks needs a network of as many; {network.name} has "
            f"{network.num_ranks}"
        )
    check_real(num_bytes=num_bytes)
    chunk_bytes = plan.chunk_bytes(num_bytes)
    messages, labels, before, after = dependencies(plan)
    lacking = list(before)
    ready_us = [0.0] * len(messages)
    queue = [(0.0, number) for number, count in enumerate(before) if not count]
    heapq.heapify(queue)  # (when both ends are ready, number) of messages that lack no other
    free_us = collections.defaultdict(float)  # wire -> from when on it is free
    rows = []
    while queue:
        start_us, number = heapq.heappop(queue)
        src, dst, chunks, _ = messages[number]
        link = network.link(src, dst)
        size = len(chunks) * chunk_bytes
        if link.wire:
            start_us = max(start_us, free_us[link.wire])
        end_us = start_us + link.us(size)
        free_us[link.wire] = end_us
        span = (labels[number], start_us, end_us, round(size))
        rows += [(src, COMM, "send", *span), (dst, COMM, "recv", *span)]
        for later in after[number]:
            ready_us[later] = max(ready_us[later], end_us)
            lacking[later] -= 1
            if not lacking[later]:
                heapq.heappush(queue, (ready_us[later], later))
    return from_rows(rows, num_ranks=plan.num_ranks, origin="simulated")


def time_us(plan: Plan, network: Network, num_bytes: float) -> float:
    """How long a plan takes until its last message is over. Raises as ``simulate``."""
    return float(simulate(plan, network, num_bytes).end_us.max(initial=0.0))


def formula_us(
    primitive: str,
    algorithm: str,
    num_ranks: int,
    num_bytes: float,
    link: Link,
    *,
    num_segments: int | None = None,
    island_size: int | None = None,
) -> float | None:
    """The time on a uniform network by the literature's closed form; None where there is none.

    With N ranks, size S, and T(n) = alpha + n / bandwidth: ring and pairwise (N-1) T(S/N), twice
    that for the ring all-reduce (Patarasuk and Yuan 2009, section 3); binomial tree ceil(log2 N)
    T(S), twice that for its all-reduce (Thakur, Rabenseifner and Gropp 2005, section 4); star (N-1)
    T(S), parameter server 2(N-1) T(S); chain of k segments (N-2+k) T(S/k); hierarchical 2(L-1)
    T(S/L) + 2(G-1) T(S/N) on G islands of L ranks. None for trees of segments.
    """
    check_real(num_bytes=num_bytes)
    check_whole(num_ranks=num_ranks, num_segments=num_segments or 1, island_size=island_size or 1)
    if num_ranks % (island_size or 1):
        raise ValueError(f"island_size is a divisor of {num_ranks} ranks; got {island_size}")
    if algorithm not in ALGORITHMS.get(primitive, ()):
        return None
    hops = num_ranks - 1
    both = 2 if primitive == "all_reduce" else 1  # to the root and back, twice around the ring
    if algorithm == "hierarchical":
        size = island_size or square_island(num_ranks)
        inside_us = 2 * (size - 1) * link.us(num_bytes / size)
        return inside_us + 2 * (num_ranks // size - 1) * link.us(num_bytes / num_ranks)
    if algorithm == "ring" and primitive in ("broadcast", "reduce"):
        num_pieces = num_segments or num_ranks
        num_steps = hops - 1 + num_pieces if hops else 0
        return num_steps * link.us(num_bytes / num_pieces)
    if algorithm in ("ring", "pairwise"):
        return both * hops * link.us(num_bytes / num_ranks)
    if algorithm == "tree" and (num_segments or 1) == 1:
        return both * hops.bit_length() * link.us(num_bytes)
    if algorithm in ("star", "parameter_server"):
        return both * hops * link.us(num_bytes)
    return min(hops, 1) * link.us(num_bytes) if algorithm == "direct" else None


def crossover_bytes(
    num_ranks: int,
    link: Link,
    long: str = "ring",
    short: str = "tree",
    primitive: str = "all_reduce",
) -> float:
    """The size above which algorithm ``long`` is faster than ``short``, by their closed forms, in
    bytes.

    0 where it is never slower, infinite where long messages do not favour it. Raises ValueError
    without closed forms.
    """
    long_us = [formula_us(primitive, long, num_ranks, size, link) for size in (0, 1e9)]
    short_us = [formula_us(primitive, short, num_ranks, size, link) for size in (0, 1e9)]
    if None in long_us or None in short_us:
        raise ValueError(
            f"a crossover needs two algorithms with a closed form; got {long!r} and {short!r} "
            f"for {primitive!r}"
        )
    late_us = long_us[0] - short_us[0]
    gained_us = round(short_us[1] - short_us[0] - long_us[1] + long_us[0], 6)
    if gained_us > 0:
        return max(0.0, late_us / gained_us * 1e9)
    return float("inf") if gained_us < 0 or late_us > 0 else 0.0


def busbw_factor(primitive: str, num_ranks: int) -> float:
    """What turns algbw into busbw (nccl-tests, doc/PERFORMANCE.md): the lower bound of the traffic
    over the size.

    2(N-1)/N for an all-reduce, (N-1)/N for all-gather, reduce-scatter and all-to-all, 1 for the
    others.
    """
    return lower_bound_bytes(primitive, num_ranks, 1.0)


def algbw(num_bytes: float, time_us: float) -> float:
    """Size over time, in GB/s. Raises ValueError for a time that is not above 0."""
    if not time_us > 0:
        raise ValueError(f"algbw is size over a time above 0 us; got {time_us}")
    return num_bytes / time_us / 1e3


def busbw(primitive: str, num_ranks: int, num_bytes: float, time_us: float) -> float:
    """What each rank's link carried if the algorithm moves no more than it must, in GB/s: compare
    it with a link."""
    return algbw(num_bytes, time_us) * busbw_factor(primitive, num_ranks)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A whole collective as one line: T(S) = alpha + S / bandwidth, for one number of ranks."""

    primitive: str
    """which collective"""
    num_ranks: int
    """on how many ranks"""
    alpha_us: float
    """what it takes however little there is to send"""
    bandwidth_gb_per_s: float
    """algbw of very long messages; infinite if the times do not grow with the size"""

    def us(self, num_bytes: float) -> float:
        """How long the collective takes, in microseconds."""
        line = Link(alpha_us=self.alpha_us, bandwidth_gb_per_s=self.bandwidth_gb_per_s)
        return line.us(num_bytes)

    def link(self) -> Link:
        """The link on which a ring (pairwise, direct) would take that time. Raises ValueError for
        one rank."""
        if self.num_ranks < 2:
            raise ValueError(f"a link has two ends; this is a fit for {self.num_ranks} rank")
        names = ALGORITHMS[self.primitive]
        algorithm = "ring" if "ring" in names else next(iter(names))
        unit = Link(alpha_us=1.0, bandwidth_gb_per_s=1.0)  # 1 us a step, 1 us for each 1000 bytes
        num_steps = formula_us(self.primitive, algorithm, self.num_ranks, 0, unit)
        with_bytes = formula_us(self.primitive, algorithm, self.num_ranks, 1e3, unit)
        return Link(
            alpha_us=self.alpha_us / num_steps,
            bandwidth_gb_per_s=self.bandwidth_gb_per_s * (with_bytes - num_steps),
        )


def fit(primitive: str, num_ranks: int, num_bytes: np.ndarray, times_us: np.ndarray) -> Fit:
    """The line through measured times of several sizes, both of shape (num_points,): least squares
    of relative error.

    Neither alpha nor the time per byte falls below 0. Raises ValueError for fewer than two sizes, a
    time of 0, or an unknown primitive.
    """
    sizes = column("num_bytes", num_bytes, float)
    times = column("times_us", times_us, float)
    is_finite = np.isfinite(sizes).all() and np.isfinite(times).all() and (times > 0).all()
    is_enough = sizes.shape == times.shape and len(set(sizes)) >= 2
    if primitive not in ALGORITHMS or not is_enough or not is_finite:
        raise ValueError(
            f"a fit of {', '.join(ALGORITHMS)} needs a time above 0 for each of two sizes or "
            f"more; got {primitive!r}, sizes {sizes.tolist()}, times {times.tolist()}"
        )
    columns = np.stack([1 / times, sizes / times], axis=1)
    scale = np.linalg.norm(columns, axis=0)
    alpha, per_byte = np.linalg.lstsq(columns / scale, np.ones(len(sizes)))[0] / scale
    alone = columns.sum(axis=0) / scale**2  # what each would be without the other
    if alpha < 0:
        alpha = 0.0
        per_byte = alone[1]
    elif per_byte < 0:
        alpha = alone[0]
        per_byte = 0.0
    return Fit(
        primitive=primitive,
        num_ranks=num_ranks,
        alpha_us=float(alpha),
        bandwidth_gb_per_s=float(1 / per_byte / 1e3) if per_byte else float("inf"),
    )
