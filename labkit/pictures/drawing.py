"""A picture before anyone has painted it: what every picture says, and the Scene, which is boxes on
rows along an axis of time. ``svg``, ``mpl`` and ``text`` paint it.

Lengths are pixels of a picture WIDTH_PX wide; times are microseconds. A box is exactly as wide as
its time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labkit.pictures.style import IDLE, KINDS, style
from labkit.words import both, sentence, titled

WIDTH_PX = 900
LEFT_PX = 58
RIGHT_PX = 112
PLOT_PX = WIDTH_PX - LEFT_PX - RIGHT_PX


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strip of boxes."""

    name: str
    """what stands left of it; "" for the thin strips of communication"""
    rank: int
    """the rank it belongs to"""
    lane: str
    """"compute" or "comm" """
    top_px: float
    """its upper edge"""
    height_px: float
    """its height"""
    side: float = 0.0
    """the length of the bar at its right, 0 to 1"""
    side_text: str = ""
    """the number of that bar"""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A line above a panel: bold words, then plain ones."""

    text: str
    """whose timeline this is"""
    detail: str
    """its numbers"""
    bottom_px: float
    """its baseline"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """What every picture says, whatever it draws."""

    heading: str
    """what the picture shows"""
    badge: str
    """where it comes from: "simulated", "measured, paced, gloo" """
    table: tuple[tuple[str, ...], ...]
    """its numbers; the first row holds the column names"""
    summary: str = ""
    """one sentence; the title, if nothing more is to be said"""
    numbers: tuple[tuple[str, str], ...] = ()
    """(name, value) pairs that stand in the title"""
    notes: tuple[str, ...] = ()
    """sentences that stand under it"""
    headings: tuple[Heading, ...] = ()
    """one per panel of a comparison"""
    language: str = "en"
    """"en" or "zh" """
    in_english: "Callable[[], Picture] | None" = field(default=None, repr=False)
    """builds the same in English, for painters without a Chinese font"""

    def __post_init__(self) -> None:
        if not self.summary:
            told = sentence(self.heading, self.numbers, self.badge, self.language)
            object.__setattr__(self, "summary", told)

    @property
    def title(self) -> str:
        """Heading, numbers and origin in one line, for screen readers and terminals."""
        return titled(self.heading, self.numbers, self.badge, self.language)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene(Picture):
    """What ranks did and when. The box columns have shape (num_boxes,), sorted by row, then
    start."""

    row: np.ndarray
    """int64: index into ``rows``"""
    kind: np.ndarray
    """str: F, B, I, W, send, ..., "idle" """
    chunk: np.ndarray
    """int64: 0 for a rank's first stage, 1 for its second: a lighter shade"""
    texts: np.ndarray
    """str (num_boxes, 3): what may stand in the box, the longest first"""
    x0_us: np.ndarray
    """float64: left edge"""
    x1_us: np.ndarray
    """float64: right edge"""
    num_bytes: np.ndarray
    """int64: payload of a message, 0 for anything else"""
    rows: tuple[Row, ...]
    """the strips, from top to bottom"""
    start_us: float
    """left end of the axis"""
    end_us: float
    """right end of the axis"""
    side_name: str
    """what the bars at the right count"""
    marks_us: tuple[float, ...] = ()
    """times worth a dashed line: where the prediction ends"""
    in_stages: bool = False
    """whether a pipeline is drawn: its idle time is a bubble"""

    @property
    def bottom_px(self) -> float:
        """Where the rows end and the axis begins."""
        return max((row.top_px + row.height_px for row in self.rows), default=100.0) + 5

    @property
    def kinds(self) -> list[str]:
        """The kinds in the picture, in the legend's order."""
        present = set(self.kind.tolist())
        known = [kind for kind in KINDS if kind in present]
        return known + sorted(present - set(KINDS))

    def called(self, kind: str) -> str:
        """What a kind is called in the legend."""
        if kind == IDLE and not self.in_stages:
            return both("idle")[self.language]
        return style(kind).words[self.language]

    def x_px(self, time_us: float | np.ndarray) -> float | np.ndarray:
        """Where a time lies across the picture."""
        return LEFT_PX + (time_us - self.start_us) * PLOT_PX / (self.end_us - self.start_us)
