"""What does continuous batching gain over static batching, on real ranks?

    python benchmarks/serving.py [--json]

One run serves the same requests under both policies, one after the other, several times: 48
requests that come by chance (Poisson), answers of 12 tokens on average, their logarithm's deviation
0.8, 4 slots, a small transformer at the machine's own pace: nothing is stated or slept but the gaps
between requests. The rate is a share of what the server can do: *capacity_share* 1 is the rate at
which the same run, given all requests at once, has answered them. *throughput_ratio*: tokens a
second, continuous over static; *p95_ratio* and *first_ratio*: the 95th percentile of latency, and
of the time to the first token, static over continuous (above 1: continuous is better). Median of
the repetitions; of throughput and p95 the lowest and highest too. *differing*: answers unlike those
of one request alone.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

from report import tell

import labkit as lab
from labkit.serving import batching_run
from labkit.serving.load import Load
from labkit.serving.queue import Visit
from labkit.serving.served import Figures

SHARES = (0.5, 0.9, 1.5)
REPEATS = 5
REQUESTS = 48
LOAD = Load(requests=REQUESTS, paced=False, prefill_ms=0.0)


def both(ranks: int) -> dict:
    """On a rank: what this server can do, then both policies at each share of it."""
    fast = LOAD.but(ranks=ranks, rate=1e6)
    began_s = time.perf_counter()
    found = batching_run.serve_on_ranks(fast)
    took_s = max((each[-1] for each in found["times_us"]), default=1e6) / 1e6
    capacity = shared(REQUESTS / took_s)
    served = {}
    for share in SHARES:
        for number in range(REPEATS):
            for policy in ("static", "continuous"):
                load = LOAD.but(
                    ranks=ranks, rate=share * capacity, policy=policy, seed=number, slots=fast.slots
                )
                served[share, number, policy] = batching_run.serve_on_ranks(load)
    return {"capacity": capacity, "served": served, "seconds": time.perf_counter() - began_s}


def shared(number: float) -> float:
    """Rank 0's number, on every rank."""
    import torch
    import torch.distributed as dist

    told = torch.tensor([number], dtype=torch.float32)
    dist.broadcast(told, 0)
    return told.item()


def rows() -> Iterator[dict]:
    """A row for each number of ranks and share of capacity."""
    for ranks in (1, 2):
        run = lab.launch(both, ranks, ranks=ranks, timeout_s=600.0)
        for share in SHARES:
            ratios: dict[str, list[float]] = {"throughput": [], "p95": [], "first": []}
            differing = 0
            for number in range(REPEATS):
                one = run[0]["served"][share, number, "static"]
                other = run[0]["served"][share, number, "continuous"]
                static = figures(one["times_us"])
                continuous = figures(other["times_us"])
                ratios["throughput"].append(continuous.tokens_per_s / static.tokens_per_s)
                ratios["p95"].append(static.latency_p95_us / continuous.latency_p95_us)
                ratios["first"].append(static.first_p95_us / continuous.first_p95_us)
                differing += one["num_differing"] + other["num_differing"]
            yield {
                "ranks": ranks,
                "capacity_share": share,
                "requests_per_s": round(share * run[0]["capacity"], 1),
                "throughput_ratio": round(statistics.median(ratios["throughput"]), 2),
                "throughput_lowest": round(min(ratios["throughput"]), 2),
                "throughput_highest": round(max(ratios["throughput"]), 2),
                "p95_ratio": round(statistics.median(ratios["p95"]), 2),
                "p95_lowest": round(min(ratios["p95"]), 2),
                "p95_highest": round(max(ratios["p95"]), 2),
                "first_ratio": round(statistics.median(ratios["first"]), 2),
                "differing": differing,
                "badge": run.badge,
            }


def figures(times_us: list[tuple]) -> Figures:
    """Latencies and throughput of a server's visits."""
    return LOAD.served([Visit(*each) for each in times_us], "measured").figures()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    tell(rows(), parser.parse_args().json)


if __name__ == "__main__":
    main()
