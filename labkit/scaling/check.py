"""The exercise of chapter 15 about scaling: a table of runs is read."""

import math
from collections.abc import Callable, Iterator

from labkit.check import exercise, hint, status, wrong

__all__ = ["efficiency_of", "hint", "status"]

_TABLES = (
    [(1, 32, 80.0), (2, 32, 44.0), (4, 32, 26.0)],
    [(1, 32, 80.0), (2, 64, 84.0), (4, 128, 96.0)],
    [(1, 16, 40.0), (2, 32, 42.0), (4, 32, 25.0), (8, 64, 28.0)],
    [(2, 64, 50.0), (4, 64, 28.0), (8, 128, 31.0)],
)
"""(ranks, samples of a step, its milliseconds): strong, weak, both, without one rank"""


@exercise
def efficiency_of(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rows)`` is a list: the efficiency of each row, 1.0 for the first.

    A row is a dict: ranks, samples (that all ranks together process in a step) and step_ms. They
    come from somebody's runs, in order of ranks: some kept the whole batch, some the batch of a
    rank, some changed it in between, and the first row need not be one rank. The efficiency is how
    much of the first row's work per rank and second is left.
    """
    for table in _TABLES:
        rows = [dict(zip(("ranks", "samples", "step_ms"), row, strict=True)) for row in table]
        right = [_speed(row) / _speed(table[0]) for row in table]
        mine = list(answer(rows))
        if len(mine) != len(right):
            yield wrong(
                "{rows} rows: the answer has {mine} numbers", rows=len(right), mine=len(mine)
            )
            continue
        for row, one, due in zip(table, mine, right, strict=True):
            if not math.isclose(float(one), due, rel_tol=1e-6):
                ranks, samples, step_ms = row
                yield wrong(
                    "{ranks} ranks do {samples} samples in {step_ms:g} ms, and {base} ranks did "
                    "{base_samples} in {base_ms:g} ms: {mine:.1%}; right is {right:.1%}",
                    ranks=ranks,
                    samples=samples,
                    step_ms=step_ms,
                    base=table[0][0],
                    base_samples=table[0][1],
                    base_ms=table[0][2],
                    mine=float(one),
                    right=due,
                )
                break


def _speed(row: tuple[int, int, float]) -> float:
    """Samples per rank and millisecond."""
    ranks, samples, step_ms = row
    return samples / step_ms / ranks
