"""How many bytes a rank holds at each moment of a step, by part; predicted or measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from labkit.shown import Shown
from labkit.units import check_real, check_whole, format_bytes

if TYPE_CHECKING:
    from labkit.pictures.sketch import Sketch

PARTS = ("parameters", "gradients", "optimizer", "buffers", "gathered", "activations", "temporary")
"""Parts of the bill: what stays between steps, then what a step adds."""


Moment = tuple[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Footprint(Shown):
    """Bytes of one rank over a step: the highest point of each moment."""

    JSON_TAG: ClassVar[str] = "footprint"
    """how saved runs call it"""

    labels: tuple[str, ...]
    """the moments in order: "F0" and "B0" are forward and backward of unit 0, "loss", "step\""""
    num_bytes: np.ndarray
    """int64, shape (num_moments, len(PARTS)): the parts at the highest point of each moment"""
    origin: str
    """"predicted" or "measured\""""
    notes: tuple[str, ...] = ()
    """what must be said with it: "gloo\""""

    def __repr__(self) -> str:
        peak = f"{format_bytes(self.peak_bytes)} at {self.peak}"
        return f"Footprint({len(self.labels)} moments, peak {peak}, {self.badge})"

    def _picture(self, language: str) -> "Sketch":
        from labkit.pictures import bytes_held

        return bytes_held.footprint(self, language=language)

    @property
    def totals(self) -> np.ndarray:
        """All parts together at each moment, int64, shape (num_moments,)."""
        return self.num_bytes.sum(1)

    @property
    def peak_bytes(self) -> int:
        """The highest point of all."""
        return int(self.totals.max())

    @property
    def peak(self) -> str:
        """The moment of the highest point."""
        return self.labels[int(self.totals.argmax())]

    @property
    def badge(self) -> str:
        """Where it comes from, in one line for every picture."""
        return ", ".join((self.origin, *self.notes))

    def to_json(self) -> list:
        """Its labels, bytes and notes, as a saved run keeps them."""
        return [self.labels, self.num_bytes.tolist(), self.notes]

    @classmethod
    def from_json(cls, content: list) -> "Footprint":
        """What ``to_json`` gave; its origin is now "recorded". Raises ValueError or TypeError for
        anything else."""
        labels, num_bytes, notes = content
        moments = [
            (label, dict(zip(PARTS, row, strict=True)))
            for label, row in zip(labels, num_bytes, strict=True)
        ]
        return from_moments(moments, "recorded", notes)


def from_moments(moments: Iterable[Moment], origin: str, notes: Iterable[str] = ()) -> Footprint:
    """A Footprint from (label, bytes by part); of several moments with one label the highest
    counts."""
    highest: dict[str, dict[str, float]] = {}
    for label, parts in moments:
        check_real(
            -9e18, 9e18, **{f"{label}, {part},": num_bytes for part, num_bytes in parts.items()}
        )
        if sum(parts.values()) >= sum(highest.get(label, {}).values()):
            highest[label] = parts
    check_whole(**{"number of moments": len(highest)})
    rows = []
    for parts in highest.values():
        rows.append([round(parts.get(part, 0)) for part in PARTS])
    return Footprint(
        labels=tuple(highest),
        num_bytes=np.array(rows, dtype=np.int64).reshape(-1, len(PARTS)),
        origin=origin,
        notes=tuple(notes),
    )
