"""Thirty slow runs of ten kinds, three of each, for ``benchmarks/advice.py``.

This file was committed before ``labkit.profiling.advice`` was written. ``labkit.profiling.kinds``
makes the steps and their cures; here a seed draws how bad each is, and sizes that have nothing to
do with its kind. Five kinds are HELD OUT: drawn by a seed from those six that the chapter does not
show as its four main bottlenecks. Neither their timelines nor what is advised for them were looked
at while the advice was written, and nothing is tuned on them. (Whoever wrote the advice knew the
list of ten kinds, and saw how long the runs of "save" took in all.)
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

from labkit.profiling.kinds import KINDS, Slow, slow

SEED = 19
EACH = 3
"""runs of a kind"""
SHOWN = ("input", "link", "bubble", "straggler")
"""what the chapter shows"""
HELD_OUT = tuple(random.Random(SEED).sample([kind for kind in KINDS if kind not in SHOWN], 5))


class SlowRun(NamedTuple):
    """One of the thirty."""

    kind: str
    """what is wrong with it"""
    number: int
    """0, 1 or 2 of its kind"""
    slow: Slow
    """the slow step and its cure"""

    @property
    def held_out(self) -> bool:
        """Whether its kind was left alone."""
        return self.kind in HELD_OUT


def runs() -> Iterator[SlowRun]:
    """All thirty, always the same."""
    draw = random.Random(SEED)
    for kind in KINDS:
        for number in range(EACH):
            severity = (number + draw.random()) / EACH
            made = slow(kind, severity)
            sizes = {"optimizer_ms": draw.choice((1.0, 2.0, 3.0)), "seed": draw.randrange(1000)}
            if kind == "serial":
                del sizes["optimizer_ms"]
            if made.step.layout == "data":
                sizes["layers"] = draw.choice((3, 4, 5))
            if kind == "straggler":
                sizes["ranks"] = draw.choice((3, 4))
            yield SlowRun(kind, number, Slow(made.step.but(**sizes), made.cured.but(**sizes)))
