"""Does a step scale, what is lost to what, does feeding it ahead help, how near is the peak?

    python benchmarks/scaling.py [--json] [--runs 3]
    python benchmarks/scaling.py --record      takes it anew and writes data/runs/scaling.csv

`labkit.scaling.Scaling`: DistributedDataParallel over a small transformer on 1, 2 and 4 ranks, each
of one thread. Paced: a sample takes 6 ms, a step 2 ms besides, an all-reduce a ring's time at
0.3 GB/s and 0.5 ms; the rest is slept. Own pace: nothing is stated, and nothing predicted.
*measured*: efficiency, actual over theoretical speedup. Lost, in shares of the step: to what does
not divide (*fixed*), to contention (all compute, nobody sends, against one alone), communication,
and waiting (from a rank's last gradient to the slowest rank's). Medians over the runs of the
quickest of four steps. Feeding: a batch is read in 30 ms, a step takes 20 ms, eight steps on two
ranks; time without workers over that with two. MFU: 6 P + 12 L h s operations a token over the best
of three matrix products, one rank alone.
"""

import argparse
import csv
import statistics
from collections.abc import Iterator

from report import tell

import labkit as lab
from labkit import scaling
from labkit.scaling import recorded
from labkit.timeline import step_us

PARTS = ("fixed", "contention", "communication", "waiting")


def taken(step: scaling.Scaling, num_runs: int) -> scaling.Scaled:
    """The median run: each part's median over the runs."""
    every = [step.measured(step.run()) for _ in range(num_runs)]
    spent = {}
    for ranks in step.ranks:
        parts = zip(*(each.spent[ranks] for each in every), strict=True)
        spent[ranks] = scaling.Spent(*map(statistics.median, parts))
    return scaling.Scaled(kind=step.kind, spent=spent, badge=every[0].badge)


def record(num_runs: int) -> None:
    """Takes all four series and writes the file when they are whole."""
    rows = []
    for (kind, paced), step in recorded.STEPS.items():
        found = taken(step, num_runs)
        print(found, flush=True)
        for ranks, spent in found.spent.items():
            times = {name: f"{value:.1f}" for name, value in spent._asdict().items()}
            rows.append({"kind": kind, "paced": "yes" if paced else "no", "ranks": ranks, **times})
    with recorded.FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def rows(num_runs: int) -> Iterator[dict]:
    """A row per series and number of ranks, then feeding and MFU."""
    for (kind, paced), step in recorded.STEPS.items():
        found = taken(step, num_runs)
        foretold = step.predict().efficiencies if paced else {}
        for ranks in found.ranks:
            lost = {name: round(share, 3) for name, share in found.lost(ranks).items()}
            yield (
                _row(
                    f"{kind}, {'paced' if paced else 'own pace'}",
                    ranks,
                    found.efficiency(ranks),
                    foretold.get(ranks),
                )
                | lost
            )
    slow = scaling.Feeding()
    fast = slow.but(workers=2)
    times = {}
    for name, step in (("slow", slow), ("fast", fast)):
        times[name] = statistics.median(step_us(step.measured(step.run())) for _ in range(num_runs))
    foretold = step_us(slow.predict()) / step_us(fast.predict())
    yield _row("feeding, ratio", 2, times["slow"] / times["fast"], foretold)
    found = [lab.launch(scaling.utilization, ranks=1)[0]["mfu_share"] for _ in range(num_runs)]
    yield _row("MFU of a step", 1, statistics.median(found), None)


def _row(what: str, ranks: int, found: float, foretold: float | None) -> dict:
    predicted = None if foretold is None else round(foretold, 3)
    row = {"what": what, "ranks": ranks, "measured": round(found, 3), "predicted": predicted}
    return row | dict.fromkeys(PARTS)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--record", action="store_true", help="take it anew, and keep it")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    if asked.record:
        record(asked.runs)
    tell(rows(asked.runs), asked.json)


if __name__ == "__main__":
    main()
