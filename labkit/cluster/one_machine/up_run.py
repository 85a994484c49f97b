"""The practice cluster comes up, says how it is, and goes down."""

import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from labkit import tables
from labkit.cluster.one_machine import network_run, slurm_run
from labkit.cluster.one_machine.plan import Layout
from labkit.cluster.one_machine.things_run import Things, remove
from labkit.launching.nodes import practice
from labkit.launching.nodes.practice import Node, Practice
from labkit.words import say


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
        raise ValueError(
            f"no practice cluster is up. python -m labkit cluster up starts one.{half}"
        )
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
