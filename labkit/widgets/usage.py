"""``timeline(run)``: what every rank did and when, and how much of its time was compute,
communication and idle."""

from dataclasses import dataclass, replace
from html import escape

import ipywidgets as w
import numpy as np

from labkit.launching.run import Run
from labkit.pictures import scene, style
from labkit.pictures.painters import svg
from labkit.timeline import COMM, COMPUTE, Timeline, busy_us, hidden_comm, step_us
from labkit.units import format_share, format_us
from labkit.widgets.picture import Board, answer_anytime, spoken
from labkit.widgets.trace import viewed
from labkit.words import spoken_in

_WORDS = (
    ("window", "window"),
    ("compute", "compute"),
    ("exposed", "communicating or waiting"),
    ("idle", "neither"),
    ("hidden", "communicating under compute"),
)
MANY = 2000
"""Spans in one SVG; it takes some 100 ms beyond."""
_FILLS = {
    "compute": f"background:{style.KINDS['compute'].colour}",
    "exposed": "background:repeating-linear-gradient(45deg,#10161f66 0 1px,#0000 1px 4px),"
    f"{style.KINDS['send'].colour}",
    "idle": "background:repeating-linear-gradient(135deg,currentColor 0 1px,#0000 1px 6px)",
}
_CELL = "padding:0 .6em;vertical-align:middle"


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Where one rank's time went, in microseconds; compute + exposed + idle is the whole."""

    compute_us: float
    """computing"""
    exposed_us: float
    """sending, receiving or waiting to receive, while nothing was computed"""
    hidden_us: float
    """communicating under compute"""
    idle_us: float
    """neither"""


def usage(timeline: Timeline) -> list[Usage]:
    """Where every rank's time went, between the first start and the last end of all ranks."""
    if not len(timeline):
        return []
    whole_us = step_us(timeline)
    return [_of_rank(timeline, rank, whole_us) for rank in range(timeline.num_ranks)]


def _of_rank(timeline: Timeline, rank: int, whole_us: float) -> Usage:
    mine = timeline.select(timeline.rank == rank)
    compute_us = float(busy_us(mine, COMPUTE)[rank])
    comm_us = float(busy_us(mine, COMM)[rank])
    hidden_us = hidden_comm(mine) * comm_us
    return Usage(
        compute_us=compute_us,
        exposed_us=comm_us - hidden_us,
        hidden_us=hidden_us,
        idle_us=whole_us - compute_us - comm_us + hidden_us,
    )


class TimelineBoard(Board):
    """The widget: a picture of a window of time, and the shares of each rank in that window.

    Of more than ``MANY`` spans the picture is the trace viewer's, and the window what is selected
    there.
    """

    def __init__(self, timeline: Timeline, language: str | None = None) -> None:
        self.timeline = timeline
        self.language = spoken_in(language)
        self._words = spoken(_WORDS, language)
        begin_us = float(timeline.start_us.min()) if len(timeline) else 0.0
        stops_us = np.linspace(begin_us, float(timeline.end_us.max(initial=begin_us)), 101).tolist()
        self.window = w.SelectionRangeSlider(
            options=[(format_us(t - begin_us), t) for t in stops_us],
            index=(0, 100),
            description=self._words["window"],
            layout=w.Layout(width="600px", max_width="100%"),
        )
        self.page = w.HTML()
        self.viewer = None
        if len(timeline) > MANY:
            self.viewer = viewed(scene.timeline(timeline, language=language))
        super().__init__([self.viewer, self.page] if self.viewer else [self.page, self.window])
        self._draw()
        chooser = self.viewer or self.window
        chooser.observe(lambda _: self._draw(), "selection" if self.viewer else "index")
        answer_anytime(chooser)

    @property
    def shown(self) -> Timeline:
        """What lies in the window; spans that cross its edges are cut there."""
        selected = self.viewer.selection if self.viewer else []
        start_us, end_us = selected or self.window.value
        overlaps = (self.timeline.end_us >= start_us) & (self.timeline.start_us <= end_us)
        inside = self.timeline.select(overlaps)
        return replace(
            inside,
            start_us=np.maximum(inside.start_us, start_us),
            end_us=np.minimum(inside.end_us, end_us),
        )

    def scene(self) -> scene.Scene:
        """The picture of the window."""
        return scene.timeline(self.shown, language=self.language)

    def _draw(self) -> None:
        head = "".join(
            f'<th style="padding:0 .6em">{_headed(name, self._words[name])}</th>'
            for name in (*_FILLS, "hidden")
        )
        rows = "".join(_row(rank, used) for rank, used in enumerate(usage(self.shown)))
        picture = "" if self.viewer else svg.html(self.scene())
        self.page.value = f"{picture}<table><tr><td></td><td></td>{head}</tr>{rows}</table>"


def _headed(name: str, words: str) -> str:
    """A share's name behind the look it has in a bar; what lies under compute has no part of the
    bar."""
    look = ""
    if name in _FILLS:
        box = "display:inline-block;width:1em;height:.7em;margin-right:.4em"
        look = f'<span style="{box};{_FILLS[name]}"></span>'
    first, _, more = escape(words).partition(" ")
    return f'<span style="white-space:nowrap">{look}{first}</span> {more}'


def _row(rank: int, used: Usage) -> str:
    """A bar of compute, communication and idle time, and their shares of the whole."""
    times_us = {"compute": used.compute_us, "exposed": used.exposed_us, "idle": used.idle_us}
    whole_us = sum(times_us.values()) or 1.0
    bar = "".join(
        f'<div style="width:{100 * us / whole_us:.2f}%;{_FILLS[name]}"></div>'
        for name, us in times_us.items()
    )
    cells = "".join(
        f'<td style="{_CELL};white-space:nowrap">{format_share(us / whole_us)}</td>'
        for us in (*times_us.values(), used.hidden_us)
    )
    return (
        f'<tr><td style="{_CELL};white-space:nowrap">rank {rank}</td>'
        f'<td style="{_CELL}"><div '
        f'style="display:flex;width:min(300px,15vw);height:12px">{bar}</div></td>'
        f"{cells}</tr>"
    )


def timeline(run_or_timeline: Run | Timeline, language: str | None = None) -> TimelineBoard:
    """Compute, communication and idle time of every rank, for any run or timeline, in the language
    in use, or in English ("en") or Chinese ("zh")."""
    found = run_or_timeline if isinstance(run_or_timeline, Timeline) else run_or_timeline.timeline()
    return TimelineBoard(found, spoken_in(language))
