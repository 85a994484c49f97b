"""How fast each rank reaches each other: the matrix that a set-up check measures, and which link in
it is slow. Shows itself as a picture.

A link is a way from one host to another, in one direction: what all ranks of the one send to those
of the other. It is slow where it carries less than half of what is usual between hosts.
"""

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from labkit import tables
from labkit.shown import Shown
from labkit.units import check_real
from labkit.words import say

if TYPE_CHECKING:
    from labkit.shown import Picture

SLOW = 0.5
"""of the median between hosts; a link below that is slow"""
Link = tuple[str, str]
"""from a host, to a host"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix(Shown):
    """What a set-up check found: who answered, and how fast ranks reach one another."""

    ranks: tuple[dict, ...]
    """per rank: host, address, python, torch, offset_us (its clock beside rank 0's), error_us"""
    mb_per_s: np.ndarray
    """float64 (ranks, ranks): from rank [row] to rank [column], in MB/s; nan on the diagonal"""
    latency_us: np.ndarray
    """float64 (ranks, ranks): half of a short message's round trip, in microseconds"""
    notes: tuple[str, ...] = field(default=())
    """what must be said with it"""
    origin: str = "measured"
    """where the numbers come from"""

    def __post_init__(self) -> None:
        shape = (len(self.ranks), len(self.ranks))
        for name in ("mb_per_s", "latency_us"):
            if np.shape(getattr(self, name)) != shape:
                raise ValueError(
                    f"{name} has a number for every two of {shape[0]} ranks; its shape is "
                    f"{np.shape(getattr(self, name))}"
                )

    def __repr__(self) -> str:
        return f"Matrix({len(self.ranks)} ranks on {len(set(self.hosts))} hosts, {self.badge})"

    @property
    def hosts(self) -> list[str]:
        """Each rank's host."""
        return [each["host"] for each in self.ranks]

    @property
    def badge(self) -> str:
        """Where it comes from, in words."""
        return ", ".join((self.origin, *self.notes))

    def slow_links(self, below: float = SLOW) -> list[Link]:
        """The links that carry less than that share of what is usual between hosts."""
        return slow_links(self.mb_per_s, self.hosts, below)

    def table(self, *, language: str | None = None) -> tables.Table:
        """Who answered, a row per rank."""
        rows = [{"rank": rank, **about} for rank, about in enumerate(self.ranks)]
        title = say("{num} ranks answered", num=len(rows))
        return tables.table(rows, title=title, language=language)

    def links(self, *, language: str | None = None) -> tables.Table:
        """Every link between hosts, a row each: its median bandwidth and latency."""
        wide = by_link(self.mb_per_s, self.hosts)
        long = by_link(self.latency_us, self.hosts)
        slow = set(self.slow_links())
        rows = [
            {
                "from": link[0],
                "to": link[1],
                "MB/s": round(wide[link], 2),
                "latency_us": round(long[link], 1),
                "slow": say("slow") if link in slow else "",
            }
            for link in wide
        ]
        return tables.table(rows, title=say("Links between hosts"), language=language)

    def _picture(self, language: str) -> "Picture":
        from labkit.cluster import matrix_picture

        return matrix_picture.matrix(self, language=language)


def by_link(numbers: np.ndarray, hosts: list[str]) -> dict[Link, float]:
    """The median over ranks for each link between two hosts."""
    found: dict[Link, list[float]] = {}
    for source, target in itertools.permutations(range(len(hosts)), 2):
        if hosts[source] != hosts[target]:
            link = (hosts[source], hosts[target])
            found.setdefault(link, []).append(float(numbers[source][target]))
    return {link: float(np.median(values)) for link, values in found.items()}


def slow_links(mb_per_s: np.ndarray, hosts: list[str], below: float = SLOW) -> list[Link]:
    """The links that carry less than ``below`` times the median over all links between hosts."""
    check_real(0.0, 1.0, below=below)
    wide = by_link(mb_per_s, hosts)
    if not wide:
        return []
    usual = float(np.median(list(wide.values())))
    return [link for link, speed in wide.items() if speed < below * usual]
