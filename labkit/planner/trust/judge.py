"""How good predictions are: their errors, beside one constant; the order they put layouts in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from labkit.planner.trust.rows import Row

LEAST_LAYOUTS = 5
"""So many layouts of one model, or more, have an order worth asking for."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One quantity of one row."""

    id: str
    """the row's"""
    quantity: str
    """one of ``rows.QUANTITIES``"""
    published: float
    """what was published"""
    predicted: float
    """what was predicted"""
    fitted: bool
    """whether the fit saw this row"""

    @property
    def error(self) -> float:
        """predicted / published - 1."""
        return self.predicted / self.published - 1


def median(errors: Sequence[float]) -> float | None:
    """The median of their sizes; None for none."""
    return float(np.median(np.abs(errors))) if len(errors) else None


def p90(errors: Sequence[float]) -> float | None:
    """What nine of ten sizes are below; None for none."""
    return float(np.quantile(np.abs(errors), 0.9)) if len(errors) else None


def naive_tflops(rows: Sequence[Row]) -> float:
    """One constant for all: the median TFLOP/s of rows."""
    return float(np.median([row.tflops(row.step_us()) for row in rows]))


def naive_errors(rows: Sequence[Row], tflops: float) -> list[float]:
    """What rows' errors would be, were each as fast as one constant says; in the quantity that the
    row gives."""
    errors = []
    for row in rows:
        step_us = row.step_flops() / tflops / 1e6 / row.cluster.num_gpus
        quantity = row.quantity()
        errors.append(row.read(quantity, step_us) / row.told[quantity] - 1)
    return errors


def groups(rows: Sequence[Row]) -> list[list[int]]:
    """Rows of the same model, by their numbers, whatever their number of GPUs; only groups of
    LEAST_LAYOUTS rows or more."""
    found: dict[tuple, list[int]] = {}
    for number, row in enumerate(rows):
        found.setdefault(row.model, []).append(number)
    return [numbers for numbers in found.values() if len(numbers) >= LEAST_LAYOUTS]


def ranks(values: Sequence[float]) -> np.ndarray:
    """The place of each value in their order, equal ones sharing theirs, shape (num_values,)."""
    array = np.asarray(values, float)
    below = (array[:, None] > array[None, :]).sum(1)
    equal = (array[:, None] == array[None, :]).sum(1)
    return below + (equal - 1) / 2


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of two orders (Spearman 1904). 1 where neither has an order; 0 where only
    one of them has: who calls all layouts alike has not ordered them."""
    first = ranks(one)
    second = ranks(other)
    if not first.std() or not second.std():
        return float(first.std() == second.std())
    return float(np.corrcoef(first, second)[0, 1])


def order(rows: Sequence[Row], speeds: Sequence[float]) -> tuple[float | None, float | None]:
    """(Spearman, regret) over all groups of rows, weighted by their sizes, from predicted speeds
    (tokens per second and GPU). Regret: how much slower than the best the row is that the
    predictions would pick; among equals, by their mean. None where no model has enough layouts."""
    found = []
    for numbers in groups(rows):
        published = [rows[number].read("tok_s_gpu", rows[number].step_us()) for number in numbers]
        predicted = [speeds[number] for number in numbers]
        picked = _picked(published, predicted)
        found.append((len(numbers), spearman(published, predicted), max(published) / picked - 1))
    if not found:
        return None, None
    sizes, spearmans, regrets = zip(*found, strict=True)
    mean_spearman = float(np.average(spearmans, weights=sizes))
    return mean_spearman, float(np.average(regrets, weights=sizes))


def _picked(published: Sequence[float], predicted: Sequence[float]) -> float:
    """How fast those are that are predicted to be the fastest, in the mean."""
    best = max(predicted)
    pairs = zip(published, predicted, strict=True)
    return float(np.mean([speed for speed, told in pairs if told == best]))
