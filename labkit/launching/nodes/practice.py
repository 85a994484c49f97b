"""The practice cluster of this machine, as its record tells: ``python -m labkit cluster up`` writes
it, launches read it.

The record is one JSON file in ``$LABKIT_HOME``, else in ``~/.labkit``. Under ``things`` it lists
what was made for the cluster, each noted before it was made.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of the practice cluster."""

    name: str
    """its host name"""
    address: str
    """where the others reach it"""
    interface: str
    """the network interface that has this address"""
    enter: tuple[str, ...] = ()
    """the command that runs one line of shell there; empty: it is this machine itself"""


@dataclass(frozen=True, kw_only=True)
class Practice:
    """A practice cluster that is up."""

    folder: Path
    """where its files are: configuration, logs, sockets"""
    nodes: tuple[Node, ...]
    """its machines"""
    ranks_per_node: int
    """how many ranks each has room for"""
    login: tuple[str, ...] = ()
    """the command that runs one line of shell where jobs are submitted; empty: here"""
    slurm: bool = False
    """whether Slurm runs on it"""
    namespaces: bool = False
    """whether each node has a network of its own"""
    link: str = ""
    """what joins its nodes, in words"""

    def environment(self) -> dict[str, str]:
        """What commands need to find it, and gloo to find its network."""
        interface = self.nodes[0].interface
        found = {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface}
        # torch's store warns that it can't look its peers' names up; nothing there could tell them
        found["TORCH_CPP_LOG_LEVEL"] = "ERROR"
        if self.slurm:
            found["SLURM_CONF"] = str(self.folder / "slurm.conf")
        return found

    def to_json(self) -> dict:
        """As the record has it."""
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_json(cls, content: dict) -> "Practice":
        """The cluster that ``to_json`` wrote."""
        nodes = tuple(Node(**{**each, "enter": tuple(each["enter"])}) for each in content["nodes"])
        login = tuple(content["login"])
        folder = Path(content["folder"])
        return cls(**{**content, "nodes": nodes, "login": login, "folder": folder})


def record_file() -> Path:
    """The record. There is one practice cluster for each such folder."""
    return Path(os.environ.get("LABKIT_HOME") or "~/.labkit").expanduser() / "cluster.json"


def read() -> dict:
    """The record: ``things``, and ``cluster`` once it is up. Empty where there is none."""
    try:
        return json.loads(record_file().read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(
            f"the practice cluster's record is JSON; {record_file()} is not ({error}). Its things "
            "are named with labkit in front (ip netns list): remove them, then the file"
        ) from error


def current() -> Practice | None:
    """The practice cluster that is up; None where there is none."""
    content = read().get("cluster")
    return Practice.from_json(content) if content else None
