"""What is joined to what inside one machine: cores with the caches and the memory they share, GPUs
and network cards with the way from each to each. Only words; ``hardware`` asks this machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

WAYS = ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""The words of ``nvidia-smi topo -m``, the nearest first; X is the device itself, NV12 a bond of 12
NVLinks. What the others mean stands in ``style``."""


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """A hardware thread. Groups are counted from 0 in the order of the system's numbers."""

    number: int
    """the system's number for it"""
    core: int
    """the core that it is a thread of"""
    cache: int
    """the group that shares a third-level cache, or the package where the system names none"""
    node: int
    """the NUMA node whose memory is near: the system's number"""
    package: int
    """the chip in its socket"""


@dataclass(frozen=True, kw_only=True)
class Devices:
    """GPUs and network cards, and the way between each two."""

    names: tuple[str, ...] = ()
    """GPU0, GPU1, ..., then NIC0, ... (older drivers: mlx5_0, ...)"""
    links: tuple[tuple[str, ...], ...] = ()
    """links[i][j]: the way from device i to j, a word of WAYS (NV with its number), or "?" for
    anything else"""
    nodes: tuple[int | None, ...] = ()
    """the NUMA node that each is near to; None where nothing says, as for network cards"""
    models: tuple[str, ...] = ()
    """what each is: "NVIDIA A100-SXM4-80GB", or the interface of a network card; "" where nothing
    says"""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """One machine."""

    cpus: tuple[Cpu, ...]
    """the hardware threads that this process may run on"""
    num_usable: int
    """how many of them it can keep busy: fewer where a cgroup has a quota"""
    node_bytes: Mapping[int, int]
    """NUMA node -> its memory, whoever may use it"""
    devices: Devices = field(default=Devices())
    """the GPUs and network cards"""

    @property
    def num_gpus(self) -> int:
        """How many GPUs the driver sees."""
        return sum(name.startswith("GPU") for name in self.devices.names)


def parse_topo(text: str) -> Devices:
    """What ``nvidia-smi topo -m`` printed. Raises ValueError for a text without its matrix, or with
    a part of it."""
    lines = [line for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines() if line.strip()]
    head = next(
        (number for number, line in enumerate(lines) if re.match(r"\s*GPU\d+\s", line)), len(lines)
    )
    names = lines[head].split("CPU Affinity")[0].split() if head < len(lines) else []
    rows = {cells[0]: cells[1:] for cells in map(str.split, lines[head + 1 :])}
    if not names or any(len(rows.get(name, ())) < len(names) for name in names):
        raise ValueError(
            "`nvidia-smi topo -m` prints a row and a column for each device; got "
            + repr(text[:200])
        )
    models = dict(re.findall(r"^\s*(NIC\d+): *(\S+)", text, re.MULTILINE))
    near = [rows[name][len(names) + 1 :][:1] for name in names]
    return Devices(
        names=tuple(names),
        links=tuple(_known(rows[name][: len(names)]) for name in names),
        nodes=tuple(int(cell[0]) if cell and cell[0].isdecimal() else None for cell in near),
        models=tuple(models.get(name, "") for name in names),
    )


def _known(ways: list[str]) -> tuple[str, ...]:
    """Words of WAYS as they are, anything else as "?"."""
    return tuple(way if way.rstrip("0123456789") in WAYS else "?" for way in ways)
