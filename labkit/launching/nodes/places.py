"""Which machines a launch is for: ``lab.launch(train, ranks=4, on=lab.Slurm(nodes=2))``."""

import math
import os
import shlex
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labkit.launching.nodes import practice
from labkit.launching.nodes.practice import Practice
from labkit.units import check_real, check_whole

REPOSITORY = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("worker.py")
FORKED = "--start-method=fork --run-path"
"""torchrun, which has loaded torch, forks the node's ranks: torch is loaded once on each node"""
NODE_NAME = "LABKIT_NODE_NAME"
"""the variable that tells a rank its node's name"""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Nodes that Slurm gives: the practice cluster's where it is up, else those of the cluster
    whose ``sbatch`` is here. The run's folder must be seen by all of them."""

    nodes: int = 2
    """how many nodes"""
    options: tuple[str, ...] = ()
    """further lines for sbatch: "--partition=long\""""
    setup: tuple[str, ...] = ()
    """lines of shell before torchrun: "module load cuda\""""
    gpus_per_node: int = 0
    """how many GPUs each node gives; 0: the ranks compute on CPUs"""
    minutes: float = 10.0
    """how long the job may take"""
    folder: Path | None = None
    """where runs keep their files; None: ``~/.labkit/runs``, or a temporary one for practice"""

    def __post_init__(self) -> None:
        check_whole(1, 10**5, nodes=self.nodes)
        check_whole(0, 64, gpus_per_node=self.gpus_per_node)
        check_real(1 / 60, 1e6, minutes=self.minutes)
        for option in self.options:
            if not option.startswith("-") or "\n" in option:
                raise ValueError(
                    f"an option of sbatch is one line, a dash in front; got {option!r}: write "
                    "options=('--partition=long',)"
                )

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.nodes

    @property
    def practice(self) -> Practice | None:
        """The practice cluster, if it is what this means."""
        found = practice.current()
        return found if found and found.slurm else None

    def script(self, fn: Callable, /, *args: object, ranks: int | None = None) -> str:
        """The text for ``sbatch`` that runs ``fn(*args)`` on ``ranks`` ranks (default: as many per
        node as the practice cluster has room for, else one). The function is packed into a folder
        of its own, which the text names and which stays."""
        from labkit.launching.nodes import spread

        return spread.script(self, fn, args, ranks)

    def batch(self, folder: Path, ranks: int) -> str:
        """The text for a run whose folder is ready."""
        per_node = ranks // self.nodes
        cluster = self.practice
        settings = [
            f"--job-name={folder.name}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={per_node}",
            f"--time={math.ceil(self.minutes)}",
            f"--output={folder}/launcher.txt",
            *self.options,
        ]
        if self.gpus_per_node:
            settings.insert(4, f"--gpus-per-node={self.gpus_per_node}")
        first = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
        if cluster and not cluster.namespaces:
            first = cluster.nodes[0].address
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {each}" for each in settings),
            "",
            f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
            f"export PYTHONPATH={shlex.quote(_python_path())}",
            f"export OMP_NUM_THREADS={threads(cluster, ranks)}",
            f"export WORKER={shlex.quote(str(WORKER))}",
            *self.setup,
            "# the first node is where all ranks meet, at a port of this job's own",
            f"export MASTER_ADDR={first}",
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            "# one torchrun on each node; it forks the node's ranks, so torch is loaded once",
            "srun --kill-on-bad-exit=1 bash -c 'torchrun \\",
            f"    --nnodes={self.nodes} --nproc-per-node={per_node} --node-rank=$SLURM_NODEID \\",
            "    --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT \\",
            f'    {FORKED} "$WORKER" {folder}\'',
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """Machines that are reached by a command, torchrun on each: ssh's, or the practice cluster's
    nodes."""

    names: tuple[str, ...] = ()
    """the machines; none: the practice cluster's nodes"""
    through: str = "ssh {host}"
    """the command that runs one line of shell on a machine"""
    port: int = 0
    """where ranks meet, on the first machine; 0: a free one of this machine's"""
    gpus_per_node: int = 0
    """how many GPUs each gives; 0: the ranks compute on CPUs"""
    folder: Path | None = None
    """where runs keep their files, seen by all machines; None: as for ``Slurm``"""

    def __post_init__(self) -> None:
        check_whole(0, 65535, port=self.port)
        check_whole(0, 64, gpus_per_node=self.gpus_per_node)
        if isinstance(self.names, str) or not all(isinstance(each, str) for each in self.names):
            raise ValueError(f"hosts are names, ('a', 'b'); got {self.names!r}")
        if self.names and "{host}" not in self.through:
            raise ValueError(
                f"through is a command with {{host}} in it; got {self.through!r}: 'ssh {{host}}'"
            )

    @property
    def num_nodes(self) -> int:
        """How many machines there are. Raises ValueError where none is named, and none is up."""
        return len(self.addresses())

    @property
    def practice(self) -> Practice | None:
        """The practice cluster, if it is what this means."""
        return None if self.names else practice.current()

    def addresses(self) -> list[str]:
        """Where the machines are reached by one another."""
        if self.names:
            return list(self.names)
        cluster = self.practice
        if cluster is None:
            raise ValueError(
                "hosts are named, or are those of the practice cluster; none is named, and none is "
                "up: Hosts(names=('a', 'b')), or python -m labkit cluster up"
            )
        return [node.address for node in cluster.nodes]

    def commands(self, folder: Path, ranks: int, port: int) -> list[list[str]]:
        """The command for each machine, for a run whose folder is ready."""
        addresses = self.addresses()
        lines = []
        for index in range(len(addresses)):
            torchrun = [
                *(sys.executable, "-m", "torch.distributed.run"),
                f"--nnodes={len(addresses)}",
                f"--nproc-per-node={ranks // len(addresses)}",
                f"--node-rank={index}",
                f"--master-addr={addresses[0]}",
                f"--master-port={port}",
                *(*FORKED.split(), str(WORKER), str(folder)),
            ]
            lines.append([*self.enter(index), self.line(torchrun, ranks, index)])
        return lines

    def enter(self, index: int) -> list[str]:
        """The command that runs one line of shell on a machine."""
        cluster = self.practice
        if cluster is not None:
            return list(cluster.nodes[index].enter) or ["sh", "-c"]
        return shlex.split(self.through.format(host=self.names[index]))

    def line(self, command: list[str], ranks: int, index: int) -> str:
        """A command as one line of shell, with the environment that it needs over there."""
        cluster = self.practice
        told = {"PYTHONPATH": _python_path(), "OMP_NUM_THREADS": str(threads(cluster, ranks))}
        if cluster:
            told[NODE_NAME] = cluster.nodes[index].name
        settings = [f"{name}={shlex.quote(value)}" for name, value in told.items()]
        # the shell gives way to torchrun, so that a signal to it is one to torchrun
        return " ".join(["exec env", *settings, shlex.join(command)])


def host_name() -> str:
    """What this node is called: by the practice cluster, by Slurm, else by its system. Practice
    nodes on one loopback share the system's name."""
    known = os.environ.get(NODE_NAME) or os.environ.get("SLURMD_NODENAME")
    return known or socket.gethostname()


def _python_path() -> str:
    """Where the nodes find labkit, and what is found here."""
    found = [str(REPOSITORY), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(filter(None, found)))


def threads(cluster: Practice | None, ranks: int) -> int:
    """Threads for each rank: of a practice cluster's, all on this machine, a fair share."""
    from labkit.machine import resources

    return resources.threads(ranks) if cluster else 1
