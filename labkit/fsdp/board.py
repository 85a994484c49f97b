"""``fsdp_sharding()``: layers gathered, computed, freed and reduced, moment by moment, the bytes
below; then run."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import ClassVar

from labkit import footprint
from labkit.launching.run import Run
from labkit.pictures import bytes_held
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch, Words, moved
from labkit.sharding import picture
from labkit.sharding.step import Step
from labkit.shards import differences
from labkit.units import check_word, format_bytes
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import LANGUAGES, WORDS, catalogue

__all__ = ["fsdp_sharding"]

STRATEGIES = ("fsdp", "fsdp_grad_op", "fsdp_hybrid", "ddp")
NUM_LAYERS = (2, 4, 6)
NUM_RANKS = (2, 4)


class FsdpBoard(Trial):
    """The widget: pages by moment; ``run()`` trains the small model with real ``fully_shard`` and
    counts its bytes."""

    options: ClassVar = {
        "moment": tuple(range(2 * (max(NUM_LAYERS) + 2) + 2)),
        "engine": STRATEGIES,
        "layers": NUM_LAYERS,
        "ranks": NUM_RANKS,
    }
    view = "moment"
    dropdowns = ("engine",)
    words = (
        ("moment", "moment"),
        ("engine", "strategy"),
        ("layers", "blocks"),
        ("ranks", "ranks"),
        ("fsdp", "FULL_SHARD (reshard after forward)"),
        ("fsdp_grad_op", "SHARD_GRAD_OP (keep after forward)"),
        ("fsdp_hybrid", "HYBRID_SHARD (two groups)"),
        ("ddp", "NO_SHARD (DDP)"),
        (
            "title",
            "{}, {} ranks: bytes of rank 0, second microbatch",
        ),
        ("peak", "Predicted peak {} at {}; between steps {}."),
        (
            "measured",
            "Measured peak {} at {}, {:+.2f} % from the predicted one; {}.",
        ),
        ("same", "every live slice is the predicted one"),
        ("other", "{} live slices are not the predicted ones"),
        (
            "order",
            "Collectives that rank 0 called in the second microbatch, in order, with what it "
            "handed in: {}.",
        ),
        (
            "gloo",
            "gloo runs a reduce-scatter as an all-reduce: on the wire it costs twice as much.",
        ),
        ("even", "hybrid needs an even number of ranks"),
    )

    def num_pages(self, step: Step) -> int:
        """As many as the step has moments."""
        return 2 * (step.layers + 2) + 2

    def scene(self) -> Sketch:
        """Both pictures as they stand, one under the other."""
        return _below(self._layers(self.step, self.at), self._bytes(self.step, self.at))

    def _bytes(self, step: Step, moment: int) -> Sketch:
        predicted = _footprint(step)
        run = self.ran(step)
        return bytes_held.footprint(
            predicted,
            run[0]["footprint"] if run else None,
            title=self._titles(step),
            marked=predicted.labels[moment],
            language=self.language,
        )

    def page(self, step: Step, at: int) -> str:
        """Layers above, bytes below, and what a run said."""
        predicted = _footprint(step)
        between = int(self.prediction(step).rank_bytes[0])
        notes = [
            self._words["peak"].format(
                format_bytes(predicted.peak_bytes), predicted.peak, format_bytes(between)
            )
        ]
        run = self.ran(step)
        if run is not None:
            notes += self._told(step, run)
        pictures = svg.html(self._layers(step, at)) + svg.html(self._bytes(step, at))
        return pictures + paragraphs(*notes)

    def _titles(self, step: Step) -> dict[str, str]:
        every = catalogue(self.words)
        return {code: every[code]["title"].format(step.engine, step.ranks) for code in LANGUAGES}

    def _layers(self, step: Step, moment: int) -> Sketch:
        """The upper picture."""
        return picture.layers(
            step.layer_bytes(),
            step.ranks,
            _footprint(step).labels[moment],
            strategy=step.engine,
            language=self.language,
        )

    def _told(self, step: Step, run: Run) -> list[str]:
        """How near the prediction was, and what was called in which order."""
        say = self._words
        predicted = _footprint(step)
        measured = run[0]["footprint"]
        off = len(differences(self.prediction(step), self.found(step)))
        near = say["measured"].format(
            format_bytes(measured.peak_bytes),
            measured.peak,
            100 * (measured.peak_bytes / predicted.peak_bytes - 1),
            say["other"].format(off) if off else say["same"],
        )
        calls = [f"{name} {format_bytes(num)}" for name, num in run[0]["order"]]
        if step.engine == "ddp":
            return [near, say["order"].format(self._listed(calls))]
        second = calls[len(calls) // 2 :]  # of two microbatches
        return [near, say["order"].format(self._listed(second)), say["gloo"]]

    def _listed(self, calls: Sequence[str]) -> str:
        """The first twenty, and how many there are if there are more."""
        shown = WORDS[self.language]["comma"].join(calls[:20])
        return f"{shown} … ({len(calls)})" if len(calls) > 20 else shown


def _below(upper: Sketch, lower: Sketch) -> Sketch:
    """Two sketches as one, for viewers that show one picture."""
    comma = WORDS[lower.language]["comma"]
    down_px = upper.height_px - 8
    peaks = comma.join(" ".join(each) for each in lower.numbers)
    name = Words(0, down_px + 26, lower.heading, size_px=14, bold=True)
    bars = [moved(shape, 0, down_px) for shape in lower.shapes]
    in_english = None
    if upper.in_english and lower.in_english:
        in_english = partial(_joined_again, upper.in_english, lower.in_english)
    return Sketch(
        shapes=(*upper.shapes, name, Words(0, down_px + 46, peaks), *bars),
        height_px=down_px + lower.height_px,
        heading=upper.heading,
        badge=lower.badge,
        table=lower.table,
        summary=f"{upper.summary} {lower.summary}",
        language=lower.language,
        in_english=in_english,
    )


def _joined_again(upper: Callable[[], Sketch], lower: Callable[[], Sketch]) -> Sketch:
    return _below(upper(), lower())


@lru_cache(maxsize=64)
def _footprint(step: Step) -> footprint.Footprint:
    """Rank 0's bytes at each moment: the same for all pages of one flipbook."""
    return step.footprint()


def board(step: Step, language: str | None = None) -> FsdpBoard:
    """The widget of a step by one of FSDP's strategies, or DDP. Raises ValueError for another
    engine."""
    check_word(step.engine, STRATEGIES, "the engine of this board")
    return FsdpBoard(step, language)


def fsdp_sharding(
    language: str | None = None,
    *,
    strategy: str = "fsdp",
    num_layers: int = 4,
    num_ranks: int = 4,
) -> FsdpBoard:
    """How FSDP gathers, computes, frees and reduces layer by layer, and what that does to memory;
    or "zh"."""
    return board(Step(engine=strategy, layers=num_layers, ranks=num_ranks), language)
