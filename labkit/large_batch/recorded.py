"""Trainings of the digits' classifier that were recorded: how many steps each batch needs at each
rate, how noisy its gradient is, and how well each optimizer ends. data/README.md says how."""

import csv
import functools
import math
import statistics
from pathlib import Path
from typing import NamedTuple

from labkit.large_batch.rules import Critical, Noise, fit

RUNS = Path(__file__).parents[2] / "data" / "runs"
MOST_STEPS = 1500
"""where a recorded training was given up"""


class Reading(NamedTuple):
    """One training until the loss over the whole training set was below 0.15."""

    batch: int
    """samples of a step"""
    rate: float
    """of plain SGD, constant"""
    seed: int
    """of the weights and of the samples' order"""
    steps: int | None
    """None: given up after ``MOST_STEPS``, or the loss was no number any more"""


class Best(NamedTuple):
    """A batch at the rate that needs the fewest steps."""

    batch: int
    """samples of a step"""
    rate: float
    """where the median is lowest, of the rates at which every seed got there"""
    median: float
    """steps, of the seeds"""
    lowest: int
    """steps of the quickest seed"""
    highest: int
    """steps of the slowest"""


class Ended(NamedTuple):
    """An optimizer after 20 epochs with warm-up and cosine, at its best rate."""

    batch: int
    """samples of a step"""
    optimizer: str
    """one of ``OPTIMIZERS``"""
    rate: float
    """where the mean loss over the training set ended lowest"""
    accuracies: tuple[float, ...]
    """of the test images, a share per seed"""

    @property
    def mean(self) -> float:
        """of the seeds' accuracies"""
        return statistics.mean(self.accuracies)

    @property
    def spread(self) -> float:
        """their standard deviation"""
        return statistics.stdev(self.accuracies)


@functools.cache
def sweep() -> tuple[Reading, ...]:
    """Every training of the sweep."""
    found = []
    for row in _rows("large_batch"):
        steps = int(row["steps"]) if row["steps"] else None
        found.append(Reading(int(row["batch"]), float(row["rate"]), int(row["seed"]), steps))
    return tuple(found)


def batches() -> tuple[int, ...]:
    """The batches of the sweep, from the smallest."""
    return tuple(sorted({each.batch for each in sweep()}))


def rates() -> tuple[float, ...]:
    """Its rates, from the lowest."""
    return tuple(sorted({each.rate for each in sweep()}))


def medians(batch: int, seed: int | None = None) -> dict[float, float]:
    """Rate -> median steps of a batch, where every seed got there; of one seed, if it is given.
    Raises ValueError for a batch or a seed that was not tried."""
    steps: dict[float, list[float]] = {}
    for each in sweep():
        if each.batch == batch and seed in (None, each.seed):
            steps.setdefault(each.rate, []).append(each.steps or math.inf)
    if not steps:
        raise ValueError(
            f"recorded are the batches {', '.join(map(str, batches()))} with the seeds 0 to 4; got "
            f"batch {batch!r}, seed {seed!r}"
        )
    return {rate: statistics.median(found) for rate, found in steps.items() if max(found) < 1e9}


def best(batch: int) -> Best:
    """A batch at its best rate. Raises ValueError for a batch that was not tried."""
    found = medians(batch)
    rate = min(found, key=found.__getitem__)
    steps = [each.steps for each in sweep() if (each.batch, each.rate) == (batch, rate)]
    return Best(batch, rate, found[rate], min(steps), max(steps))


def law(seed: int | None = None) -> Critical:
    """The law of steps that lies nearest to the best medians of all batches; or to what one seed
    needed. Raises ValueError for a seed that was not tried."""
    return fit(batches(), [min(medians(batch, seed).values()) for batch in batches()])


def noise() -> Noise:
    """The noise of a sample's gradient through the trainings of batch 32: the mean variance and the
    mean square, of all steps and seeds."""
    rows = _rows("large_batch_noise")
    return Noise(
        variance=statistics.mean(float(row["variance"]) for row in rows),
        square=statistics.mean(float(row["square"]) for row in rows),
    )


def optimizers() -> tuple[Ended, ...]:
    """Each batch and optimizer at its best rate."""
    losses: dict[tuple[int, str], dict[float, list[float]]] = {}
    shares: dict[tuple[int, str, float], list[float]] = {}
    for row in _rows("large_batch_optimizers"):
        key = int(row["batch"]), row["optimizer"]
        rate = float(row["rate"])
        loss = float(row["loss"])
        tried = losses.setdefault(key, {}).setdefault(rate, [])
        tried.append(loss if math.isfinite(loss) else math.inf)
        shares.setdefault((*key, rate), []).append(float(row["accuracy"]))
    found = []
    for key, tried in losses.items():
        rate = min(tried, key=lambda each: sum(tried[each]))
        found.append(Ended(*key, rate, tuple(shares[*key, rate])))
    return tuple(found)


def _rows(name: str) -> list[dict[str, str]]:
    text = (RUNS / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
