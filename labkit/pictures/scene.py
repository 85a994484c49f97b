"""Timelines to drawing: the Scene of one, and of a prediction above a measurement."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labkit.pictures import figures as figs
from labkit.pictures.drawing import LEFT_PX, PLOT_PX, WIDTH_PX, Heading, Row, Scene
from labkit.pictures.figures import Figures
from labkit.pictures.sketch import Said, said
from labkit.pictures.strips import BoxRow, Strip, boxes, strips
from labkit.timeline import Timeline
from labkit.words import speaking

__all__ = ["LEFT_PX", "PLOT_PX", "WIDTH_PX", "Heading", "Row", "Scene", "compare", "timeline"]

_TOP_PX = 62.0
_HIGHEST_PX = 26.0
_LOWEST_PX = 4.0
"""a rank's row of compute"""
_ROOM_PX = 440
"""for the rows of all ranks"""


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One timeline of a picture."""

    figures: Figures
    """of the timeline, its earliest compute at 0"""
    side: list[tuple[float, str]]
    """the bar beside each rank's row"""
    name: str
    """what it is called in a comparison; "" where it is alone"""
    badge: str
    """where it comes from"""


def timeline(
    tl: Timeline,
    *,
    title: Said | None = None,
    span_us: float | None = None,
    every_message: bool = False,
    messages: bool = False,
    language: str | None = None,
) -> Scene:
    """What every rank did and when: compute, communication in thin strips under it, idle time
    hatched, a bar beside it.

    The bar counts activations held at the peak (pipelines) or the busy share (anything else).
    ``span_us`` lengthens the axis, so that several pictures share one scale. Of a pipeline that was
    measured, messages that no rank stood waiting for are left out, unless ``every_message``. Its
    span and bubble begin and end with computing; with ``messages`` those outside count too.
    """
    every = figs.of_timelines([figs.begun(tl, messages=messages)], messages=messages)
    if not every_message:
        every = [figs.waited(each) for each in every]

    def build(words: dict[str, str]) -> Scene:
        drawn = _drawn(_panels(every, [""], words), words, span_us or 0.0)
        numbers = figs.numbers(every[0], words)
        return replace(drawn, heading=_heading_of(title, words, "timeline"), numbers=numbers)

    return speaking(language, build)


def compare(
    predicted: Timeline,
    measured: Timeline,
    *,
    title: Said | None = None,
    names: tuple[Said, Said] | None = None,
    notes: Sequence[Said] = (),
    span_us: float | None = None,
    every_message: bool = False,
    messages: bool = False,
    language: str | None = None,
) -> Scene:
    """The prediction above the measurement on one axis; a dashed line carries the predicted end
    down. ``names`` are what the two are called, where they are something else; ``notes`` are
    sentences under it; ``span_us``, ``every_message`` and ``messages`` are ``timeline``'s."""
    begun = [figs.begun(each, messages=messages) for each in (predicted, measured)]
    every = figs.of_timelines(begun, messages=messages)
    if not every_message:
        every = [figs.waited(each) for each in every]

    def build(words: dict[str, str]) -> Scene:
        called = [words["predicted"], words["measured"].capitalize()]
        if names is not None:
            called = [said(name, words["code"]) for name in names]
        drawn = _drawn(_panels(every, called, words), words, span_us or 0.0)
        return replace(
            drawn,
            heading=_heading_of(title, words, "compare"),
            notes=tuple(said(note, words["code"]) for note in notes),
            numbers=figs.differences(*every, words),
            marks_us=(every[0].span_us,),
        )

    return speaking(language, build)


def _heading_of(title: Said | None, words: dict[str, str], other: str) -> str:
    """The title in a language; other words where there is none."""
    return said(title, words["code"]) if title else words[other]


def _panels(every: list[Figures], names: list[str], words: dict[str, str]) -> list[_Panel]:
    panels = []
    for figures, side, name in zip(every, figs.sides(every), names, strict=True):
        notes = (figures.timeline.origin, *figures.timeline.notes)
        badge = words["comma"].join(words.get(note, note) for note in notes)
        panels.append(_Panel(figures=figures, side=side, name=name, badge=badge))
    return panels


def _drawn(panels: list[_Panel], words: dict[str, str], span_us: float = 0.0) -> Scene:
    """The panels under one another on one axis; heading and numbers are still to be said."""
    rows, headings = _placed(panels, words)
    columns = _columns(rows)
    start_us, end_us = _axis(panels, span_us)
    return Scene(
        **columns,
        rows=tuple(strip.row for strip in rows),
        headings=tuple(headings),
        start_us=start_us,
        end_us=end_us,
        heading="",
        badge=" / ".join(panel.badge for panel in panels),
        summary=" ".join(_summary(panel, words) for panel in panels),
        table=tuple(_table(panels, words)),
        language=words["code"],
        side_name=words["in_flight" if panels[0].figures.is_pipeline else "busy"],
        in_stages=any(panel.figures.is_pipeline for panel in panels),
    )


