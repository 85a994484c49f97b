"""Does a real pipeline idle as much as theory says? Formula, simulated and measured bubble of every
schedule.

    python benchmarks/bubble.py [--json] [--runs 3] [--ranks 4,8]

Real ranks, real messages, torch's own schedules. The forward of a stage is stated (50 ms, backward
100 ms), slept out so that eight ranks need not have eight cores. What a message costs, and the
runtime's pause between two actions, are calibrated in a run of its own under the same schedule,
never the one they predict. The bubble is the idle share of total time. A row holds the median of
the runs, and the largest distance of any run from the simulation.
"""

import argparse
import statistics
from itertools import chain, product

from report import tell

from labkit import pipeline
from labkit.pipeline.schedules import SCHEDULES, TITLES
from labkit.pipeline.simulation import bubble_formula
from labkit.timeline import bubble

STAGE_MS = 50.0
MICROBATCHES = {4: 8, 8: 16}


def row(name: str, num_ranks: int, num_runs: int) -> dict:
    """One schedule at one size."""
    num_microbatches = MICROBATCHES[num_ranks] if name != "naive" else 4
    step = pipeline.Step(schedule=name, ranks=num_ranks, microbatches=num_microbatches)
    num_stages = step.order().num_stages
    step = step.but(forward_ms=STAGE_MS * (num_stages // num_ranks)).calibrated()
    simulated = bubble(step.predict())
    formula = bubble_formula(step.order(), cost=step.cost())
    runs = [step.run() for _ in range(num_runs)]
    measured = [bubble(run.timeline()) for run in runs]
    return {
        "schedule": TITLES[name],
        "stages": num_stages,
        "ranks": num_ranks,
        "microbatches": num_microbatches,
        "formula": None if formula is None else round(formula, 4),
        "simulated": round(simulated, 4),
        "measured": round(statistics.median(measured), 4),
        "difference": round(statistics.median(measured) - simulated, 4),
        "worst": round(max(abs(each - simulated) for each in measured), 4),
        "message_us": round(1e3 * step.message_ms),
        "gap_us": round(1e3 * step.gap_ms),
        "overruns": sum(rank["num_overruns"] for rank in chain.from_iterable(runs)),
        "paced": True,
        "runs": num_runs,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ranks", default="4,8")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    options = parser.parse_args()
    cases = product(map(int, options.ranks.split(",")), options.schedules.split(","))
    tell((row(name, num_ranks, options.runs) for num_ranks, name in cases), options.json)


if __name__ == "__main__":
    main()
