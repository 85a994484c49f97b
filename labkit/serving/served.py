"""What a server did with its requests, simulated or measured: the noun of this subject. It shows
itself as slots and as the queue before them, on one axis of time."""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.serving.queue import Visit
from labkit.shown import Shown
from labkit.timeline import ORIGINS, Timeline, from_rows
from labkit.units import check_whole, check_word, format_us

if TYPE_CHECKING:
    from labkit.shown import Picture

PARTS = ("queue", "prefill", "decode", "held")
"""Of a request's time: before its slot; the prompt; tokens after the first, with the prefills of
others in between; done, and still in its slot"""


class Figures(NamedTuple):
    """What is said of a server."""

    latency_p50_us: float
    """from coming to leaving: half of the requests take less"""
    latency_p95_us: float
    """19 of 20 take less"""
    first_p50_us: float
    """from coming to the first token: half take less"""
    first_p95_us: float
    """19 of 20 take less"""
    tokens_per_s: float
    """of all answers, from the first request's coming to the last one's leaving"""
    used_share: float
    """of the slots' time: somebody in there still gets tokens"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Served(Shown):
    """All visits of one load."""

    visits: tuple[Visit, ...]
    """one per request, in the order of coming"""
    slots: int
    """how many could be inside"""
    origin: str
    """"simulated", "measured" or "recorded\""""
    notes: tuple[str, ...] = ()
    """what must be said with it: "paced", "gloo" """

    def __post_init__(self) -> None:
        check_word(self.origin, ORIGINS, "the origin of what was served")
        check_whole(1, 1 << 16, slots=self.slots)
        for each in self.visits:
            check_whole(0, self.slots - 1, slot=each.slot)
            times = each[3:]
            if not (np.isfinite(times).all() and list(times) == sorted(times)):
                raise ValueError(
                    "a request comes, enters, has its first and its last token and leaves, in "
                    f"this order; got {each}"
                )

    def __len__(self) -> int:
        return len(self.visits)

    def __repr__(self) -> str:
        if not self.visits:
            return f"Served(0 requests, {self.badge})"
        found = self.figures()
        told = f"p95 {format_us(found.latency_p95_us)}, {found.tokens_per_s:.0f} tokens/s"
        return f"Served({len(self)} requests, {self.slots} slots, {told}, {self.badge})"

    def _picture(self, language: str) -> "Picture":
        from labkit.serving import picture

        return picture.slots(self, language=language)

    @property
    def badge(self) -> str:
        """Where it comes from, in one line."""
        return ", ".join((self.origin, *self.notes))

    @property
    def latency_us(self) -> np.ndarray:
        """From coming to leaving, float64 of shape (num_requests,)."""
        return np.array([each.left_us - each.arrives_us for each in self.visits], dtype=float)

    @property
    def first_token_us(self) -> np.ndarray:
        """From coming to the first token, float64 of shape (num_requests,)."""
        return np.array([each.first_us - each.arrives_us for each in self.visits], dtype=float)

    @property
    def span_us(self) -> float:
        """From the first one's coming to the last one's leaving."""
        if not self.visits:
            return 0.0
        comes_us = min(each.arrives_us for each in self.visits)
        return max(each.left_us for each in self.visits) - comes_us

    def spent_us(self) -> dict[str, float]:
        """The mean latency by PARTS; they sum to it."""
        totals = dict.fromkeys(PARTS, 0.0)
        for each in self.visits:
            for part, (start_us, end_us) in zip(PARTS, _stretches(each), strict=True):
                totals[part] += (end_us - start_us) / len(self.visits)
        return totals

    def figures(self) -> Figures:
        """Its latencies, throughput and used share. Raises ValueError where nobody came."""
        if not self.visits:
            raise ValueError("figures are of one request or more; got 0, for nobody came")
        p50, p95 = np.percentile(self.latency_us, (50, 95)).tolist()
        first50, first95 = np.percentile(self.first_token_us, (50, 95)).tolist()
        span_us = self.span_us or 1.0
        tokens = sum(each.output for each in self.visits)
        used_us = sum(each.last_us - each.admitted_us for each in self.visits)
        return Figures(
            latency_p50_us=p50,
            latency_p95_us=p95,
            first_p50_us=first50,
            first_p95_us=first95,
            tokens_per_s=1e6 * tokens / span_us,
            used_share=used_us / (self.slots * span_us),
        )

    def waiting(self) -> list[tuple[float, int]]:
        """How many wait before the slots: (microseconds, number from then on) at each change."""
        changes: dict[float, int] = {}
        for each in self.visits:
            changes[each.arrives_us] = changes.get(each.arrives_us, 0) + 1
            changes[each.admitted_us] = changes.get(each.admitted_us, 0) - 1
        found = []
        number = 0
        for at_us in sorted(changes):
            number += changes[at_us]
            found.append((at_us, number))
        return found

    def timeline(self) -> Timeline:
        """Slots in the place of ranks, for the trace viewer: prefill and decode on the lane
        "compute", the others on lanes of their own; labels are the requests' numbers."""
        rows = []
        for each in self.visits:
            for part, (start_us, end_us) in zip(PARTS, _stretches(each), strict=True):
                lane = "compute" if part in ("prefill", "decode") else part
                if end_us > start_us:
                    rows.append((each.slot, lane, part, str(each.number), start_us, end_us, 0))
        return from_rows(rows, num_ranks=self.slots, origin=self.origin, notes=self.notes)


def _stretches(visit: Visit) -> list[tuple[float, float]]:
    """(start, end) of each of PARTS, in microseconds."""
    times_us = visit[3:]
    return list(itertools.pairwise(times_us))
