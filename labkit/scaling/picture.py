"""Efficiency over ranks, and what is lost of it, as curves and bars."""

from collections.abc import Sequence

from labkit import words
from labkit.pictures.axes import Mark
from labkit.pictures.curves import Series, bars, curves
from labkit.pictures.sketch import Said, Sketch
from labkit.scaling.series import Scaled
from labkit.units import format_share
from labkit.words import both, meanwhile, say_number, spoken_in

LOST = {
    "efficiency": both("computing as on one rank"),
    "fixed": both("what does not divide"),
    "contention": both("contention for cores"),
    "communication": both("communication"),
    "waiting": both("waiting for a slower rank"),
}
"""what a step's time went to, in words"""
TARGET = 0.8
"""of the field's rules of thumb: scaling above 80 %"""


def efficiency(found: Sequence[Scaled], *, title: Said = "", language: str | None = None) -> Sketch:
    """Efficiency over ranks: what was simulated a line, what was measured or recorded dots."""
    series = []
    for each in found:
        shares = each.efficiencies
        name = both("strong scaling") if each.kind == "strong" else both("weak scaling")
        is_measured = not each.badge.startswith("simulated")
        xs = [*shares]
        ys = [*shares.values()]
        series.append(Series(name, xs, ys, points=is_measured, joined=is_measured))
    return curves(
        series,
        title=title or both("Efficiency by ranks"),
        badge=" / ".join(dict.fromkeys(each.badge for each in found)),
        x_name=both("ranks"),
        y_name=both("efficiency"),
        y_format=format_share,
        log_x=True,
        marks=[Mark(both("rule of thumb"), TARGET)],
        height_px=230,
        language=language,
    )


def shares(found: Scaled) -> dict[str, dict[str, float]]:
    """Number of ranks -> what the step's time went to, in the language in use, for ``lab.bars``. A
    part that a clock's noise makes negative is 0."""
    told = {}
    for ranks in found.ranks:
        parts = {"efficiency": found.efficiency(ranks), **found.lost(ranks)}
        name = say_number("1 rank", "{ranks} ranks", ranks, ranks=ranks)
        told[name] = {
            LOST[part][words.language()]: max(share, 0.0) for part, share in parts.items()
        }
    return told


def lost(
    found: Scaled,
    beside: Scaled | None = None,
    *,
    title: Said = "",
    language: str | None = None,
) -> Sketch:
    """The step on each number of ranks, cut into what is used and what is lost to what; below it
    the same number of ``beside``, if it was taken there. A part that a clock's noise makes negative
    is not drawn."""
    rows = []
    with meanwhile(spoken_in(language)):
        other = {} if beside is None else shares(beside)
        for name, parts in shares(found).items():
            rows.append((name, parts))
            if name in other and any(list(other[name].values())[1:]):
                rows.append((_from(name, beside.badge), other[name]))
    badges = [each.badge for each in (found, beside) if each is not None]
    return bars(
        rows,
        title=title or both("Where a step's time goes"),
        badge=" / ".join(dict.fromkeys(badges)),
        unit_format=format_share,
        stacked=True,
        language=language,
    )


def _from(name: str, badge: str) -> str:
    """The name of a bar with where it comes from: "4 ranks, measured"."""
    known = words.WORDS[words.language()]
    origin = badge.split(", ")[0]
    return known["comma"].join((name, known.get(origin, origin)))
