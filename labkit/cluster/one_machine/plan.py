"""What a practice cluster is to be, and the texts that make it so: addresses, slurm.conf, hosts,
and the script that runs a line on a node. Pure: nothing is started here."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from labkit.units import check_real, check_whole

BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LOGIN = "login"
"""the host where jobs are submitted, and Slurm's controller runs"""
CONTROL = "10.77.0"
"""the network of Slurm and, where no delay is asked for, of the ranks"""
DATA = "10.78.0"
"""the network that our relay carries, where there is a delay"""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A practice cluster as it is asked for. Raises ValueError for what can be none."""

    nodes: int = 2
    """how many machines"""
    ranks_per_node: int = 2
    """how many ranks each shall have room for"""
    bandwidth_bit_per_s: float | None = None
    """how much a node sends at most, in bit/s; None: as much as the machine can"""
    latency_s: float = 0.0
    """how long any packet takes from node to node, in seconds"""
    plain: bool = False
    """whether to leave out Slurm"""
    loopback: bool = False
    """whether to leave out network namespaces: all nodes share this machine's loopback"""

    def __post_init__(self) -> None:
        check_whole(1, 8, nodes=self.nodes)
        check_whole(1, 64, ranks_per_node=self.ranks_per_node)
        check_real(0.0, 10.0, latency_s=self.latency_s)
        if self.bandwidth_bit_per_s is not None:
            check_real(1e4, 1e12, bandwidth_bit_per_s=self.bandwidth_bit_per_s)
        if self.loopback and self.has_link:
            raise ValueError(
                "a bandwidth or latency needs a network between the nodes; on the loopback there "
                "is none. Leave loopback out, or the link"
            )

    @property
    def has_link(self) -> bool:
        """Whether a bandwidth or a latency is stated."""
        return self.bandwidth_bit_per_s is not None or self.latency_s > 0

    @property
    def link(self) -> str:
        """What joins the nodes, in words."""
        if self.loopback:
            return "loopback"
        rate = self.bandwidth_bit_per_s
        words = ["as fast as the machine" if rate is None else f"{rate / 1e6:g} Mbit/s"]
        if self.latency_s:
            words.append(f"{self.latency_s * 1e3:g} ms")
        return ", ".join(words)

    def names(self) -> list[str]:
        """The nodes' host names."""
        return [f"node{index}" for index in range(self.nodes)]

    def address(self, node: int, network: str = CONTROL) -> str:
        """A node's address; the login host is the one after the last."""
        return "127.0.0.1" if self.loopback else f"{network}.{node + 1}"

    def data_address(self, node: int) -> str:
        """Where a node's ranks are reached."""
        return self.address(node, DATA if self.latency_s else CONTROL)

    @property
    def interface(self) -> str:
        """The network interface of the ranks."""
        if self.loopback:
            return "lo"
        return "wire0" if self.latency_s else "eth0"


def bandwidth(text: str) -> float:
    """ "100Mbit" in bit/s. Raises ValueError for what is none."""
    return _quantity(text, BITS, "a bandwidth", "100Mbit")


def latency(text: str) -> float:
    """ "5ms" in seconds. Raises ValueError for what is none."""
    return _quantity(text, SECONDS, "a latency", "5ms")


def _quantity(text: str, units: dict[str, float], what: str, example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)(?:/s)?", str(text).strip().lower())
    if not found or found[2] not in units:
        raise ValueError(
            f"{what} is a number with {', '.join(units)} behind it; got {text!r}. Write {example}"
        )
    return float(found[1]) * units[found[2]]


def hosts(layout: Layout) -> str:
    """The file that names the hosts, each by the address of its ranks."""
    lines = ["127.0.0.1 localhost", f"{layout.address(layout.nodes)} {LOGIN}"]
    lines += [f"{layout.data_address(node)} {name}" for node, name in enumerate(layout.names())]
    return "\n".join(lines) + "\n"


def on_node(name: str, namespace: str, hosts_file: Path) -> str:
    """A script that runs one line of shell in a network namespace, under a host name of its own."""
    inside = (
        f"hostname {name} && mount --bind {shlex.quote(str(hosts_file))} /etc/hosts && "
        'exec sh -c "$1"'
    )
    return (
        f"#!/bin/sh\n# runs one line of shell on {name}\n"
        f"exec nsenter --net=/run/netns/{namespace} unshare --uts --mount sh -c "
        f'{shlex.quote(inside)} sh "$1"\n'
    )


def slurm_conf(
    layout: Layout, folder: Path, *, host: str, user: str, cores: int, memory_mib: int
) -> str:
    """The configuration of a Slurm whose files all lie in ``folder``. ``host``: this machine's
    name, which all nodes have on the loopback; ``user``: who runs it."""
    control = host if layout.loopback else LOGIN
    lines = [
        "ClusterName=practice",
        f"SlurmctldHost={control}({layout.address(layout.nodes)})",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={folder}/munge.socket",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "SlurmdTimeout=20",
        "KillWait=2",
        "MinJobAge=300",
        "SchedulerParameters=batch_sched_delay=0",  # else jobs wait up to 3 s
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldPort={_port(layout, 6817)}",
    ]
    if layout.loopback:
        lines.append("CommunicationParameters=NoCtldInAddrAny,NoInAddrAny")
    for node, name in enumerate(layout.names()):
        port = _port(layout, 6900) + node if layout.loopback else 6818
        lines.append(
            f"NodeName={name} NodeHostname={host if layout.loopback else name} "
            f"NodeAddr={layout.address(node)} Port={port} CPUs={max(cores, layout.ranks_per_node)} "
            f"RealMemory={memory_mib}"
        )
    names = ",".join(layout.names())
    lines.append(f"PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def _port(layout: Layout, usual: int) -> int:
    """Slurm's usual port in a network of its own; on the shared loopback one beside it."""
    return usual + 10000 if layout.loopback else usual
