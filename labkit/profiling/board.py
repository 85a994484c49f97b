"""``bottlenecks()``: a step that is slow in one of ten ways, what the advice says of it, and what
the change would make of it."""

from typing import Any, ClassVar

from labkit import words as spoken_words
from labkit.pictures.painters import svg
from labkit.profiling.advice import advise
from labkit.profiling.bottleneck import Bottleneck
from labkit.profiling.kinds import KINDS, NAMES
from labkit.timeline import Timeline
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import say

__all__ = ["bottlenecks"]


class BottleneckBoard(Trial):
    """The widget: pages by severity; ``run()`` takes the slow step on real ranks."""

    options: ClassVar = {
        "severity": (0.0, 0.25, 0.5, 0.75, 1.0),
        "kind": KINDS,
        "cured": (False, True),
    }
    dropdowns = ("kind",)
    words = (
        ("severity", "how bad it is"),
        ("kind", "what is wrong"),
        ("cured", "the one change"),
        ("cured on", "made"),
        ("cured off", "not made"),
        ("simulated", "Simulated, and what the advice would make of it:"),
        ("measured", "Measured on real ranks at stated times, and its own advice:"),
    )

    def written(self, name: str, value: Any) -> str:
        """A kind in words."""
        if name != "kind":
            return super().written(name, value)
        with spoken_words.meanwhile(self.language):
            return say(NAMES[value])

    def scene(self) -> Any:
        """The upper picture as it stands."""
        return advise(self.prediction(self.step)).picture(language=self.language)

    def page(self, step: Bottleneck, at: None) -> str:
        """The simulated step and its advice; then the measured one's."""
        shown = self._advised("simulated", self.prediction(step))
        measured = self.found(step)
        return shown if measured is None else shown + self._advised("measured", measured)

    def _advised(self, key: str, timeline: Timeline) -> str:
        found = advise(timeline)
        picture = svg.html(found.picture(language=self.language))
        table = found.table(self.language)._repr_html_()
        return paragraphs(self._words[key]) + picture + table


def board(step: Bottleneck, language: str | None = None) -> BottleneckBoard:
    """The widget of a bottleneck."""
    return BottleneckBoard(step, language)


def bottlenecks(
    language: str | None = None, *, kind: str = "input", severity: float = 0.5
) -> BottleneckBoard:
    """A step that is slow in one of ten ways: where its time goes, and the change that would help
    most; in English or "zh"."""
    return BottleneckBoard(Bottleneck(kind=kind, severity=severity), language)
