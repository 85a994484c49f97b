"""``ddp_communication()``: buckets and overlap in a step of data parallelism, predicted and then
run."""

from typing import Any, ClassVar

from labkit.collectives.network import Link
from labkit.data_parallel.step import LINK, Step, shaped
from labkit.pictures.drawing import Picture
from labkit.pictures.painters import svg
from labkit.timeline import Timeline, exposed_comm_us, hidden_comm, step_us
from labkit.units import format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import WORDS

__all__ = ["ddp_communication"]

TOTAL_MB = 24.0
FORWARD_MS = 60.0
"""of all layers together"""
MOST_LISTED = 8
"""buckets whose sizes are said"""
SHAPES = {
    "even": (1,) * 6,
    "head": (1, 1, 1, 1, 1, 7),
    "embedding": (7, 1, 1, 1, 1, 1),
    "many": (1,) * 24,
}
LAYERS = {name: shaped(parts, TOTAL_MB, FORWARD_MS) for name, parts in SHAPES.items()}
NAMES = {layers: name for name, layers in LAYERS.items()}
LINKS = tuple(
    Link(alpha_us=LINK.alpha_us, bandwidth_gb_per_s=each) for each in (0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
)


class DdpBoard(Trial):
    """The widget: pages by bucket size; ``run()`` trains real DistributedDataParallel with the same
    setting."""

    options: ClassVar = {
        "bucket_mb": (0.1, 0.5, 1, 2, 4, 6, 8, 12, 16, 25, 50, 100),
        "layers": tuple(LAYERS.values()),
        "link": LINKS,
        "ranks": (2, 3, 4),
        "overlap": (True, False),
    }
    dropdowns = ("layers", "overlap")
    words = (
        ("bucket_mb", "bucket (MiB)"),
        ("layers", "layers"),
        ("even", "6 equal layers"),
        ("head", "6, the last one large"),
        ("embedding", "6, the first one large"),
        ("many", "24 small layers"),
        ("own", "{} layers, {}"),
        ("link", "link (GB/s)"),
        ("no link", "this machine's"),
        ("ranks", "ranks"),
        ("overlap", "overlap"),
        ("overlap on", "on"),
        ("overlap off", "off: after the backward"),
        (
            "predicted",
            "Simulated: step {}, {} of the communication hidden under compute, {} exposed per "
            "rank.",
        ),
        (
            "measured",
            "Measured: step {}, {} hidden, {} exposed.",
        ),
        ("buckets", "Buckets in the order they fill: {}."),
        (
            "stated",
            "Stated, not measured: forward {} and backward {} in all, link latency {}; buckets "
            "take a ring's time.",
        ),
    )

    def written(self, name: str, value: Any) -> str:
        """Layers by their shape, links by their bandwidth."""
        if name == "link":
            return f"{value.bandwidth_gb_per_s:g}" if value else self._words["no link"]
        if name == "layers":
            return self._shape(value)
        return super().written(name, value)

    def _shape(self, layers: Any) -> str:
        if layers in NAMES:
            return self._words[NAMES[layers]]
        model = self.experiment.model()
        total = format_bytes(sum(layer.num_bytes for layer in model))
        return self._words["own"].format(len(model), total)

    def scene(self) -> Picture:
        """The picture as it stands."""
        return self._scene(self.step)

    def _scene(self, step: Step) -> Picture:
        predicted = self.prediction(step)
        return step.drawn(predicted, self.found(step), self.language, span_us=self._axis_us(step))

    def _axis_us(self, step: Step) -> float:
        """Every bucket size has one axis: that of the smallest or the largest, whichever is
        longer."""
        sizes = self._choices["bucket_mb"]
        ends = (step.but(bucket_mb=size) for size in (sizes[0], sizes[-1]))
        return max(step_us(self.prediction(each)) for each in ends)

    def page(self, step: Step, at: None) -> str:
        """The picture, and the step's figures."""
        say = self._words
        notes = [_figures(say["predicted"], self.prediction(step))]
        measured = self.found(step)
        if measured is not None:
            notes.append(_figures(say["measured"], measured))
        notes.append(say["buckets"].format(self._listed(step)))
        layers = step.model()
        forward_us = sum(layer.forward_us for layer in layers)
        backward_us = sum(layer.backward_us for layer in layers)
        times_us = (forward_us, backward_us, step.link.alpha_us)
        notes.append(say["stated"].format(*map(format_us, times_us)))
        return svg.html(self._scene(step)) + paragraphs(*notes)

    def _listed(self, step: Step) -> str:
        """The sizes of the first buckets."""
        layers = step.model()
        sizes = []
        for bucket in step.buckets():
            sizes.append(format_bytes(sum(layers[index].num_bytes for index in bucket)))
        listed = WORDS[self.language]["comma"].join(sizes[:MOST_LISTED])
        return f"{listed} ..." if len(sizes) > MOST_LISTED else listed


def board(step: Step, language: str | None = None) -> DdpBoard:
    """The widget of a step. Raises ValueError for one without a stated link: nothing is predicted
    of it."""
    step.predict()
    return DdpBoard(step, language)


def ddp_communication(
    language: str | None = None,
    *,
    bucket_mb: float = 4,
    layers: str = "even",
    overlap: bool = True,
    num_ranks: int = 4,
) -> DdpBoard:
    """How DDP hides its all-reduces under the backward: bucket size, layer sizes, link; in English
    or "zh"."""
    if layers not in LAYERS:
        raise ValueError(f"layers is one of {', '.join(LAYERS)}; got {layers!r}")
    step = Step(bucket_mb=bucket_mb, layers=LAYERS[layers], overlap=overlap, ranks=num_ranks)
    return DdpBoard(step, language)


def _figures(words: str, step: Timeline) -> str:
    exposed_us = float(exposed_comm_us(step).mean())
    return words.format(
        format_us(step_us(step)), format_share(hidden_comm(step)), format_us(exposed_us)
    )
