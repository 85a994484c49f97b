"""``collectives()``: every collective and algorithm step by step, its volume and time; then the
same on real ranks."""

import itertools
from typing import Any, ClassVar

import ipywidgets as w

from labkit.collectives import picture
from labkit.collectives.algorithms import ALGORITHMS, lower_bound_bytes
from labkit.collectives.call import NETWORKS, Call, network_name
from labkit.collectives.plans import sent_bytes
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.timeline import Timeline
from labkit.units import check_whole, format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import called

__all__ = ["collectives"]

CHOICES = tuple(
    itertools.chain.from_iterable(
        itertools.product([primitive], builders) for primitive, builders in ALGORITHMS.items()
    )
)
"""(collective, algorithm), all there are"""
_WORDS = (
    ("step", "step"),
    ("what", "collective"),
    ("ranks", "ranks (N)"),
    ("num_bytes", "size (S)"),
    ("network", "network"),
    (
        "steps",
        "{} steps; the busiest rank sends {}. Where only ranks add and copy, {} is the least.",
    ),
    ("time", "Simulated time {}."),
    ("formula", "Closed form: {}."),
    (
        "measured",
        "Measured: {} ({} of the simulated time); each rank sent {}.",
    ),
)


class CollectivesBoard(Trial):
    """The widget: a page per step of the plan, a player, and the whole plan on real ranks over
    paced links."""

    options: ClassVar = {
        "step": range(64),
        "what": CHOICES,
        "ranks": range(2, 17),
        "num_bytes": (1e3, 1e5, 1e6, 4e6, 25e6, 1e9),
        "network": NETWORKS,
    }
    view = "step"
    dropdowns = ("what", "network")
    words = _WORDS
    is_plain = False
    """whether it keeps to itself what a collective costs"""

    def __init__(self, step: Call, language: str | None = None) -> None:
        self.player = w.Play(interval=900, layout=w.Layout(width="auto"))
        super().__init__(step, language, around=(self.player,))
        slider = self.controls["step"]
        self.links = [w.jslink((self.player, "value"), (slider, "index"))]
        slider.observe(lambda _: self._fit_player(), "options")
        self._fit_player()

    def _fit_player(self) -> None:
        self.player.max = len(self.controls["step"].options) - 1

    def turn_to(self, step: int) -> "CollectivesBoard":
        """Opens it after so many steps of the plan. Raises ValueError for a step that it lacks."""
        check_whole(0, self.player.max, step=step)
        self.player.value = step
        self.controls["step"].index = step
        return self

    def plain(self) -> "CollectivesBoard":
        """Leaves out bytes, times and bounds, and the controls that only these need, for readers
        who have yet to find them."""
        self.is_plain = True
        row = self.children[0]
        needless = {self.controls["num_bytes"], self.controls["network"]}
        row.children = [each for each in row.children if each not in needless]
        self.book.redraw(wait=True)
        return self

    def standing(self, name: str, step: Call) -> Any:
        """One control chooses the collective and its algorithm."""
        return (step.collective, step.algorithm) if name == "what" else super().standing(name, step)

    def changes(self, name: str, value: Any) -> dict[str, Any]:
        """One control chooses the collective and its algorithm."""
        if name == "what":
            return {"collective": value[0], "algorithm": value[1]}
        return super().changes(name, value)

    def written(self, name: str, value: Any) -> str:
        """Collectives by their names, sizes with units."""
        if name == "what":
            return called(value, self.language)
        if name == "network":
            return network_name(value, self.language)
        return format_bytes(value) if name == "num_bytes" else super().written(name, value)

    def num_pages(self, step: Call) -> int:
        """One per step of the plan, and one before the first."""
        return len(step.plan().steps) + 1

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._scene(self.step, self.at)

    def _scene(self, step: Call, at: int) -> Sketch:
        return picture.collective(
            step.plan(),
            at,
            num_bytes=step.num_bytes,
            network=step.links(),
            total_us=_total_us(self.prediction(step)),
            plain=self.is_plain,
            language=self.language,
        )

    def page(self, step: Call, at: int) -> str:
        """The picture of a step, the plan's figures, and what was measured of it."""
        notes = [] if self.is_plain else self._predicted(step)
        below = ""
        measured = self.found(step)
        if measured is not None:
            predicted = self.prediction(step)
            notes.append(self._measured(step, predicted, measured))
            below = svg.html(step.drawn(predicted, measured, self.language))
        return svg.html(self._scene(step, at)) + paragraphs(*notes) + below

    def _predicted(self, step: Call) -> list[str]:
        """The plan's volume and time in words."""
        steps = step.plan()
        most = sent_bytes(steps, step.num_bytes).max()
        least = lower_bound_bytes(steps.primitive, steps.num_ranks, step.num_bytes)
        took_us = _total_us(self.prediction(step))
        notes = [
            self._words["steps"].format(len(steps.steps), format_bytes(most), format_bytes(least)),
            self._words["time"].format(format_us(took_us)),
        ]
        formula = step.formula_us()
        if formula is not None:
            notes.append(self._words["formula"].format(format_us(formula)))
        return notes

    def _measured(self, step: Call, predicted: Timeline, measured: Timeline) -> str:
        """The run's time and bytes in words."""
        run = self.ran(step)
        sent = sorted({result["sent_bytes"] for result in run})
        ends = dict.fromkeys((sent[0], sent[-1]))  # once where all sent as much
        return self._words["measured"].format(
            format_us(measured.span_us),
            format_share(measured.span_us / predicted.span_us),
            " – ".join(format_bytes(num_bytes) for num_bytes in ends),
        )


def _total_us(timeline: Timeline) -> float:
    """When its last message is over."""
    return float(timeline.end_us.max(initial=0.0))


def board(step: Call, language: str | None = None) -> CollectivesBoard:
    """The widget of a call."""
    return CollectivesBoard(step, language)


def collectives(
    language: str | None = None,
    *,
    primitive: str = "all_reduce",
    algorithm: str = "ring",
    num_ranks: int = 4,
) -> CollectivesBoard:
    """Every collective and algorithm, step by step on 2 to 16 ranks, with volume and time; in
    English or "zh"."""
    call = Call(collective=primitive, algorithm=algorithm, ranks=num_ranks)
    return CollectivesBoard(call, language)
