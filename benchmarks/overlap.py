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

from report import tell

from labkit.collectives.network import Link
from labkit.data_parallel import run as data_parallel_run
from labkit.data_parallel.buckets import MIB, Layer
from labkit.timeline import hidden_comm, step_us

LAYERS = [
    Layer(name=f"layer {index}", num_bytes=MIB // 4, forward_us=10_000, backward_us=20_000)
    for index in range(6)
]
LINKS = {
    "fast": Link(alpha_us=100, bandwidth_gb_per_s=0.06),
    "even": Link(alpha_us=100, bandwidth_gb_per_s=0.02),
    "slow": Link(alpha_us=100, bandwidth_gb_per_s=0.008),
}
BUCKETS_MB = {"small": 0.25, "large": 0.75}


def row(speed: str, bucket: str, num_ranks: int, num_runs: int) -> dict:
    """One link and one bucket size, with and without overlap in turn."""
    settings = {"bucket_mb": BUCKETS_MB[bucket], "link": LINKS[speed]}
    simulated = {
        on: data_parallel_run.predict(LAYERS, num_ranks, overlap=on, **settings)
        for on in (True, False)
    }
    runs = [
        {
            on: data_parallel_run.launch(LAYERS, num_ranks, overlap=on, **settings)
            for on in (True, False)
        }
        for _ in range(num_runs)
    ]
    measured = [{on: run.timeline() for on, run in both.items()} for both in runs]
    predicted_us = {on: step_us(timeline) for on, timeline in simulated.items()}
    took_us = {
        on: statistics.median(step_us(both[on]) for both in measured) for on in (True, False)
    }
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
        "error": round(max((took_us[on] / predicted_us[on] - 1 for on in took_us), key=abs), 3),
        "hidden_simulated": round(hidden_comm(simulated[True]), 3),
        "hidden_measured": round(
            statistics.median(hidden_comm(both[True]) for both in measured), 3
        ),
        "overruns": sum(rank["overruns"] for both in runs for run in both.values() for rank in run),
        "max_error": float(
            f"{max(rank['max_error'] for both in runs for run in both.values() for rank in run):.1e}"
        ),
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
    tell(
        (
            row(speed, bucket, options.ranks, options.runs)
            for speed in LINKS
            for bucket in BUCKETS_MB
        ),
        options.json,
    )


if __name__ == "__main__":
    main()
