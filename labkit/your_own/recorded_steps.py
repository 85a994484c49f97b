"""Chapter 22's steps as a patient clock saw them, recorded: each one's fastest of many, clocked
twice, beside what its plan says. ``benchmarks/forecast.py --record`` takes them anew."""

import csv
import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from labkit.units import format_share
from labkit.words import say
from labkit.your_own.verdicts import beside_fit, fit_lines, judged

if TYPE_CHECKING:
    from labkit.tables import Table

FILE = Path(__file__).parents[2] / "data" / "runs" / "forecast.csv"
SIZES = ((2, 4), (1, 2), (3, 2), (1, 8), (3, 8), (4, 12))
"""(layers, sequences) of the chapter's steps, the kept one last"""
LEAST = 4
"""steps: one more than the three terms"""


class Clocked(NamedTuple):
    """One recorded step; times in microseconds."""

    layers: int
    sequences: int
    planned_us: float
    measured_us: float
    """the first clocking"""
    again_us: float
    """the second"""


def judged_recorded() -> "Table":
    """``judged``, of the recorded steps: how far three terms are off there, fitted to all but the
    kept step, and one factor, and the plan itself."""
    rows = steps()
    error = clock_error(rows)
    found = judged(forecasts(rows), _clock_us(rows), error=error)
    title = say(
        "Recorded, by a clock whose error is {error}. {verdict}",
        error=format_share(error),
        verdict=found.title,
    )
    return dataclasses.replace(found, title=title)


def recorded_lines() -> dict[str, Any]:
    """``fit_lines``, for ``lab.curves(**...)``, of the recorded steps."""
    rows = steps()
    clock_us = dict(zip(SIZES, _clock_us(rows), strict=True))
    drawn = fit_lines(_fit_us(rows), clock_us, _planned_us(rows))
    return drawn | {"badge": "recorded / predicted"}


def beside_recorded() -> str:
    """``beside_fit`` of the recorded steps."""
    rows = steps()
    return beside_fit(_fit_us(rows), _planned_us(rows), error=clock_error(rows))


def forecasts(rows: Sequence[Clocked]) -> dict[str, list[float]]:
    """Microseconds of each of the clocked steps, by three forecasts. Raises ValueError for fewer
    than four steps: three terms are fitted to all but the last."""
    if len(rows) < LEAST:
        raise ValueError(
            f"Three terms are fitted to all rows but the last, so give {LEAST} or more: "
            f"got {len(rows)}."
        )
    clock_us = _clock_us(rows)
    planned_us = [row.planned_us for row in rows]
    return {
        say("three terms"): (_parts(rows) @ np.array(_fit_us(rows))).tolist(),
        say("one factor"): [clock_us[0] / planned_us[0] * us for us in planned_us],
        say("planned"): planned_us,
    }


def clock_error(rows: Sequence[Clocked]) -> float:
    """How far two clockings of one step lie apart at worst, as a share. Raises ValueError where
    there is no step."""
    if not rows:
        raise ValueError(
            f"The clock's error is that of its worst row, so give one: got {len(rows)}."
        )
    pairs = [sorted((row.measured_us, row.again_us)) for row in rows]
    return max(slow / fast - 1 for fast, slow in pairs)


def _clock_us(rows: Sequence[Clocked]) -> list[float]:
    """The faster clocking of each."""
    return [min(row.measured_us, row.again_us) for row in rows]


def _planned_us(rows: Sequence[Clocked]) -> dict[tuple[int, int], float]:
    """The plan's line: of the number of layers that two steps share, by (layers, sequences)."""
    sizes = [(row.layers, row.sequences) for row in rows]
    counts = Counter(layers for layers, _ in sizes)
    drawn = max(layers for layers, count in counts.items() if count > 1)
    line = zip(sizes, rows, strict=True)
    return {size: row.planned_us for size, row in line if size[0] == drawn}


def _parts(rows: Sequence[Clocked]) -> np.ndarray:
    """How often each of the three times comes in a step; a row for each."""
    return np.array([[1.0, row.layers, row.layers * row.sequences] for row in rows])


def _fit_us(rows: Sequence[Clocked]) -> list[float]:
    """The three times, fitted to all steps but the last."""
    five_us = np.array(_clock_us(rows)[:-1])
    three_us, *_ = np.linalg.lstsq(_parts(rows)[:-1], five_us, rcond=None)
    return three_us.tolist()


@functools.cache
def steps() -> tuple[Clocked, ...]:
    """The recorded steps, in the order of SIZES."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    rows = []
    for row in csv.DictReader(lines):
        layers, sequences, *times_us = row.values()
        rows.append(Clocked(int(layers), int(sequences), *map(float, times_us)))
    return tuple(rows)