def _placed(panels: list[_Panel], words: dict[str, str]) -> tuple[list[Strip], list[Heading]]:
    """The strips of all panels from top to bottom, and a heading above each that has a name."""
    num_ranks = sum(panel.figures.timeline.num_ranks for panel in panels)
    height_px = min(_HIGHEST_PX, max(_LOWEST_PX, _ROOM_PX / max(1, num_ranks)))
    rows: list[Strip] = []
    headings: list[Heading] = []
    y_px = _TOP_PX
    for panel in panels:
        if panel.name:
            y_px += 28 if rows else 14
            headings.append(_heading(panel, words, y_px - 8))
        more, found, y_px = _by_node(panel, y_px, height_px)
        rows += more
        headings += found
    return rows, headings


def _by_node(
    panel: _Panel, y_px: float, height_px: float
) -> tuple[list[Strip], list[Heading], float]:
    """A panel's strips; those of several nodes under a heading each, and where the next may
    begin."""
    hosts = panel.figures.timeline.nodes
    if panel.name or len(set(hosts)) < 2:
        rows, y_px = strips(panel.figures, panel.side, y_px, height_px)
        return rows, [], y_px
    rows = []
    headings = []
    detail = panel.badge  # once, at the first
    for host in dict.fromkeys(hosts):
        y_px += 28 if rows else 14
        headings.append(Heading(text=host, detail=detail, bottom_px=y_px - 8))
        ranks = [rank for rank, its in enumerate(hosts) if its == host]
        more, y_px = strips(panel.figures, panel.side, y_px, height_px, ranks)
        rows += more
        detail = ""
    return rows, headings, y_px


def _heading(panel: _Panel, words: dict[str, str], bottom_px: float) -> Heading:
    """A panel's name, its numbers and its badge in one line, so without what the comparison's own
    line says."""
    numbers = figs.numbers(panel.figures, words)
    if not panel.figures.is_pipeline:
        idle = {words["idle"]: figs.format_share(panel.figures.idle)}
        numbers = [
            (name, idle.get(name, value)) for name, value in numbers if name != words["span"]
        ]
    told = [f"{name} {value}" for name, value in numbers]
    return Heading(text=panel.name, detail=" · ".join([*told, panel.badge]), bottom_px=bottom_px)


def _columns(rows: list[Strip]) -> dict[str, np.ndarray]:
    """The boxes of all strips as the columns of a Scene."""
    found: list[BoxRow] = []
    for index, strip in enumerate(rows):
        found += boxes(strip, index)
    found.sort(key=lambda box: (box.row, box.x0_us, -box.x1_us))
    return {
        "row": _column((box.row for box in found), np.int64),
        "kind": _column((box.kind for box in found), str),
        "chunk": _column((box.chunk for box in found), np.int64),
        "texts": _column((box.texts for box in found), str).reshape(-1, 3),
        "x0_us": _column((box.x0_us for box in found), float),
        "x1_us": _column((box.x1_us for box in found), float),
        "num_bytes": _column((box.num_bytes for box in found), np.int64),
    }


def _column(values: Iterable, kind: type) -> np.ndarray:
    return np.array(list(values), dtype=kind)


def _axis(panels: list[_Panel], span_us: float) -> tuple[float, float]:
    """Where the axis begins and ends."""
    starts_us = []
    ends_us = [span_us]
    for panel in panels:
        tl = panel.figures.timeline
        starts_us.append(float(tl.start_us.min(initial=0.0)))
        ends_us += [panel.figures.span_us, float(tl.end_us.max(initial=0.0))]
    return min(starts_us), max(ends_us) or 1000.0


def _table(panels: list[_Panel], words: dict[str, str]) -> list[tuple[str, ...]]:
    """A row per panel and rank; the panel's name stands first where it has one."""
    head = figs.table_head(panels[0].figures, words)
    if not panels[0].name:
        return [head, *figs.table_rows(panels[0].figures, panels[0].side)]
    lines = [(words["timeline"], *head)]
    for panel in panels:
        rows = figs.table_rows(panel.figures, panel.side)
        lines += [(panel.name, *row) for row in rows]
    return lines


def _summary(panel: _Panel, words: dict[str, str]) -> str:
    told = figs.summary(panel.figures, panel.badge, words)
    return f"{panel.name}{words['colon']}{told}" if panel.name else told
