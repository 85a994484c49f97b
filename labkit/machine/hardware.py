"""What this machine is made of, as far as it tells: cores, caches and memory from sysfs, GPUs from
nvidia-smi."""

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from labkit.machine import resources
from labkit.machine.topology import Cpu, Devices, Topology, parse_topo

_SYSTEM = Path("/sys/devices/system")


def topology() -> Topology:
    """This machine. What it does not tell is left out: all is one package, each thread a core;
    nothing is raised.

    Takes some milliseconds; with GPUs as long as nvidia-smi takes, twice (a second where no driver
    is held open).
    """
    nodes = {int(folder.name[4:]): folder for folder in sorted(_SYSTEM.glob("node/node[0-9]*"))}
    return Topology(
        cpus=_cpus(nodes),
        num_usable=resources.cores(),
        node_bytes=_node_bytes(nodes),
        devices=_devices(),
    )


def _cpus(nodes: dict[int, Path]) -> tuple[Cpu, ...]:
    allowed = sorted(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    near = {}
    for node, folder in nodes.items():
        near |= dict.fromkeys(_numbers(folder / "cpulist"), node)
    whole = ("topology/package_cpus_list", "topology/core_siblings_list")
    package = _groups(allowed, whole, allowed)
    cache = _groups(allowed, ("cache/index3/shared_cpu_list", *whole), allowed)
    core = _groups(allowed, ("topology/core_cpus_list", "topology/thread_siblings_list"), [])
    return tuple(
        Cpu(
            number=cpu,
            core=core[cpu],
            cache=cache[cpu],
            node=near.get(cpu, 0),
            package=package[cpu],
        )
        for cpu in allowed
    )


def _groups(cpus: list[int], files: Iterable[str], otherwise: list[int]) -> dict[int, int]:
    """Which group each is in: the first of a cpu's ``files`` that can be read lists those in it
    with the cpu."""
    group: dict[int, int] = {}
    for cpu in cpus:
        if cpu not in group:
            listed = (_numbers(_SYSTEM / f"cpu/cpu{cpu}" / file) for file in files)
            together = next(filter(None, listed), otherwise)
            group |= dict.fromkeys([cpu, *together], len(set(group.values())))
    return group


def _node_bytes(nodes: dict[int, Path]) -> dict[int, int]:
    import psutil

    found = {}
    for node, folder in nodes.items():
        match = re.search(r"MemTotal: *(\d+) kB", resources.read_text(folder / "meminfo"))
        if match:
            found[node] = int(match[1]) * 1024
    if len(nodes) > 1 and found:
        return found
    # a virtual machine's only node does not always know of memory that was added later
    return {0: psutil.virtual_memory().total}


def _devices() -> Devices:
    listed = re.findall(
        r"^GPU (\d+): (.*?)(?: \(UUID.*)?$", _said("nvidia-smi", "-L"), re.MULTILINE
    )
    models = {f"GPU{number}": model for number, model in listed}
    try:
        devices = parse_topo(_said("nvidia-smi", "topo", "-m"))
    except ValueError:  # no GPU, or a driver that does not say, as in WSL
        names = tuple(models)
        devices = Devices(
            names=names,
            links=tuple(_unknown_ways(name, names) for name in names),
            nodes=(None,) * len(names),
            models=("",) * len(names),
        )
    both = zip(devices.names, devices.models, strict=True)
    return replace(devices, models=tuple(model or models.get(name, "") for name, model in both))


def _unknown_ways(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """A device's ways to all devices, where nobody tells: itself and unknown ones."""
    return tuple("X" if name == other else "?" for other in names)


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _numbers(path: Path) -> list[int]:
    """What a list of sysfs names: 0-3,8 is 0, 1, 2, 3, 8."""
    numbers = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", resources.read_text(path)):
        numbers += range(int(first), int(last or first) + 1)
    return numbers
