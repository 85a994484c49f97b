"""``pipeline_parallelism()``: predict a pipeline's timeline, run the same one on real ranks, see
both on one axis."""

from html import escape
from typing import Any, ClassVar

from labkit import words
from labkit.pictures.drawing import Picture
from labkit.pictures.painters import svg
from labkit.pipeline.schedules import SCHEDULES, TITLES
from labkit.pipeline.step import Step
from labkit.units import format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial

__all__ = ["pipeline_parallelism"]

FORWARD_MS = 50.0
"""stated: long enough beside a message for the measured bubble to be within 2 points"""
AXES_FOR = (4, 8, 16)
"""microbatches whose axis pictures of no more of them share"""
MICROBATCHES = (*range(1, 17), 20, 24, 28, 32)


class PipelineBoard(Trial):
    """The widget. ``controls`` by name, ``predicted`` and ``measured`` timelines, ``run()`` to
    launch and wait."""

    options: ClassVar = {
        "microbatches": MICROBATCHES,
        "schedule": tuple(SCHEDULES),
        "ranks": range(2, 9),
        "chunks": (2, 3, 4),
        "backward_ratio": (1.0, 1.5, 2.0, 2.5, 3.0),
        "message_ms": (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
    }
    dropdowns = ("schedule",)
    words = (
        ("schedule", "schedule"),
        ("ranks", "ranks (p)"),
        ("microbatches", "microbatches (m)"),
        ("chunks", "stages per rank, interleaved"),
        ("backward_ratio", "backward/forward"),
        ("message_ms", "message"),
        ("formula", "Closed form of the literature: bubble {}."),
        (
            "own",
            "It counts each rank from its own first action to its last.",
        ),
        ("none", "No such schedule: {}."),
    )

    def written(self, name: str, value: Any) -> str:
        """Schedules by their titles, messages with their unit."""
        if name == "schedule":
            name = TITLES.get(value, str(getattr(value, "name", value)))
            return words.translated(name, self.language)
        return format_us(1e3 * value) if name == "message_ms" else super().written(name, value)

    def scene(self) -> Picture | None:
        """The picture as it stands; None where there is no such schedule."""
        try:
            return self._scene(self.step)
        except ValueError:
            return None

    def _scene(self, step: Step) -> Picture:
        predicted = self.prediction(step)
        until_us = self._axis_us(step)
        return step.drawn(predicted, self.found(step), self.language, span_us=until_us)

    def _axis_us(self, step: Step) -> float | None:
        """Up to 4, 8 and 16 microbatches share an axis: a bubble that stays must look so."""
        shared = next((most for most in AXES_FOR if step.microbatches <= most), None)
        if shared is None:
            return None
        try:
            return self.prediction(step.but(microbatches=shared)).span_us
        except ValueError:
            return None

    def page(self, step: Step, at: None) -> str:
        """The picture and its words."""
        try:
            picture = self._scene(step)
            formula = step.formula()
        except ValueError as error:
            return f"<p>{escape(self._words['none'].format(error))}</p>"
        notes = []
        if formula is not None:
            notes.append(self._words["formula"].format(format_share(formula)))
        if formula is not None and step.schedule in ("zb_h2", "zbv"):
            notes.append(self._words["own"])
        return svg.html(picture) + paragraphs(*notes)


def board(step: Step, language: str | None = None) -> PipelineBoard:
    """The widget of a step."""
    return PipelineBoard(step, language)


def pipeline_parallelism(
    language: str | None = None,
    *,
    schedule: str = "gpipe",
    num_ranks: int = 4,
    num_microbatches: int = 8,
) -> PipelineBoard:
    """Pipeline parallelism, predicted beside measured, for every schedule of ``SCHEDULES``; in
    English or "zh"."""
    step = Step(
        schedule=schedule,
        ranks=num_ranks,
        microbatches=num_microbatches,
        forward_ms=FORWARD_MS,
    )
    return PipelineBoard(step, language)
