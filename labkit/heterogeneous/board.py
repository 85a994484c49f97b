"""``unequal_machines()``: a batch dealt to ranks of unlike speed, what the step takes, who waits;
predicted and then run."""

from typing import Any, ClassVar

from labkit.heterogeneous.step import Step
from labkit.pictures.drawing import Picture
from labkit.pictures.painters import svg
from labkit.timeline import Timeline, busy_us, step_us
from labkit.units import format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial

__all__ = ["unequal_machines"]


class UnequalBoard(Trial):
    """The widget: pages by the ranks' speeds; ``run()`` takes the step on real ranks, paced."""

    options: ClassVar = {
        "speeds": ((1.0, 1.0), (1.0, 1.5), (1.0, 2.0), (1.0, 3.0), (1.0, 6.0), (1.0, 2.0, 4.0)),
        "batch": (6, 16, 32, 64, 128),
        "split": ("equal", "by speed", "fastest"),
        "link_ms": (0.0, 2.0, 10.0, 50.0),
    }
    dropdowns = ("split",)
    words = (
        ("speeds", "speeds of the ranks"),
        ("batch", "batch (samples)"),
        ("split", "dealt"),
        ("equal", "equally"),
        ("by speed", "by speed, rounded"),
        ("fastest", "for the shortest step"),
        ("probed", "by measured speed"),
        ("link_ms", "all-reduce (ms)"),
        ("dealt", "Samples: {}. A rank's mean gradient counts {}."),
        ("predicted", "Simulated: step {}; while others compute, ranks wait {} of their time."),
        ("measured", "Measured: step {}, {} of the ranks' time without computing."),
        ("ran", "The weights differ from one process by at most {:.1e}."),
        ("stated", "Stated, not measured: a sample takes {} at speed 1; computing is paced."),
    )

    def written(self, name: str, value: Any) -> str:
        """Speeds as a ratio."""
        if name == "speeds":
            return " : ".join(f"{each:g}" for each in value)
        return super().written(name, value)

    def scene(self) -> Picture:
        """The picture as it stands."""
        return self._scene(self.step)

    def _scene(self, step: Step) -> Picture:
        predicted = self.prediction(step)
        return step.drawn(predicted, self.found(step), self.language, span_us=self._axis_us(step))

    def _axis_us(self, step: Step) -> float:
        """All speeds and ways to deal a batch have one axis."""
        return max(
            step_us(self.prediction(step.but(speeds=speeds, split="equal")))
            for speeds in self._choices["speeds"]
        )

    def page(self, step: Step, at: None) -> str:
        """The picture, and the step's figures."""
        say = self._words
        samples = step.samples()
        counts = (f"{each}/{step.batch}" for each in samples)
        notes = [
            say["dealt"].format(" + ".join(map(str, samples)), ", ".join(counts)),
            say["predicted"].format(
                format_us(step_us(self.prediction(step))), format_share(step.idle_share())
            ),
        ]
        if (measured := self.found(step)) is not None:
            notes.append(say["measured"].format(format_us(step_us(measured)), _without(measured)))
        if run := self.ran(step):
            notes.append(say["ran"].format(max(each["weight_difference"] for each in run)))
        notes.append(say["stated"].format(format_us(1e3 * step.sample_ms)))
        return svg.html(self._scene(step)) + paragraphs(*notes)


def _without(measured: Timeline) -> str:
    """The share of the ranks' time in which they do not compute."""
    total_us = measured.num_ranks * step_us(measured)
    return format_share(1 - float(busy_us(measured).sum()) / total_us if total_us else 0.0)


def board(step: Step, language: str | None = None) -> UnequalBoard:
    """The widget of a step."""
    return UnequalBoard(step, language)


def unequal_machines(
    language: str | None = None,
    *,
    speeds: tuple[float, ...] = (1.0, 3.0),
    split: str = "equal",
    batch: int = 64,
) -> UnequalBoard:
    """How a batch is dealt to ranks of unlike speed, and who waits for whom; in English or "zh".
    Raises ValueError for what is no step."""
    return UnequalBoard(Step(speeds=speeds, split=split, batch=batch), language)
