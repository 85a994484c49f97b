"""A timeline, and below it the same with one change: simulated, or run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from labkit.pictures import scene
from labkit.pictures.drawing import Scene
from labkit.pictures.sketch import said
from labkit.shown import Said
from labkit.timeline import Timeline
from labkit.words import LANGUAGES, both

if TYPE_CHECKING:
    from labkit.profiling.advice import Advice

INPUT = "input"
"""lane and kind of what is read"""


def advice(found: "Advice", language: str) -> Scene:
    """What was recorded, above what the one change would make of it; the sentences below."""
    lines = {code: found.told(code).split("\n") for code in LANGUAGES}
    notes = [dict(zip(LANGUAGES, each, strict=True)) for each in zip(*lines.values(), strict=True)]
    title = both("Where the time goes")
    if found.best is None:
        drawn = scene.timeline(
            read_beside(found.timeline), title=title, every_message=True, language=language
        )
        return replace(drawn, notes=tuple(said(note, language) for note in notes))
    names = (both("As it is"), both("With the change, simulated"))
    return pair(found.timeline, found.best.timeline, names, title, notes, language)


def pair(
    before: Timeline,
    after: Timeline,
    names: tuple[Said, Said],
    title: Said,
    notes: Sequence[Said],
    language: str,
) -> Scene:
    """Two timelines on one axis."""
    return scene.compare(
        read_beside(before),
        read_beside(after),
        names=names,
        title=title,
        notes=notes,
        every_message=True,
        language=language,
    )


def read_beside(timeline: Timeline) -> Timeline:
    """The same with what is read in a thin bar of its own: who reads does not compute, and what is
    read ahead hides no work."""
    lane = np.where(timeline.kind == INPUT, INPUT, timeline.lane)
    return replace(timeline, lane=lane)
