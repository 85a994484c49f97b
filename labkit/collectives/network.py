"""What a collective costs: links of a latency and a bandwidth (the alpha-beta model), plans
simulated on them, closed forms, and the line through measured times.

Lengths are bytes, times microseconds, bandwidths GB/s to base 10: 1 GB/s = 1000 bytes per
microsecond.
"""

import heapq
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

import numpy as np

from labkit.collectives.algorithms import ALGORITHMS, Move, Plan, lower_bound_bytes, square_island
from labkit.timeline import COMM, Timeline, column, from_rows
from labkit.units import check_real, check_whole


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
class Network:
    """Which rank is linked with which."""

    name: str
    """words for a picture's title"""
    links: tuple[tuple[Link | None, ...], ...]
    """links[src][dst]; None where there is no way"""

    @property
    def num_ranks(self) -> int:
        """How many ranks it joins."""
        return len(self.links)

    def link(self, src: int, dst: int) -> Link:
        """The link from src to dst. Raises ValueError where there is none."""
        found = self.links[src][dst] if {src, dst} <= set(range(self.num_ranks)) else None
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
        here, there = src // island_size, dst // island_size
        if here == there:
            return inside if src != dst else None
        return replace(between, wire=f"island {here}>{there}") if shared else between

    num_islands = -(-num_ranks // island_size)
    name = f"{num_ranks} ranks" + (f" on {num_islands} islands" if num_islands > 1 else "")
    return Network(
        name=name,
        links=tuple(tuple(link(a, b) for b in range(num_ranks)) for a in range(num_ranks)),
    )


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
    moves, needs = _dependencies(plan)
    order, ready = TopologicalSorter(needs), []
    order.prepare()
    rows, end_us, free_us = [], {}, {}
    while order.is_active():
        for number in order.get_ready():
            heapq.heappush(
                ready, (max((end_us[before] for before in needs[number]), default=0.0), number)
            )
        start_us, number = heapq.heappop(ready)
        src, dst, chunks, _ = moves[number]
        link, size = network.link(src, dst), len(chunks) * plan.chunk_bytes(num_bytes)
        start_us = max(start_us, free_us.get(link.wire, 0.0)) if link.wire else start_us
        end_us[number] = free_us[link.wire] = start_us + link.us(size)
        rows += [
            (rank, COMM, kind, f"{src}>{dst}", start_us, end_us[number], round(size))
            for rank, kind in ((src, "send"), (dst, "recv"))
        ]
        order.done(number)
    return from_rows(rows, num_ranks=plan.num_ranks, origin="simulated")


def _dependencies(plan: Plan) -> tuple[list[Move], dict[int, set[int]]]:
    """All messages, and for each the ones that its two ends have in their last steps before it."""
    moves, needs, last = [], {}, [set() for _ in range(plan.num_ranks)]
    for step in plan.steps:
        needs |= {
            number: last[move.src] | last[move.dst]
            for number, move in enumerate(step, start=len(moves))
        }
        for rank in {rank for move in step for rank in move[:2]}:
            last[rank] = {
                number for number, move in enumerate(step, start=len(moves)) if rank in move[:2]
            }
        moves += step
    return moves, needs


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
    hops, log, k = num_ranks - 1, (num_ranks - 1).bit_length(), num_segments or num_ranks
    size = island_size or square_island(num_ranks)
    both = 2 if primitive == "all_reduce" else 1
    steps = {
        "parameter_server": [(2 * hops, 1.0)],
        "star": [(hops, 1.0)],
        "direct": [(min(hops, 1), 1.0)],
        "tree": [(both * log, 1.0)] if (num_segments or 1) == 1 else None,
        "pairwise": [(hops, 1 / num_ranks)],
        "ring": [(both * hops, 1 / num_ranks)],
        "hierarchical": [(2 * (size - 1), 1 / size), (2 * (num_ranks // size - 1), 1 / num_ranks)],
    }
    if primitive in ("broadcast", "reduce"):
        steps["ring"] = [(num_ranks - 2 + k if hops else 0, 1 / k)]
    if not steps.get(algorithm) or algorithm not in ALGORITHMS.get(primitive, ()):
        return None
    return sum(count * link.us(share * num_bytes) for count, share in steps[algorithm])


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
    lines = [
        [formula_us(primitive, each, num_ranks, size, link) for size in (0, 1e9)]
        for each in (long, short)
    ]
    if None in lines[0] + lines[1]:
        raise ValueError(
            f"a crossover needs two algorithms with a closed form; got {long!r} and {short!r} "
            f"for {primitive!r}"
        )
    (start_long, end_long), (start_short, end_short) = lines
    late, gained = (
        start_long - start_short,
        round(end_short - start_short - end_long + start_long, 6),
    )
    return (
        max(0.0, late / gained * 1e9)
        if gained > 0
        else float("inf")
        if gained < 0 or late > 0
        else 0.0
    )


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
        return Link(alpha_us=self.alpha_us, bandwidth_gb_per_s=self.bandwidth_gb_per_s).us(
            num_bytes
        )

    def link(self) -> Link:
        """The link on which a ring (pairwise, direct) would take that time. Raises ValueError for
        one rank."""
        if self.num_ranks < 2:
            raise ValueError(f"a link has two ends; this is a fit for {self.num_ranks} rank")
        algorithm = (
            "ring"
            if "ring" in ALGORITHMS[self.primitive]
            else next(iter(ALGORITHMS[self.primitive]))
        )
        unit = Link(alpha_us=1.0, bandwidth_gb_per_s=1.0)
        num_steps, with_bytes = (
            formula_us(self.primitive, algorithm, self.num_ranks, size, unit) for size in (0, 1e3)
        )
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
    sizes, times = column("num_bytes", num_bytes, float), column("times_us", times_us, float)
    usable = np.isfinite(sizes).all() and np.isfinite(times).all() and (times > 0).all()
    if (
        primitive not in ALGORITHMS
        or len(set(sizes)) < 2
        or sizes.shape != times.shape
        or not usable
    ):
        raise ValueError(
            f"a fit of {', '.join(ALGORITHMS)} needs a time above 0 for each of two sizes or "
            "more; got "
            f"{primitive!r}, sizes {sizes.tolist()}, times {times.tolist()}"
        )
    columns = np.stack([1 / times, sizes / times], axis=1)
    scale = np.linalg.norm(columns, axis=0)
    alpha, per_byte = np.linalg.lstsq(columns / scale, np.ones(len(sizes)))[0] / scale
    if min(alpha, per_byte) < 0:
        alone = columns.sum(axis=0) / scale**2
        alpha, per_byte = (0.0, alone[1]) if alpha < 0 else (alone[0], 0.0)
    return Fit(
        primitive=primitive,
        num_ranks=num_ranks,
        alpha_us=float(alpha),
        bandwidth_gb_per_s=float(1 / per_byte / 1e3) if per_byte else float("inf"),
    )
