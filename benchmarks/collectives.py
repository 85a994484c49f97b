"""Can a collective's time be predicted? Calibrated on a quarter of the sizes, tested on the others;
and bytes counted.

    python benchmarks/collectives.py [--json] [--ranks 2,4,8] [--primitives all_reduce,...]

28 sizes from 1 kB to 8.8 MB, torch.distributed's own collectives, each call after a barrier, the
slowest rank, the median of 20 calls in 5 launches. A line per primitive and number of ranks is
fitted to a quarter of the sizes; an error is that of a predicted time over the measured one, at a
size that the line has not seen. later_error: the median error of the same line at its own sizes in
5 launches afterwards (launches differ: the cores that threads get, who else is busy). The last row
has the errors of all. Then one call of 1 MB: payload_exact, whether the counted payload of the
library's call is what was handed in on every rank and that of our own ring by send and receive is
the formula's on every rank; formula_bytes, what a ring sends, all ranks together; wire_bytes, what
TCP counted of the library's call; ring_wire_bytes, of our own ring's (for a broadcast, a chain).
"""

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
from report import tell

import labkit as lab
from labkit.collectives import algorithms, plans, run
from labkit.collectives import calibrate_run as calibrate
from labkit.collectives.network import Fit

PRIMITIVES = "all_reduce,all_gather,reduce_scatter,broadcast"
NUM_BYTES = 1_000_000


def called(primitive: str) -> tuple[int, int]:
    """A rank: the payload and the wire's bytes of one call of the library."""
    import torch

    from labkit.measure import traffic

    tensor = torch.ones(NUM_BYTES // 4)
    run.library(primitive, tensor)  # connects the ranks
    with traffic.count() as counted:
        run.library(primitive, tensor)
    return counted.payload_bytes[primitive], counted.sent_bytes


def bytes_of(primitive: str, num_ranks: int) -> dict:
    """The counted bytes of one call, beside the formula."""
    library = lab.launch(called, primitive, ranks=num_ranks)
    plan = algorithms.plan(primitive, "ring", num_ranks)
    by_hand = run.launch(plan, NUM_BYTES)
    handed_in = NUM_BYTES // num_ranks if primitive == "all_gather" else NUM_BYTES
    formula = plans.sent_bytes(plan, NUM_BYTES)
    is_exact = all(payload == handed_in for payload, _ in library)
    is_exact &= all(own["sent_bytes"] == sent for own, sent in zip(by_hand, formula, strict=True))
    return {
        "payload_exact": is_exact,
        "formula_bytes": round(formula.sum()),
        "wire_bytes": sum(sent for _, sent in library),
        "ring_wire_bytes": sum(own["wire_sent_bytes"] for own in by_hand),
    }


def shown(unseen: list[float], later: list[float]) -> dict:
    """The quantiles of errors."""
    return {
        "median_error": round(float(np.median(unseen)), 3),
        "p90_error": round(float(np.percentile(unseen, 90)), 3),
        "later_error": round(float(np.median(later)), 3),
    }


def errors(fit: Fit, points: Sequence[calibrate.Point]) -> list[float]:
    """How far the line is off each point, as a share of it."""
    return [abs(fit.us(point.num_bytes) / point.time_us - 1) for point in points]


def row(primitive: str, num_ranks: int) -> tuple[dict, list[float], list[float]]:
    """One primitive on one number of ranks; and its errors, at sizes not seen and later."""
    points = calibrate.sweep(primitive, [num_ranks])
    fit = calibrate.fit(points[3::4])
    unseen = errors(fit, [point for place, point in enumerate(points) if place % 4 != 3])
    later = errors(fit, calibrate.sweep(primitive, [num_ranks], calibrate.QUARTER))
    told = {
        "primitive": primitive,
        "ranks": num_ranks,
        "alpha_us": round(fit.alpha_us),
        "gb_per_s": round(fit.bandwidth_gb_per_s, 2),
        **shown(unseen, later),
        **bytes_of(primitive, num_ranks),
    }
    return told, unseen, later


def rows(primitives: list[str], ranks: str) -> Iterator[dict]:
    """One for each primitive and number of ranks; then one of all errors."""
    all_unseen = []
    all_later = []
    for primitive in primitives:
        for num_ranks in map(int, ranks.split(",")):
            told, unseen, later = row(primitive, num_ranks)
            all_unseen += unseen
            all_later += later
            yield told
    yield {"primitive": "all", "ranks": ranks, **shown(all_unseen, all_later)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--primitives", default=PRIMITIVES)
    options = parser.parse_args()
    tell(rows(options.primitives.split(","), options.ranks), options.json)


if __name__ == "__main__":
    main()
