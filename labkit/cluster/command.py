"""``python -m labkit cluster``: up, status, slow, down."""

import argparse

from labkit.cluster.one_machine import network_run, plan, up_run
from labkit.cluster.one_machine.plan import Layout
from labkit.words import say

ACTIONS = ("up", "status", "slow", "down")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What to do, and what the cluster is to be like."""
    parser.add_argument("action", choices=ACTIONS, help="what to do")
    parser.add_argument("--nodes", type=int, default=2, help="how many machines (%(default)s)")
    parser.add_argument(
        "--ranks-per-node", type=int, default=2, help="how many ranks each (%(default)s)"
    )
    parser.add_argument("--bandwidth", help="how much a node sends at most: 100Mbit")
    parser.add_argument("--latency", help="how long any packet takes between nodes: 5ms")
    parser.add_argument("--plain", action="store_true", help="without Slurm, for torchrun only")
    parser.add_argument(
        "--loopback", action="store_true", help="without network namespaces, on the loopback"
    )
    parser.add_argument("--node", type=int, default=1, help="whose link gets slow (%(default)s)")


def main(chosen: argparse.Namespace) -> int:
    """Does one action; 1 where there was nothing to take down."""
    if chosen.action == "down":
        gone = up_run.down()
        print(say("the practice cluster is gone") if gone else say("there is no practice cluster"))
        return 0 if gone else 1
    if chosen.action == "slow":
        network_run.slow(chosen.node, chosen.bandwidth or "10Mbit")
    if chosen.action == "up":
        up_run.up(_layout(chosen))
    print(up_run.status())
    return 0


def _layout(chosen: argparse.Namespace) -> Layout:
    return Layout(
        nodes=chosen.nodes,
        ranks_per_node=chosen.ranks_per_node,
        bandwidth_bit_per_s=plan.bandwidth(chosen.bandwidth) if chosen.bandwidth else None,
        latency_s=plan.latency(chosen.latency) if chosen.latency else 0.0,
        plain=chosen.plain,
        loopback=chosen.loopback,
    )
