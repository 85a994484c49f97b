"""Debian's own Slurm on a practice cluster: munge, one controller, a slurmd for each node. All of
it lies in the cluster's folder; nothing is written to /etc."""

import getpass
import os
import secrets
import shlex
import shutil
import socket
import subprocess

from labkit.cluster.one_machine import plan
from labkit.cluster.one_machine.plan import Layout
from labkit.cluster.one_machine.things_run import Things, wait_until
from labkit.launching.nodes.practice import Node
from labkit.machine import resources
from labkit.words import say

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "squeue", "sinfo")


def obstacle() -> str:
    """Why Slurm can't be started here; "" where it can."""
    missing = [name for name in PROGRAMS if _find(name) is None]
    if not missing:
        return ""
    return say(
        "Slurm is not installed ({missing} not found): apt-get install slurm-wlm munge",
        missing=", ".join(missing),
    )


def _find(name: str) -> str | None:
    """A program's path, also where /usr/sbin is not on the path."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def start(things: Things, layout: Layout, nodes: list[Node], login: tuple[str, ...]) -> None:
    """Starts it, and waits until every node is idle."""
    folder = things.folder
    for name in ("state", *(f"spool-{each.name}" for each in nodes)):
        (folder / name).mkdir()
    conf = plan.slurm_conf(
        layout,
        folder,
        host=socket.gethostname().split(".")[0],
        user=getpass.getuser(),
        cores=resources.cores(),
        memory_mib=int(resources.total_bytes() / 2**20 / 2),
    )
    (folder / "slurm.conf").write_text(conf)
    # no limits are set, and not every container has cgroups that one may write to
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    _start_munge(things)
    conf_path = str(folder / "slurm.conf")
    _start_on(things, "slurmctld", login, [_find("slurmctld"), "-D", "-f", conf_path])
    for node in nodes:
        command = [_find("slurmd"), "-D", "-f", conf_path, "-N", node.name]
        _start_on(things, f"slurmd-{node.name}", node.enter, command)
    asked = list(login) or ["sh", "-c"]
    line = f"{shlex.quote(_find('sinfo'))} --noheader --Node --format=%T"
    wait_until(lambda: _idle(asked, line, conf_path) >= len(nodes), 30, "every node becomes idle")


def _idle(asked: list[str], line: str, conf: str) -> int:
    """How many nodes are idle, as Slurm tells."""
    environ = {**os.environ, "SLURM_CONF": conf}
    done = subprocess.run([*asked, line], capture_output=True, text=True, env=environ, timeout=30)
    return done.stdout.split().count("idle")


def _start_munge(things: Things) -> None:
    """The daemon that vouches for who sends what, with a key and a socket of this cluster alone."""
    folder = things.folder
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    own = {
        "key-file": key,
        "socket": folder / "munge.socket",
        "pid-file": folder / "munge.pid",
        "log-file": folder / "munge.log",
        "seed-file": folder / "munge.seed",
    }
    options = [f"--{name}={path}" for name, path in own.items()]
    things.start("munged", [_find("munged"), "--foreground", "--force", *options])
    socket_file = folder / "munge.socket"
    wait_until(socket_file.exists, 10, "munged opens its socket")


def _start_on(things: Things, name: str, enter: tuple[str, ...], command: list[str]) -> None:
    """Starts a daemon on a node."""
    line = [*enter, "exec " + shlex.join(command)] if enter else command
    things.start(name, line, SLURM_CONF=str(things.folder / "slurm.conf"))
