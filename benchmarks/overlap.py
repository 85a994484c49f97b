"""What does overlap bring, and as much as predicted? A step of real DDP with it over one without
it, links stated.

    python benchmarks/overlap.py [--json] [--runs 3] [--ranks 4]

Six layers with a gradient of 256 KiB, a forward of 10 ms and a backward of 20 ms each, slept out.
The links are stated too: a bucket is really all-reduced, and takes at least the ring's time on
links of the given bandwidth. "small" is a bucket per layer, "large" one for three layers. A step
lasts from the first span to the last, all-reduces included; a measured one is the median over the
runs. "error" is measured over simulated minus 1, the larger of the two; "max_error" that of the
gradients, against the mean over the ranks, relative to the largest.
"""

import argparse
import statistics
from itertools import chain, product

from report import tell

from labkit import data_parallel
from labkit.collectives.network import Link
from labkit.timeline import hidden_comm, step_us

STEP = data_parallel.Step(layers=6, layer_mb=0.25, forward_ms=10)
LINKS = {
    "fast": Link(alpha_us=100, bandwidth_gb_per_s=0.06),
    "even": Link(alpha_us=100, bandwidth_gb_per_s=0.02),
    "slow": Link(alpha_us=100, bandwidth_gb_per_s=0.008),
}
BUCKETS_MB = {"small": 0.25, "large": 0.75}


def row(speed: str, bucket: str, num_ranks: int, num_runs: int) -> dict:
    """One link and one bucket size, with and without overlap in turn."""
    step = STEP.but(ranks=num_ranks, bucket_mb=BUCKETS_MB[bucket], link=LINKS[speed])
    steps = {overlap: step.but(overlap=overlap) for overlap in (True, False)}
    runs = {True: [], False: []}  # by whether communication overlaps
    for _, overlap in product(range(num_runs), runs):
        runs[overlap].append(steps[overlap].run())
    results = list(chain.from_iterable(chain(*runs.values())))
    simulated = {}
    predicted_us = {}
    measured = {}
    took_us = {}
    for overlap in runs:
        simulated[overlap] = steps[overlap].predict()
        predicted_us[overlap] = step_us(simulated[overlap])
        measured[overlap] = [run.timeline() for run in runs[overlap]]
        took_us[overlap] = statistics.median(map(step_us, measured[overlap]))
    errors = [took_us[overlap] / predicted_us[overlap] - 1 for overlap in runs]
    return {
        "link": speed,
        "gb_per_s": LINKS[speed].bandwidth_gb_per_s,
        "bucket": bucket,
        "ranks": num_ranks,
        "overlap_simulated_ms": round(predicted_us[True] / 1e3, 1),
        "overlap_measured_ms": round(took_us[True] / 1e3, 1),
        "without_simulated_ms": round(predicted_us[False] / 1e3, 1),
        "without_measured_ms": round(took_us[False] / 1e3, 1),
        "ratio_simulated": round(predicted_us[True] / predicted_us[False], 3),
        "ratio_measured": round(took_us[True] / took_us[False], 3),
        "error": round(max(errors, key=abs), 3),
        "hidden_simulated": round(hidden_comm(simulated[True]), 3),
        "hidden_measured": round(statistics.median(map(hidden_comm, measured[True])), 3),
        "overruns": sum(rank["overruns"] for rank in results),
        "max_error": float(f"{max(rank['max_error'] for rank in results):.1e}"),
        "paced": True,
        "runs": num_runs,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    cases = product(LINKS, BUCKETS_MB)
    tell((row(speed, bucket, options.ranks, options.runs) for speed, bucket in cases), options.json)


if __name__ == "__main__":
    main()
