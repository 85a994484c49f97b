"""``experts()``: tokens to experts, how uneven the load is, what a capacity drops, and who waits;
then run."""

from typing import Any, ClassVar

from labkit.experts import routing
from labkit.experts.layer import Layer
from labkit.pictures import curves
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.timeline import bubble, step_us
from labkit.units import format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import LANGUAGES, catalogue

__all__ = ["experts"]


class ExpertsBoard(Trial):
    """The widget: pages by skew; ``run()`` takes the layer on real ranks and holds it against one
    process."""

    options: ClassVar = {
        "skew": (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
        "experts": (4, 8, 16),
        "capacity": (0.0, 1.0, 1.25, 2.0),
        "top_k": (1, 2),
        "ranks": (2, 4),
    }
    dropdowns = ("capacity",)
    words = (
        ("skew", "how uneven the router is"),
        ("experts", "experts"),
        ("capacity", "capacity of an expert"),
        ("no capacity", "all that come"),
        ("times", "{:g} times an even share"),
        ("top_k", "experts of a token (k)"),
        ("ranks", "ranks"),
        ("loads", "Tokens at each expert, by the rank that they come from"),
        ("expert", "expert {}"),
        ("even", "even share"),
        ("dropped", "dropped"),
        (
            "load",
            "The busiest expert takes {:.2f} times an even share. {} of {} choices are dropped. "
            "The auxiliary loss is {:.2f}; 1 is even.",
        ),
        ("predicted", "Simulated: forward and backward take {}, {} of it idle."),
        ("measured", "Measured: {}, {} idle."),
        ("sent", "The busiest rank hands {} to all-to-alls, another one {}."),
        ("stated", "Stated, not measured: a token takes {} forward; messages take no time."),
        (
            "ran",
            "The ranks' output differs from one process by at most {:.1e}, a gradient by {:.1e}; "
            "every expert got as many tokens as predicted: {}.",
        ),
        ("yes", "yes"),
        ("no", "no"),
    )

    def written(self, name: str, value: Any) -> str:
        """A capacity in words."""
        if name == "capacity":
            return self._words["times"].format(value) if value else self._words["no capacity"]
        return super().written(name, value)

    def scene(self) -> Sketch:
        """The upper picture as it stands."""
        return self._bars(self.step)

    def page(self, step: Layer, at: None) -> str:
        """Tokens at experts, the layer in time, and its figures."""
        line = step.drawn(self.prediction(step), self.found(step), self.language)
        return "".join(
            (
                svg.html(self._bars(step)),
                paragraphs(self._load(step)),
                svg.html(line),
                paragraphs(*self._figures(step)),
            )
        )

    def _bars(self, step: Layer) -> Sketch:
        every = catalogue(self.words)
        rows = []
        came = step.but(capacity=0.0).loads().sum(axis=0)
        for expert, loads in enumerate(step.loads().T.tolist()):
            name = {code: every[code]["expert"].format(expert) for code in LANGUAGES}
            parts = {f"rank {rank}": float(num) for rank, num in enumerate(loads)}
            if step.capacity:
                parts[self._words["dropped"]] = float(came[expert] - sum(loads))
            rows.append((name, parts))
        even = step.top_k * step.tokens * step.ranks / step.experts
        marks = [({code: every[code]["even"] for code in LANGUAGES}, even)]
        if step.capacity:
            name = {code: every[code]["capacity"] for code in LANGUAGES}
            room = routing.capacity(step.tokens, step.experts, step.top_k, step.capacity)
            marks.append((name, float(step.ranks * room)))
        return curves.bars(
            rows,
            title={code: every[code]["loads"] for code in LANGUAGES},
            badge="computed",
            marks=marks,
            stacked=True,
            language=self.language,
        )

    def _load(self, step: Layer) -> str:
        by_expert = step.loads().sum(axis=0)
        choices = step.top_k * step.tokens * step.ranks
        losses = [each.auxiliary_loss for each in step.routings()]
        busiest = by_expert.max() * step.experts / choices
        loss = sum(losses) / len(losses)
        return self._words["load"].format(busiest, step.dropped(), choices, loss)

    def _figures(self, step: Layer) -> list[str]:
        say = self._words
        told = [say["predicted"].format(*_spent(self.prediction(step)))]
        if (measured := self.found(step)) is not None:
            told.append(say["measured"].format(*_spent(measured)))
        handed = [step.payload(rank)["all_to_all"] for rank in range(step.ranks)]
        told.append(say["sent"].format(format_bytes(max(handed)), format_bytes(min(handed))))
        told.append(say["stated"].format(format_us(1e3 * step.token_ms)))
        if run := self.ran(step):
            output = max(each["output_difference"] for each in run)
            gradient = max(each["gradient_difference"] for each in run)
            same = routing.seen(run) == step.loads().tolist()
            told.append(say["ran"].format(output, gradient, say["yes" if same else "no"]))
        return told


def _spent(line: Any) -> tuple[str, str]:
    """How long a pass took, and the idle share."""
    return format_us(step_us(line)), format_share(bubble(line))


def board(step: Layer, language: str | None = None) -> ExpertsBoard:
    """The widget of a layer."""
    return ExpertsBoard(step, language)


def experts(
    language: str | None = None,
    *,
    num_ranks: int = 4,
    skew: float = 1.0,
    capacity: float = 0.0,
) -> ExpertsBoard:
    """Experts: tokens choose them, a capacity drops some, the busiest rank holds up the others; in
    English or "zh"."""
    return ExpertsBoard(Layer(ranks=num_ranks, skew=skew, capacity=capacity), language)
