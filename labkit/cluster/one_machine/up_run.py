"""The practice cluster comes up, says how it is, and goes down."""

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from labkit import tables
from labkit.cluster.one_machine import network_run, plan, slurm_run
from labkit.cluster.one_machine.plan import Layout
from labkit.cluster.one_machine.things_run import Things, remove
from labkit.launching.nodes import practice
from labkit.launching.nodes.places import Hosts, Slurm
from labkit.launching.nodes.practice import Node, Practice
from labkit.words import say

NONE_IS_UP = "no practice cluster is up. python -m labkit cluster up starts one."


def up(layout: Layout) -> Practice:
    """Starts a practice cluster. Raises ValueError where one is up, and for what this machine can't
    do; then nothing is left."""
    if practice.read():
        raise ValueError(
            f"one practice cluster at a time; the record {practice.record_file()} tells of one. "
            "First: python -m labkit cluster down"
        )
    chosen = _fitted(layout)
    folder = Path(tempfile.mkdtemp(prefix="labkit-cluster-"))
    folder.rmdir()  # things makes it, once it is noted
    things = Things(folder)
    try:
        nodes, login = _machines(things, chosen)
        if not chosen.plain:
            slurm_run.start(things, chosen, nodes, login)
        found = Practice(
            folder=folder,
            nodes=tuple(nodes),
            ranks_per_node=chosen.ranks_per_node,
            login=login,
            slurm=not chosen.plain,
            namespaces=not chosen.loopback,
            link=chosen.link,
        )
        things.finish(found)
    except BaseException:
        down()
        raise
    return found


def renew(
    *, nodes: int = 2, ranks_per_node: int = 2, bandwidth: str = "", latency: str = ""
) -> tables.Table:
    """Takes down the practice cluster that is up, if any, and starts another: with this link
    ("200Mbit", "1ms") and with Slurm, or, as far as this machine can't have them, without; what is
    left out is printed. Returns its ``status``. Raises ValueError for what can be none."""
    layout = Layout(
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        bandwidth_bit_per_s=plan.bandwidth(bandwidth) if bandwidth else None,
        latency_s=plan.latency(latency) if latency else 0.0,
    )
    if layout.has_link and network_run.obstacle():
        print(say("Without a link of {link} between the nodes.", link=layout.link))
        layout = replace(layout, bandwidth_bit_per_s=None, latency_s=0.0)
    down()
    up(layout)
    return status()


def place() -> Slurm | Hosts:
    """Where a launch goes (``on=``): to the practice cluster's Slurm, or, where it has none, to its
    nodes by torchrun. Raises ValueError where none is up."""
    found = practice.current()
    if found is None:
        raise ValueError(NONE_IS_UP)
    return Slurm(nodes=len(found.nodes)) if found.slurm else Hosts()


def _fitted(layout: Layout) -> Layout:
    """What this machine can do of it. Raises ValueError where what is asked for can't be had."""
    if not layout.loopback and (why := network_run.obstacle()):
        if layout.has_link:
            raise ValueError(f"a bandwidth or latency needs network namespaces: {why}")
        print(say("The nodes share this machine's loopback: {why}", why=why))
        layout = replace(layout, loopback=True)
    if not layout.plain and (why := slurm_run.obstacle()):
        print(why)
        print(say("Without Slurm: nodes for torchrun only."))
        layout = replace(layout, plain=True)
    return layout


def _machines(things: Things, layout: Layout) -> tuple[list[Node], tuple[str, ...]]:
    if not layout.loopback:
        return network_run.build(things, layout)
    nodes = [Node(name=name, address="127.0.0.1", interface="lo") for name in layout.names()]
    return nodes, ()


def down() -> bool:
    """Removes the practice cluster, whole or half made; whether there was one. Raises ValueError
    where something stays."""
    content = practice.read()
    if not content:
        return False
    left = remove(content["things"])
    if left:
        raise ValueError(f"all of a practice cluster is removed; {', '.join(left)} stayed. Again?")
    practice.record_file().unlink(missing_ok=True)
    return True


def status() -> tables.Table:
    """The nodes of the practice cluster, a row each. Raises ValueError where none is up."""
    found = practice.current()
    if found is None:
        half = " It came up only half: python -m labkit cluster down" if practice.read() else ""
        raise ValueError(f"{NONE_IS_UP}{half}")
    states = _states(found)
    rows = [
        {
            "node": node.name,
            "address": node.address,
            "interface": node.interface,
            "ranks": found.ranks_per_node,
            "slurm": states.get(node.name, "-"),
        }
        for node in found.nodes
    ]
    title = say("practice cluster: {num} nodes, {link}", num=len(rows), link=found.link)
    return tables.table(rows, title=title)


def _states(found: Practice) -> dict[str, str]:
    """What Slurm says of each node."""
    if not found.slurm:
        return {}
    line = f"{shutil.which('sinfo')} --noheader --Node --format='%N %T'"
    asked = [*found.login, line] if found.login else ["sh", "-c", line]
    environ = {**found.environment(), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, env=environ)
    return dict(row.split() for row in done.stdout.splitlines())
