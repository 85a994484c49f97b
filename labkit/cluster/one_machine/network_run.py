"""The network of a practice cluster: a namespace for each node and one for the login host, which is
also their switch. Nothing of it touches the machine's own network.

A bandwidth alone is kept by the kernel (a token bucket, ``tbf``); with a latency our relay carries
the packets (``relay_run``), for not every kernel can delay them.
"""

import json
import os
import secrets
import shutil
import signal
import stat
import sys
from pathlib import Path

from labkit.cluster.one_machine import plan
from labkit.cluster.one_machine.plan import CONTROL, DATA, LOGIN, Layout
from labkit.cluster.one_machine.things_run import Things, namespaces, remove, run, wait_until
from labkit.launching.nodes import practice
from labkit.launching.nodes.practice import Node

WIRE = "wire.json"
"""the relay's settings, in the cluster's folder"""
NAMESPACES = "namespaces.json"
"""host name -> namespace, in the cluster's folder"""


def obstacle() -> str:
    """Why network namespaces can't be made here; "" where they can."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces need Linux and root"
    missing = [name for name in ("ip", "tc", "nsenter", "unshare") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} not found (apt-get install iproute2 util-linux)"
    name = f"labkit-{secrets.token_hex(2)}-try"
    try:
        run("ip", "netns", "add", name)
    except ValueError as error:
        return str(error)
    finally:
        remove([["namespace", name]] if name in namespaces() else [])
    return ""


def build(things: Things, layout: Layout) -> tuple[list[Node], tuple[str, ...]]:
    """Makes the network. Returns the nodes, and what runs a line on the login host."""
    folder = things.folder
    ident = secrets.token_hex(2)
    (folder / "hosts").write_text(plan.hosts(layout))
    spaces = {name: f"labkit-{ident}-{name}" for name in (LOGIN, *layout.names())}
    (folder / NAMESPACES).write_text(json.dumps(spaces))
    enter = {}
    for name, space in spaces.items():
        things.note("namespace", space)
        run("ip", "netns", "add", space)
        run("ip", "-n", space, "link", "set", "lo", "up")
        script = folder / f"on-{name}"
        script.write_text(plan.on_node(name, space, folder / "hosts"))
        script.chmod(stat.S_IRWXU)
        enter[name] = (str(script),)
    _switch(layout, spaces)
    if layout.latency_s:
        _start_relay(things, layout, spaces)
    elif layout.bandwidth_bit_per_s is not None:
        for name in layout.names():
            _limit(spaces[name], layout.bandwidth_bit_per_s)
    nodes = [
        Node(
            name=name,
            address=layout.data_address(index),
            interface=layout.interface,
            enter=enter[name],
        )
        for index, name in enumerate(layout.names())
    ]
    return nodes, enter[LOGIN]


def _switch(layout: Layout, spaces: dict[str, str]) -> None:
    """Joins the nodes: a bridge on the login host, and a cable from each node to it."""
    login = spaces[LOGIN]
    run("ip", "-n", login, "link", "add", "br0", "type", "bridge")
    run("ip", "-n", login, "addr", "add", f"{CONTROL}.{layout.nodes + 1}/24", "dev", "br0")
    run("ip", "-n", login, "link", "set", "br0", "up")
    for index, name in enumerate(layout.names()):
        space = spaces[name]
        cable = ["type", "veth", "peer", "name", f"port{index}", "netns", login]
        run("ip", "link", "add", "eth0", "netns", space, *cable)
        run("ip", "-n", space, "addr", "add", f"{layout.address(index)}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        run("ip", "-n", login, "link", "set", f"port{index}", "master", "br0", "up")


def _limit(space: str, bit_per_s: float) -> None:
    """A node sends no more than that. The bucket holds 4 ms, and at least one large packet."""
    burst_bytes = max(65536, int(bit_per_s / 8 * 0.004))
    limit = ["rate", f"{int(bit_per_s)}bit", "burst", str(burst_bytes), "latency", "100ms"]
    run("tc", "-n", space, "qdisc", "replace", "dev", "eth0", "root", "tbf", *limit)


def _start_relay(things: Things, layout: Layout, spaces: dict[str, str]) -> None:
    """The process that carries the nodes' packets, in time."""
    rate = layout.bandwidth_bit_per_s
    wire = {
        "spaces": [spaces[name] for name in layout.names()],
        "network": DATA,
        "bit_per_s": [rate] * layout.nodes,
        "delay_s": layout.latency_s,
    }
    (things.folder / WIRE).write_text(json.dumps(wire))
    command = [
        sys.executable,
        "-m",
        "labkit.cluster.one_machine.relay_run",
        str(things.folder / WIRE),
    ]
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    relay = things.start("relay", command, PYTHONPATH=path)
    ready = things.folder / "relay.ready"
    wait_until(lambda: ready.exists() or relay.poll() is not None, 15, "the relay starts")
    if not ready.exists():
        raise ValueError(f"the relay needs /dev/net/tun; it says:\n{things.last_words('relay')}")
    for name in layout.names():
        # one packet per message's part, as large networks have them
        run("ip", "-n", spaces[name], "link", "set", "wire0", "mtu", "9000", "txqueuelen", "4000")


def slow(node: int, bandwidth: str) -> None:
    """Gives one node of the practice cluster a slower (or faster) link: "10Mbit". Raises ValueError
    where there is none with a network of its own."""
    found = practice.current()
    if found is None or not found.namespaces or not 0 <= node < len(found.nodes):
        raise ValueError(
            f"a link is changed on a practice cluster with network namespaces; node {node} of it "
            "is not there. python -m labkit cluster up makes one, as root"
        )
    rate = plan.bandwidth(bandwidth)
    wire = found.folder / WIRE
    if not wire.exists():
        spaces = json.loads((found.folder / NAMESPACES).read_text())
        _limit(spaces[found.nodes[node].name], rate)
        return
    content = json.loads(wire.read_text())
    content["bit_per_s"][node] = rate
    draft = wire.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.replace(wire)
    (pid,) = [what[0] for kind, *what in practice.read()["things"] if what[-1] == "relay"]
    os.kill(pid, signal.SIGHUP)
