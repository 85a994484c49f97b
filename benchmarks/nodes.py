"""What does it bring that torchrun forks a node's ranks, and starts no interpreter for each?

    python benchmarks/nodes.py [--json] [--runs 5] [--ranks 4]

Both start the same function (one all-reduce) on the two nodes of the practice cluster, in turn, so
that whatever else the machine does falls on both. Seconds are those of ``lab.launch``, from call to
result (median over the runs); a node's torchrun loads torch, and each interpreter loads it again.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from report import tell

import labkit as lab
from labkit import cluster
from labkit.launching.nodes import places

WAYS = {
    "forked": (places.FORKED, places.WORKER),
    "an interpreter each": ("-m", "labkit.launching.nodes.worker"),
}


def added() -> float:
    """What a rank runs."""
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def rows(num_ranks: int, num_runs: int) -> Iterator[dict]:
    """One per launcher. The first launch of each is not counted."""
    cluster.renew()
    launchers = {"torchrun": lab.Hosts()}
    if isinstance(cluster.place(), lab.Slurm):
        launchers["slurm"] = lab.Slurm(nodes=2)
    try:
        for name, on in launchers.items():
            took_s = {way: [] for way in WAYS}
            for _ in range(1 + num_runs):
                for way, took in took_s.items():
                    places.FORKED, places.WORKER = WAYS[way]
                    start = time.monotonic()
                    run = lab.launch(added, ranks=num_ranks, on=on)
                    took.append(time.monotonic() - start)
                    assert set(run.results) == {float(num_ranks)}
            forked_s, each_s = (statistics.median(took[1:]) for took in took_s.values())
            yield {
                "launcher": name,
                "ranks": num_ranks,
                "runs": num_runs,
                "forked_s": round(forked_s, 2),
                "interpreter_each_s": round(each_s, 2),
                "ratio": round(each_s / forked_s, 2),
            }
    finally:
        cluster.down()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    tell(rows(options.ranks, options.runs), options.json)


if __name__ == "__main__":
    main()
