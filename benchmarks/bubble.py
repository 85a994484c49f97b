"""Does a real pipeline idle as much as theory says? Formula, simulated and measured bubble of every
schedule.

    python benchmarks/bubble.py [--json] [--runs 3] [--ranks 4,8]

Real ranks, real messages, torch's own schedules. The forward of a stage is stated (50 ms, backward
100 ms), slept out so that eight ranks need not have eight cores; the last rows have three short
chunks, 17 ms together. What a message costs, and the runtime's pause between two actions and for
each message posted there, are calibrated in a run of its own under the same schedule with two
chunks and stages of 10 ms, never the one they predict. The bubble is the idle share of total time.
A row holds the median of the runs, and the largest distance of any run from the simulation.
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
SHORT_MS = 17.0
SHORT = [
    (name, num_ranks) for name in ("interleaved_1f1b", "interleaved_zb") for num_ranks in (2, 3)
]


def row(name: str, num_ranks: int, num_runs: int, *, short: bool = False) -> dict:
    """One schedule at one size; ``short``: three chunks of little work."""
    step = pipeline.Step(
        schedule=name,
        ranks=num_ranks,
        microbatches=MICROBATCHES.get(num_ranks, 2 * num_ranks) if name != "naive" else 4,
        chunks=3 if short else 2,
    )
    num_chunks = step.order().num_stages // num_ranks
    forward_ms = SHORT_MS if short else STAGE_MS * num_chunks
    step = step.but(forward_ms=forward_ms).calibrated()
    simulated = bubble(step.predict())
    formula = bubble_formula(step.order(), cost=step.cost())
    runs = [step.run() for _ in range(num_runs)]
    measured = [bubble(run.timeline()) for run in runs]
    return {
        "schedule": TITLES[name],
        "stages": step.order().num_stages,
        "ranks": num_ranks,
        "microbatches": step.microbatches,
        "formula": None if formula is None else round(formula, 4),
        "simulated": round(simulated, 4),
        "measured": round(statistics.median(measured), 4),
        "difference": round(statistics.median(measured) - simulated, 4),
        "worst": round(max(abs(each - simulated) for each in measured), 4),
        "message_us": round(1e3 * step.message_ms),
        "gap_us": round(1e3 * step.gap_ms),
        "post_us": round(1e3 * step.post_ms),
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
    rows = (row(name, num_ranks, options.runs) for num_ranks, name in cases)
    short_rows = (row(*case, options.runs, short=True) for case in SHORT)
    tell(chain(rows, short_rows), options.json)


if __name__ == "__main__":
    main()
