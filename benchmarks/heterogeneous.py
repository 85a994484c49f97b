"""Ranks of unlike speed, a slow worker, a slow link: what does each way of dealing bring, and as
much as predicted?

    python benchmarks/heterogeneous.py [--json] [--runs 3]

Computing and links are paced; messages, weights and what is learned are real. *deal*: a step of 64
samples at speeds 1:3 (and 1:2:4), median of the runs of the last, recorded step; "difference" of
the weights from one process. *same clock*: the classifier of digits for 2 s of wall clock with
three workers, one of them four times slower, or all alike with a tenth of the steps taking six
times as long; loss over the training set at the end, median of the seeds. *cut*: one request of 16
frames to a network cut between edge and cloud, 5 ms and 1 MB/s; "bytes" as counted on the edge,
"difference" the largest of a score, "agree" the share of 360 frames given the digit that one
process gives.
"""

import argparse
import statistics
from collections.abc import Iterator
from dataclasses import replace

from report import tell

from labkit import heterogeneous
from labkit.timeline import step_us

SPEEDS = ((1.0, 3.0), (1.0, 2.0, 4.0))
ALIKE = heterogeneous.Training(speeds=(2.0, 2.0, 2.0), hiccup=0.1)
TRAININGS = {
    "one slow, synchronous": heterogeneous.Training(),
    "one slow, by speed": heterogeneous.Training(split="by speed"),
    "one slow, bound 2": heterogeneous.Training(way="bounded"),
    "one slow, asynchronous": heterogeneous.Training(way="asynchronous"),
    "hiccups, synchronous": ALIKE,
    "hiccups, bound 2": replace(ALIKE, way="bounded"),
    "hiccups, bound 6": replace(ALIKE, way="bounded", bound=6),
    "hiccups, asynchronous": replace(ALIKE, way="asynchronous"),
}
COLUMNS = (
    "what",
    "case",
    "predicted_ms",
    "measured_ms",
    "difference",
    "updates",
    "lateness",
    "loss",
    "bytes",
    "agree",
)


def deals(num_runs: int) -> Iterator[dict]:
    """A row for each way to deal a batch."""
    for speeds in SPEEDS:
        written = ":".join(f"{each:g}" for each in speeds)
        for word in ("equal", "by speed", "fastest", "probed"):
            step = heterogeneous.Step(speeds=speeds, split=word)
            runs = [step.run() for _ in range(num_runs)]
            took_us = [step_us(run.timeline()) for run in runs]
            apart = max(each["weight_difference"] for run in runs for each in run)
            yield {
                "what": "deal",
                "case": f"{written} {word}",
                "predicted_ms": round(step_us(step.predict()) / 1e3, 1),
                "measured_ms": round(statistics.median(took_us) / 1e3, 1),
                "difference": f"{apart:.1e}",
            }


def clocks(num_runs: int) -> Iterator[dict]:
    """A row for each way to wait, or not to."""
    for name, training in TRAININGS.items():
        found = [replace(training, seed=seed).run()[0] for seed in range(num_runs)]
        ended = [list(each["losses"].values())[-1] for each in found]
        yield {
            "what": "same clock",
            "case": name,
            "updates": round(statistics.median(each["updates"] for each in found)),
            "lateness": round(statistics.median(each["mean lateness"] for each in found), 2),
            "loss": round(statistics.median(ended), 3),
        }


def cuts(num_runs: int) -> Iterator[dict]:
    """A row for each cut and form."""
    for form in ("float32", "int8", "int4"):
        for after in (0, 2, 4, 6):
            cut = heterogeneous.Cut(after=after, form=form)
            runs = [cut.run() for _ in range(num_runs)]
            yield {
                "what": "cut",
                "case": f"after {after}, {form}",
                "predicted_ms": round(cut.times().latency_us / 1e3, 1),
                "measured_ms": round(
                    statistics.median(run[0]["latency_us"][0] for run in runs) / 1e3, 1
                ),
                "difference": f"{runs[0][0]['answer_difference']:.1e}",
                "bytes": runs[0][0]["payload_bytes"],
                "agree": round(runs[0][0]["agree_share"], 4),
            }


def rows(num_runs: int) -> Iterator[dict]:
    """All rows, each with every column."""
    for part in (deals, clocks, cuts):
        for row in part(num_runs):
            yield dict.fromkeys(COLUMNS) | row


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, with seeds of their own")
    asked = parser.parse_args()
    tell(rows(asked.runs), asked.json)


if __name__ == "__main__":
    main()
