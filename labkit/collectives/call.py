"""The experiment of this subject: one call of a collective, by an algorithm on a network."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit import words
from labkit.collectives.algorithms import plan
from labkit.collectives.network import Link, Network, formula_us, islands, simulate, uniform
from labkit.collectives.plans import Plan
from labkit.experiment import Difference, Experiment
from labkit.timeline import Timeline
from labkit.units import check_real, check_word, format_bytes, format_us
from labkit.words import called

if TYPE_CHECKING:
    from labkit.collectives.network_picture import Way
    from labkit.launching.job import Job

NVLINK = Link(alpha_us=2.0, bandwidth_gb_per_s=300.0)
INFINIBAND = Link(alpha_us=5.0, bandwidth_gb_per_s=25.0)
SLOW = Link(alpha_us=1e3, bandwidth_gb_per_s=0.1)
LATE = Link(alpha_us=2e4, bandwidth_gb_per_s=1.0)
QUICK = Link(alpha_us=1e3, bandwidth_gb_per_s=1.0)
LINKS = {"slow": SLOW, "late": LATE, "nvlink": NVLINK}
NETWORKS = ("slow", "late", "paced_islands", "nvlink", "islands")
PACED = NETWORKS[:3]
MAX_REAL_RANKS = 8
MOST_REAL_BYTES = 4e6
MOST_NAMED = 24
"""messages of a timeline that all bear their names in a picture"""
_WORDS = words.catalogue(
    [
        ("slow", "paced: 1 ms, 0.1 GB/s"),
        ("late", "paced: 20 ms, 1 GB/s"),
        (
            "paced_islands",
            "paced islands: 1 GB/s in, 0.1 between",
        ),
        ("nvlink", "NVLink: 2 us, 300 GB/s"),
        ("islands", "islands: NVLink in, 25 GB/s between"),
        (
            "fast",
            "no message on this machine is as fast as {}: choose a paced network",
        ),
        ("many", "real runs take up to {} ranks"),
        ("big", "real runs take up to {}"),
    ]
)


def network_name(network: str | Link | Network, language: str | None = None) -> str:
    """What a network is called in a control."""
    if isinstance(network, Network):
        return network.name
    if isinstance(network, Link):
        return f"{format_us(network.alpha_us)}, {network.bandwidth_gb_per_s:g} GB/s"
    check_word(network, NETWORKS, "a network")
    return _WORDS[words.spoken_in(language)][network]


@lru_cache(maxsize=64)
def _planned(
    collective: str, algorithm: str, ranks: int, order: tuple[int, ...], island_size: int
) -> Plan:
    """The plan of a call, remembered: a sweep over sizes asks for the same one at each."""
    options: dict[str, Any] = {"order": order} if order else {}
    if island_size:
        options["island_size"] = island_size
    return plan(collective, algorithm, ranks, **options)


@dataclass(frozen=True, kw_only=True)
class Call(Experiment):
    """One call of a collective.

    ``run()[r]`` is a dict: seconds (of each execution, from the moment when all ranks may begin to
    this rank's end); of the last one sent_bytes, received_bytes (payload), wire_sent_bytes,
    wire_received_bytes (what TCP counted, None where it does not) and max_error (largest difference
    from torch.distributed's own result); num_overruns (steps that took longer than stated, in all).
    """

    collective: str = "all_reduce"
    """a key of ALGORITHMS"""
    algorithm: str = "ring"
    """a key of ALGORITHMS[collective]"""
    ranks: int = 4
    """N"""
    num_bytes: float = 1e6
    """S, as ``Plan.chunk_bytes`` reads it"""
    network: str | Link | Network = "slow"
    """one of NETWORKS; or one link between all ranks, or a network, of your own, which ranks can
    keep to if it is slow enough"""
    order: tuple[int, ...] = ()
    """the ranks in turn, of a ring or from island to island; (): 0, 1, 2, and so on"""
    island_size: int = 0
    """ranks of an island of the hierarchical algorithm; 0: as square as may be"""

    def __post_init__(self) -> None:
        check_real(0.0, 1e18, num_bytes=self.num_bytes)
        object.__setattr__(self, "order", tuple(self.order))
        if not isinstance(self.network, Link | Network):
            check_word(self.network, NETWORKS, "a network (or a Link, a Network)")
        self.plan()

    def plan(self) -> Plan:
        """Its steps. Raises ValueError where there is no such collective or algorithm."""
        return _planned(self.collective, self.algorithm, self.ranks, self.order, self.island_size)

    def links(self) -> Network:
        """The ranks and what links them; islands have half of the ranks each."""
        half = -(-self.ranks // 2)
        if isinstance(self.network, Network):
            return self.network
        if self.network == "paced_islands":
            return islands(self.ranks, half, inside=QUICK, between=SLOW)
        if self.network == "islands":
            return islands(self.ranks, half, inside=NVLINK, between=INFINIBAND)
        return uniform(self.ranks, self.only_link())

    def only_link(self) -> Link | None:
        """What all ranks are linked by; None between islands."""
        return self.network if isinstance(self.network, Link) else LINKS.get(self.network)

    def predict(self) -> Timeline:
        """Every message of the plan, simulated."""
        return simulate(self.plan(), self.links(), self.num_bytes)

    def way(self) -> "Way":
        """The network, and the way of the ring through it."""
        from labkit.collectives.network_picture import Way

        return Way(links=self.links(), order=self.order or tuple(range(self.ranks)))

    def formula_us(self) -> float | None:
        """The closed form on a link between all ranks; None where there is none."""
        link = self.only_link()
        if link is None:
            return None
        return formula_us(self.collective, self.algorithm, self.ranks, self.num_bytes, link)

    def refusal(self, language: str | None = None) -> str | None:
        """What can't be run here: links faster than this machine's, or more than it can bear."""
        say = _WORDS[words.spoken_in(language)]
        if isinstance(self.network, str) and self.network not in PACED:
            return say["fast"].format(say[self.network])
        if self.ranks > MAX_REAL_RANKS:
            return say["many"].format(MAX_REAL_RANKS)
        if self.num_bytes > MOST_REAL_BYTES:
            return say["big"].format(format_bytes(MOST_REAL_BYTES))
        return None

    def start(self) -> "Job":
        """The plan on real ranks, message by message, in the background."""
        from labkit.collectives import run

        return run.start(self.plan(), self.num_bytes, network=self.links())

    def _in_picture(self, timeline: Timeline) -> Timeline:
        """Rank 0's messages alone are named, where there are more than ``MOST_NAMED``."""
        if len(timeline) <= MOST_NAMED:
            return timeline
        return replace(timeline, label=np.where(timeline.rank == 0, timeline.label, ""))

    def difference(self, predicted: Any, measured: Any) -> Difference | None:
        """None: there is no step and nothing to hide messages under. The title has both times."""
        return None

    def title(self, language: str | None = None) -> str:
        """Collective, algorithm, ranks."""
        code = words.spoken_in(language)
        return called((self.collective, self.algorithm), code, f"N = {self.ranks}")
