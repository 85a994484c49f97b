"""Cases under one another, each against its card."""

from collections.abc import Sequence

from labkit.case_studies.llama import FREE, Case
from labkit.pictures.sketch import Sketch
from labkit.planner.plan.picture import memory_bars

_WORDS = (
    ("trained by", "trained by"),
    ("type", "type"),
    ("placement", "placement"),
    ("cards", "cards"),
    ("over", "over"),
    ("lightest", "lightest"),
    ("token rate", "token rate"),
)
"""Heads of this subject's tables: (head, what it says)"""


def drawn(cases: Sequence[Case], language: str | None = None) -> Sketch:
    """What the fullest card of each case holds, by part; a dashed line where ``FREE`` of it is
    left. Raises ValueError for what is no case."""
    if not cases or not all(isinstance(case, Case) for case in cases):
        raise ValueError(f"cases are a list of Case, as cures() gives it; got {cases!r:.80}")
    plans = [(case.name, case.plan) for case in cases]
    return memory_bars(plans, spare=FREE, language=language)
