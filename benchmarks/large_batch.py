"""Where does a larger batch stop helping, does the gradients' own noise say so, who copes best?


    python benchmarks/large_batch.py [--json]
    python benchmarks/large_batch.py --record      trains anew and writes data/runs/large_batch*.csv

1,797 real digits, a classifier of 26,122 weights, five seeds; `labkit.large_batch.Training` on one
rank. *steps*: plain SGD at a constant rate until the loss over the whole training set is below
0.15, median, lowest and highest of the seeds, at the best of six rates (0.05 to 1.6); a rate counts
only where all five got there within 1,500 steps. *law*: S_min (1 + B_crit / B), fitted to those
medians (McCandlish et al. 2018). *critical batch*: of the fit to the medians, lowest and highest of
fits to single seeds. *noise scale*: mean variance over mean square of the gradient through
trainings of batch 32 on two ranks, from the ranks' own gradients. *accuracy*: 20 epochs, warm-up in
a tenth of the steps, then a cosine; share of 360 test images right, mean, lowest and highest of the
seeds, at the rate (of five to seven) whose mean loss on the training set ended lowest. Nothing here
is a time.
"""

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from report import tell

import labkit as lab
from labkit.large_batch import recorded, run
from labkit.large_batch.digits_run import NUM_TRAIN

RUNS = Path(__file__).resolve().parent.parent / "data" / "runs"
SEEDS = range(5)
BATCHES = tuple(2**power for power in range(1, 11))
RATES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
MOST_STEPS = 1500
EPOCHS = 20
TRIED = {
    "sgd": (0.1, 0.2, 0.4, 0.8, 1.6),
    "momentum": (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    "adam": (0.0005, 0.001, 0.003, 0.01, 0.03, 0.1),
    "lars": (0.3, 1.0, 3.0, 10.0, 30.0),
    "lamb": (0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
}
"""optimizer -> its rates"""
COMPARED = (32, 256, 1024)
"""batches of the optimizers"""
LIMIT_S = 3600.0


def trained(trainings: Sequence[run.Training]) -> list[dict]:
    """On a rank: what each training says. One thread: the matrices are small."""
    torch.set_num_threads(1)
    return [run.train(each) for each in trainings]


def sweep() -> Iterator[dict]:
    """A row for each batch, rate and seed: the steps, empty where the target was not reached."""
    for batch in BATCHES:
        trainings = []
        for rate in RATES:
            for seed in SEEDS:
                trainings.append(
                    run.Training(batch=batch, rate=rate, seed=seed, ranks=1, most_steps=MOST_STEPS)
                )
        found = lab.launch(trained, trainings, ranks=1, timeout_s=LIMIT_S)[0]
        for each, told in zip(trainings, found, strict=True):
            steps = "" if told["steps"] is None else told["steps"]
            yield {"batch": batch, "rate": each.rate, "seed": each.seed, "steps": steps}


def noises() -> Iterator[dict]:
    """A row for each seed and step: the noise that two ranks' gradients show."""
    for seed in SEEDS:
        for step, each in run.Training(seed=seed).run()[0]["noise"].items():
            yield {
                "seed": seed,
                "step": step,
                "variance": f"{each.variance:.6g}",
                "square": f"{each.square:.6g}",
            }


def optimizers() -> Iterator[dict]:
    """A row for each batch, optimizer, rate and seed: loss and accuracy at the end."""
    for batch in COMPARED:
        for name, rates in TRIED.items():
            trainings = []
            for rate in rates:
                for seed in SEEDS:
                    trainings.append(_long(batch, name, rate, seed))
            found = lab.launch(trained, trainings, ranks=1, timeout_s=LIMIT_S)[0]
            for each, told in zip(trainings, found, strict=True):
                yield {
                    "batch": batch,
                    "optimizer": name,
                    "rate": each.rate,
                    "seed": each.seed,
                    "loss": f"{told['loss']:.4g}",
                    "accuracy": f"{told['accuracy']:.4f}",
                }


def _long(batch: int, optimizer: str, rate: float, seed: int) -> run.Training:
    """20 epochs with warm-up and cosine."""
    return run.Training(
        batch=batch,
        optimizer=optimizer,
        rate=rate,
        seed=seed,
        ranks=1,
        warmup=0.1,
        target=0.0,
        most_steps=round(EPOCHS * NUM_TRAIN / batch),
    )


def record() -> None:
    """Trains all and writes the three files, each when it is whole."""
    made = {
        "large_batch": sweep,
        "large_batch_noise": noises,
        "large_batch_optimizers": optimizers,
    }
    for name, rows_of in made.items():
        kept = []
        for row in rows_of():
            kept.append(row)
            print(name, *row.values(), flush=True)
        with (RUNS / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(kept[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)


def rows() -> Iterator[dict]:
    """What the recorded trainings say."""
    law = recorded.law()
    for batch in recorded.batches():
        best = recorded.best(batch)
        yield _row("steps", batch, "sgd", best.rate, best.median, best.lowest, best.highest) | {
            "law": round(law.steps(batch))
        }
    alone = [recorded.law(seed).critical_batch for seed in SEEDS]
    critical = (round(each, 1) for each in (law.critical_batch, min(alone), max(alone)))
    yield _row("critical batch", None, "sgd", None, *critical)
    yield _row("noise scale", 32, "sgd", 0.4, round(recorded.noise().scale, 1), None, None)
    for each in recorded.optimizers():
        shares = each.accuracies
        told = (round(share, 3) for share in (each.mean, min(shares), max(shares)))
        yield _row("accuracy", each.batch, each.optimizer, each.rate, *told)


def _row(what: str, batch: int | None, optimizer: str, rate: float | None, *found: float) -> dict:
    """One row; ``found`` is what was found, the lowest and the highest."""
    row = {"what": what, "batch": batch, "optimizer": optimizer, "rate": rate}
    return row | dict(zip(("found", "lowest", "highest"), found, strict=True)) | {"law": None}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--record", action="store_true", help="train anew, and keep what comes out")
    asked = parser.parse_args()
    if asked.record:
        record()
    tell(rows(), asked.json)


if __name__ == "__main__":
    main()
