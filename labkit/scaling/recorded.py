"""Scaling that was recorded: the step of ``Scaling`` on 1, 2 and 4 ranks of one machine, strong and
weak, paced and at its own pace. ``benchmarks/scaling.py --record`` takes it anew."""

import csv
import functools
import itertools
from pathlib import Path

from labkit.scaling.laws import KINDS
from labkit.scaling.series import Scaled, Scaling, Spent
from labkit.units import check_word

FILE = Path(__file__).parents[2] / "data" / "runs" / "scaling.csv"
BATCHES = {"strong": 16, "weak": 4}
STEPS = {
    (kind, paced): Scaling(kind=kind, paced=paced, batch=BATCHES[kind])
    for kind, paced in itertools.product(KINDS, (True, False))
}
"""(kind, paced) -> what was taken"""


def scaled(kind: str = "strong", *, paced: bool = True) -> Scaled:
    """What was recorded of a kind of scaling. Raises ValueError for another kind."""
    check_word(kind, KINDS, "a kind of scaling")
    spent = {}
    for row in _rows():
        if row["kind"] == kind and (row["paced"] == "yes") == paced:
            spent[int(row["ranks"])] = Spent(*(float(row[name]) for name in Spent._fields))
    badge = "recorded, paced, paced links" if paced else "recorded"
    return Scaled(kind=kind, spent=spent, badge=badge)


@functools.cache
def _rows() -> tuple[dict[str, str], ...]:
    return tuple(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))
