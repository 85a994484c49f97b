"""What a cluster is made of, as a planner sees it: GPUs, nodes, and the links between them.

A group of ranks sends at the bandwidth of its narrowest link: NVLink inside a node; across nodes
as many network cards as it has ranks in each. GB are 1e9 bytes, bandwidths one way.
"""

import functools
from dataclasses import dataclass, field
from math import log2

from labkit.collectives import network, published
from labkit.planner.models import rows
from labkit.planner.plan.shape import plain
from labkit.units import check_real, check_whole
from labkit.words import both, say, spoken_in

NODE_ALPHA_US = 5.0
"""What each doubling of the nodes adds to a collective, in microseconds (a tree's hop: NVIDIA's
InfiniBand switches and cards take 1 to 2 us each, and NCCL's own steps as much again)."""
SPARE = 0.05
"""of a GPU's memory: with less left, a plan fits perhaps, since its peak is no better known"""
LONG_BYTES = (1e6, 2e9)
"""Sizes between which the published curve of a machine is fitted: what training sends."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A row of data/hardware.csv."""

    name: str
    """as the course says it"""
    memory_gb: float
    """as the vendor prints it"""
    tflops: float
    """dense 16-bit TFLOP/s of the matrix units"""
    sms: int
    """multiprocessors: how many tiles of a product are worked on at a time"""
    tflops_8bit: float
    """dense 8-bit floating point; that of 16 bit where it has none"""
    hbm_gb_per_s: float
    """bandwidth of its memory"""
    node_gb_per_s: float
    """one way to the other GPUs of its node"""
    nic_gb_per_s: float
    """one way out of the node, its part of the cards of a usual machine"""
    per_node: int
    """GPUs of a usual machine"""
    measured: str
    """the machine of data/published/nccl_busbw.csv that is nearest"""
    source: str
    """the vendor's data sheet"""
    links: dict[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    """collective -> its (alpha in us, bus bandwidth in GB/s) inside a node, where it was measured
    there, the all-reduce among them; none: by ``measured``"""
    hides: bool = True
    """whether messages go on beside computing: not where the same cores do both"""
    adam_bytes: float = 30.0
    """what Adam's step reads and writes for each parameter: gradient, master copy and two moments
    in (16), three and the 16-bit copy out (14); more where nothing is fused"""
    fp32_share: float = 0.5
    """of ``tflops``, what products in fp32 get: half on matrix units, as TF32; 1 where ``tflops``
    was read in fp32"""

    @property
    def family(self) -> str:
        """Its generation: "A100" of "A100 80 GB"."""
        return self.name.split()[0]

    @functools.cached_property
    def node_link(self) -> tuple[float, float]:
        """(alpha in us, bus bandwidth in GB/s) of a collective inside a node: the published curve
        of the nearest machine, scaled by the ratio of their links."""
        if self.links:
            return self.links["all_reduce"]
        fit = _measured(self.measured)
        return fit[0], fit[1] * self.node_gb_per_s / gpu(MEASURED_ON[self.measured]).node_gb_per_s


MEASURED_ON = {
    "8xA100 NVLink3": "A100 80 GB",
    "8xH200 NVLink4 (NVLS)": "H200 141 GB",
    "8xB200 NVLink5": "B200 180 GB",
}
"""Machines of data/published/nccl_busbw.csv, and the GPU that each has."""


@functools.cache
def _measured(machine: str) -> tuple[float, float]:
    """(alpha in us, bus bandwidth in GB/s) of a published curve: ``collectives.network.fit``."""
    sizes, times_us = published.all_reduce_times(machine)
    num_ranks = published.num_gpus(machine)
    low, high = LONG_BYTES
    kept = [pair for pair in zip(sizes, times_us, strict=True) if low <= pair[0] <= high]
    fit = network.fit("all_reduce", num_ranks, *zip(*kept, strict=True))
    return fit.alpha_us, fit.bandwidth_gb_per_s * network.busbw_factor("all_reduce", num_ranks)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """GPUs of one kind in equal nodes."""

    gpu: Gpu
    """which"""
    num_gpus: int
    """all of them"""
    per_node: int = 0
    """in a node; 0: as many as a usual machine has"""
    nic_gb_per_s: float = 0.0
    """out of a node, for each GPU; 0: as a usual machine has"""
    memory_gb: float = 0.0
    """of a GPU; 0: as printed"""
    node_size: int = field(init=False)
    """GPUs of a node"""

    def __post_init__(self) -> None:
        check_whole(1, 10**6, num_gpus=self.num_gpus)
        check_whole(0, 10**4, per_node=self.per_node)
        check_real(0.0, 1e6, nic_gb_per_s=self.nic_gb_per_s, memory_gb=self.memory_gb)
        size = min(self.per_node or self.gpu.per_node, self.num_gpus)
        object.__setattr__(self, "node_size", size)
        if self.num_gpus % size:
            raise ValueError(
                f"nodes are full: num_gpus is a multiple of per_node; got {self.num_gpus} and "
                f"{size}"
            )

    def holds(self, peak_bytes: float) -> bool | str:
        """Whether a GPU holds so much, for a table; "perhaps" with less than SPARE of it left."""
        if (1 - SPARE) * self.device_bytes < peak_bytes <= self.device_bytes:
            return say("perhaps")
        return peak_bytes <= self.device_bytes

    @property
    def device_bytes(self) -> float:
        """Memory of one GPU."""
        return 1e9 * (self.memory_gb or self.gpu.memory_gb)

    @property
    def nic(self) -> float:
        """One way out of a node, for each GPU, in GB/s."""
        return self.nic_gb_per_s or self.gpu.nic_gb_per_s

    def written(self, language: str | None = None) -> str:
        """It in few words of a language; what is usual is left out."""
        language = spoken_in(language)
        told = [f"{self.num_gpus} x {self.gpu.name}"]
        if self.memory_gb:
            told.append(both("{size:g} GB of each", size=self.memory_gb)[language])
        if self.node_size != min(self.gpu.per_node, self.num_gpus):
            told.append(both("{count} a node", count=self.node_size)[language])
        if self.nic != self.gpu.nic_gb_per_s:
            told.append(both("nic {rate:g} GB/s", rate=self.nic)[language])
        return ", ".join(told)

    @property
    def num_nodes(self) -> int:
        """How many nodes."""
        return self.num_gpus // self.node_size


@dataclass(frozen=True, kw_only=True)
class Group:
    """Ranks that communicate along one axis of a layout."""

    size: int
    """how many"""
    stride: int = 1
    """how far neighbours are apart, counted in ranks"""

    def in_node(self, node_size: int) -> int:
        """How many of them one node has."""
        return max(1, min(self.size, node_size // self.stride))

    def link(
        self, cluster: Cluster, nic_share: float, primitive: str = "all_reduce"
    ) -> tuple[float, float]:
        """(alpha in us, bus bandwidth in GB/s) of a collective among them. ``nic_share``: what of
        the cards' bandwidth is reached."""
        alpha_us, inside = cluster.gpu.links.get(primitive, cluster.gpu.node_link)
        together = self.in_node(cluster.node_size)
        if together >= self.size:
            return alpha_us, inside
        doublings = log2(self.size / together)
        outside = together * cluster.nic * nic_share
        if not outside > 0:
            raise ValueError(f"of the cards some share is reached, above 0; got {nic_share!r}")
        return alpha_us + NODE_ALPHA_US * doublings, min(inside, outside)

    def us(self, primitive: str, num_bytes: float, cluster: Cluster, nic_share: float) -> float:
        """How long a collective over ``num_bytes`` takes, in microseconds: alpha and the lower
        bound of its traffic over the bus bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
        if self.size < 2 or not num_bytes:
            return 0.0
        alpha_us, bandwidth = self.link(cluster, nic_share, primitive)
        sent = num_bytes * network.busbw_factor(primitive, self.size)
        return alpha_us + sent / bandwidth / 1e3


def gpu(name: str) -> Gpu:
    """A GPU of data/hardware.csv by its name, however it is written ("A100 80 GB", "A100-80",
    "h100", "H100-SXM"). Raises ValueError, with the names there are, for one that is not there."""
    wanted = plain(name).removeprefix("nvidia").removesuffix("gb")
    names = {}
    for row in rows("hardware.csv"):
        for each in (row["name"], *row["also"].split("|")):
            names[plain(each).removesuffix("gb")] = row
    if wanted in names:
        return _gpu(names[wanted])
    begun = [each for each in names if wanted.startswith(each)]
    if begun:
        return _gpu(names[max(begun, key=len)])
    known = ", ".join(row["name"] for row in rows("hardware.csv"))
    raise ValueError(
        f"a GPU is one of data/hardware.csv: {known}; got {name!r}. A row there needs its dense "
        f"peak, its memory, their bandwidth and its links"
    )


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        name=row["name"],
        memory_gb=float(row["memory_gb"]),
        tflops=float(row["tflops_16bit"]),
        sms=int(row["sms"]),
        tflops_8bit=float(row["tflops_8bit"] or row["tflops_16bit"]),
        hbm_gb_per_s=float(row["memory_gb_per_s"]),
        node_gb_per_s=float(row["node_gb_per_s"]),
        nic_gb_per_s=float(row["nic_gb_per_s"]),
        per_node=int(row["per_node"]),
        measured=row["measured"],
        source=row["source"],
    )
