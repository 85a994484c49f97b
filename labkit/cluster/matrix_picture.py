"""The matrix of a set-up check as a drawing: a box for every two ranks, the fuller the faster."""

from typing import TYPE_CHECKING

import numpy as np

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, origin
from labkit.pictures.style import CYCLE
from labkit.words import catalogue, sentence, speaking

if TYPE_CHECKING:
    from labkit.cluster.matrix import Matrix

_WORDS = catalogue(
    (
        ("title", "Bandwidth from rank to rank, MB/s"),
        (
            "full",
            "A row sends to the columns. A box is filled in proportion, the fastest whole: {} MB/s",
        ),
        ("slow", "slow link: {}"),
        ("even", "no link between hosts is much slower than the others"),
    )
)
_TOP_PX = 92.0
_LEFT_PX = 120.0
_ROW_PX = 30.0
_GAP_PX = 4.0
MOST_DRAWN = 16
"""ranks in a picture"""


def matrix(found: "Matrix", *, language: str | None = None) -> Sketch:
    """A row for each rank that sends, a column for each that receives; slow links have a thick
    edge. Raises ValueError for more ranks than one can look at."""
    if len(found.ranks) > MOST_DRAWN:
        raise ValueError(
            f"a picture shows {MOST_DRAWN} ranks at most; got {len(found.ranks)}: found.links() is "
            "the table of all links"
        )
    return speaking(language, lambda words: _drawn(found, words))


def _drawn(found: "Matrix", words: dict[str, str]) -> Sketch:
    say = _WORDS[words["code"]]
    fastest = float(np.nanmax(found.mb_per_s)) if len(found.ranks) > 1 else 0.0
    slow = found.slow_links()
    verdicts = [say["slow"].format(f"{start} → {end}") for start, end in slow] or [say["even"]]
    names = [f"{host} · {rank}" for rank, host in enumerate(found.hosts)]
    height_px = _TOP_PX + len(names) * _ROW_PX
    full = say["full"].format(_short(fastest))
    badge = origin(found.badge, words)
    shapes = [*_boxes(found, fastest, set(slow), names), Words(0, height_px + 22, full)]
    rows = [("", *names)]
    for name, speeds in zip(names, found.mb_per_s, strict=True):
        rows.append((name, *("" if np.isnan(each) else _short(each) for each in speeds)))
    return Sketch(
        shapes=tuple(shapes),
        height_px=height_px + 34,
        heading=say["title"],
        badge=badge,
        numbers=tuple((verdict, "") for verdict in verdicts[:2]),
        table=tuple(rows),
        summary=sentence(say["title"], [tuple(verdicts), (full,)], badge, words["code"]),
        language=words["code"],
    )


def _short(mb_per_s: float) -> str:
    """A speed in three digits or so: "24.6", "5,570"."""
    return f"{mb_per_s:.3g}" if mb_per_s < 1000 else f"{float(f'{mb_per_s:.3g}'):,.0f}"


def _boxes(found: "Matrix", fastest: float, slow: set, names: list[str]) -> list[Shape]:
    """The names on both sides, and a box for every two ranks."""
    column_px = (WIDTH_PX - _LEFT_PX) / len(names)
    shapes: list[Shape] = []
    for source, name in enumerate(names):
        y_px = _TOP_PX + source * _ROW_PX
        middle_px = _LEFT_PX + (source + 0.5) * column_px
        shapes.append(Words(_LEFT_PX - 10, y_px + 18, name, anchor="end"))
        shapes.append(Words(middle_px, _TOP_PX - 10, name, anchor="middle"))
        for target, speed in enumerate(found.mb_per_s[source]):
            if source != target:
                x_px = _LEFT_PX + target * column_px
                link = (found.hosts[source], found.hosts[target])
                size = (column_px - _GAP_PX, _ROW_PX - _GAP_PX)
                about = {"texts": (_short(speed),), "marked": link in slow}
                share = float(speed) / fastest
                shapes.append(Box(x_px, y_px, *size, CYCLE[0][0], fill=share, **about))
    return shapes
