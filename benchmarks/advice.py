"""How often is the first advice right, and does the cure bring what was predicted?

    python benchmarks/advice.py [--json] [--runs 3]

The thirty slow steps of ``advice_runs``, three of each of ten kinds, on real ranks with stated
times: sleep for what is computed, real messages on links of a stated pace. Five kinds were held
out: their timelines and advice were not looked at before the advice was committed. Each step and
its cure run three times, the quickest of each counts. *right*: the first advice names the kind.
*predicted* and *achieved*: gains of that kind's change, in percent of the slow run's time, by the
edited timeline and by the cured run; *off* their distance in points. The same from simulated
timelines stands in *right, simulated*. The times are paced: nothing here says how fast a machine
is, but what else it does disturbs them.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from advice_runs import SlowRun, runs
from report import tell

from labkit.profiling.proof import Proof
from labkit.profiling.run import held


def proofs(each: SlowRun, tries: int) -> tuple[Proof, Proof]:
    """On real ranks, and simulated."""
    real = held(each.kind, each.slow, runs=tries)
    return real, held(each.kind, each.slow, simulated=True)


def rows(tries: int) -> Iterator[dict]:
    """A row per run, then one per part."""
    found: list[tuple[SlowRun, Proof, Proof]] = []
    for each in runs():
        real, simulated = proofs(each, tries)
        found.append((each, real, simulated))
        best = real.advice.best
        yield {
            "kind": each.kind,
            "held out": "yes" if each.held_out else "no",
            "advice": best.kind if best else "",
            "right": int(real.right),
            "right, simulated": int(simulated.right),
            "predicted %": round(100 * real.predicted, 1),
            "achieved %": round(100 * real.achieved, 1),
            "off": round(100 * abs(real.predicted - real.achieved), 1),
        }
    for name, held_out in (("all not held out", False), ("all held out", True)):
        yield summary(name, [each for each in found if each[0].held_out == held_out])


def summary(name: str, part: list[tuple[SlowRun, Proof, Proof]]) -> dict:
    """How many of a part are right, and how far off in the median and at most."""
    off = [100 * abs(real.predicted - real.achieved) for _, real, _ in part]
    return {
        "kind": name,
        "held out": f"{len(part)} runs",
        "advice": f"{sum(each <= 10 for each in off)} within 10",
        "right": sum(real.right for _, real, _ in part),
        "right, simulated": sum(simulated.right for _, _, simulated in part),
        "predicted %": "",
        "achieved %": "",
        "off": f"{np.median(off):.1f} ({max(off):.1f})",
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON at the end")
    parser.add_argument("--runs", type=int, default=3, help="of each, the quickest counts")
    chosen = parser.parse_args()
    tell(rows(chosen.runs), chosen.json)


if __name__ == "__main__":
    main()
