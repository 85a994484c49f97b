"""``fsdp_sharding()``: layers gathered, computed, freed and reduced, moment by moment, the bytes
below; then run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from labkit import footprint
from labkit.launching.job import Job
from labkit.launching.run import Run
from labkit.pictures import bytes_held
from labkit.pictures.painters import svg
from labkit.pictures.scene import Scene
from labkit.pictures.sketch import Sketch
from labkit.sharding import picture
from labkit.sharding import run as sharding_run
from labkit.shards import Shards, differences
from labkit.units import format_bytes
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors
from labkit.words import WORDS, both, spoken_in

__all__ = ["fsdp_sharding"]

STRATEGIES = ("fsdp", "fsdp_grad_op", "fsdp_hybrid", "ddp")
NUM_LAYERS = (2, 4, 6)
NUM_RANKS = (2, 4)
_WORDS = (
    ("moment", "moment"),
    ("strategy", "strategy"),
    ("layers", "blocks"),
    ("ranks", "ranks"),
    ("fsdp", "FULL_SHARD (reshard after forward)"),
    ("fsdp_grad_op", "SHARD_GRAD_OP (keep after forward)"),
    ("fsdp_hybrid", "HYBRID_SHARD (two groups)"),
    ("ddp", "NO_SHARD (DDP)"),
    ("peak", "Predicted peak {} at {}; between steps {}."),
    (
        "measured",
        "Measured peak {} at {}, {:+.2f} % from the predicted one; {}.",
    ),
    ("same", "every live slice is the predicted one"),
    ("other", "{} live slices are not the predicted ones"),
    (
        "order",
        "Collectives that rank 0 called in the second microbatch, in order, with what it handed "
        "in: {}.",
    ),
    (
        "gloo",
        "gloo runs a reduce-scatter as an all-reduce: on the wire it costs twice as much.",
    ),
    ("even", "hybrid needs an even number of ranks"),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of all controls."""

    moment: int
    """position in the step"""
    strategy: str
    """one of STRATEGIES"""
    num_layers: int
    """blocks of the transformer"""
    num_ranks: int
    """how many ranks"""

    @property
    def real(self) -> sharding_run.Setting:
        """The small model in this engine."""
        return sharding_run.Setting(
            engine=self.strategy, num_ranks=self.num_ranks, num_layers=self.num_layers
        )


class FsdpBoard(Trial):
    """The widget: pages by moment; ``run()`` trains the small model with real ``fully_shard`` and
    counts its bytes."""

    def __init__(self, language: str | None = None, **start: object) -> None:
        language = spoken_in(language)
        words = spoken(_WORDS, language)
        num_layers = min(max(NUM_LAYERS), start["layers"])
        self._options = {
            "moment": tuple(range(2 * (num_layers + 2) + 2)),
            "strategy": STRATEGIES,
            "layers": NUM_LAYERS,
            "ranks": NUM_RANKS,
        }
        shown = {"strategy": words.get}
        controls = selectors(self._options, {"moment": 0, **start}, words, shown, ("strategy",))
        super().__init__(language, _WORDS, controls)

    def setting_at(self, *indices: int) -> Setting:
        """What the controls say when they stand at these indices."""
        moment, strategy, layers, ranks = indices
        return Setting(
            moment=moment,
            strategy=STRATEGIES[strategy],
            num_layers=NUM_LAYERS[layers],
            num_ranks=NUM_RANKS[ranks],
        )

    def num_pages(self, *indices: int) -> int:
        """As many as the step has moments."""
        return 2 * (NUM_LAYERS[indices[1]] + 2) + 2

    def key(self, setting: Setting) -> sharding_run.Setting:
        """All moments are of one run."""
        return setting.real

    def begin(self, setting: Setting) -> Job:
        """The small model with the real engine."""
        return sharding_run.start(setting.real)

    def scene(self) -> Sketch | Scene:
        """The lower picture as it stands."""
        return self._bytes(self.setting)

    def _bytes(self, setting: Setting) -> Sketch:
        predicted = _footprint(setting.real)
        run = self.runs.get(setting.real)
        return bytes_held.footprint(
            predicted,
            run[0]["footprint"] if run else None,
            title=both(
                "{strategy}, {ranks} ranks: bytes of rank 0, second microbatch",
                strategy=setting.strategy,
                ranks=setting.num_ranks,
            ),
            marked=predicted.labels[setting.moment],
            language=self.language,
        )

    def page(self, setting: Setting) -> str:
        """Layers above, bytes below, and what a run said."""
        predicted = _footprint(setting.real)
        between = int(_shards(setting.real).rank_bytes[0])
        notes = [
            self._words["peak"].format(
                format_bytes(predicted.peak_bytes), predicted.peak, format_bytes(between)
            )
        ]
        run = self.runs.get(setting.real)
        if run is not None:
            notes += self._told(setting, run)
        pictures = svg.html(self._layers(setting)) + svg.html(self._bytes(setting))
        return pictures + paragraphs(*notes)

    def _layers(self, setting: Setting) -> Sketch:
        """The upper picture."""
        names = ("embed", *(f"block {index + 1}" for index in range(setting.num_layers)), "head")
        sizes = (4 * unit.num_params for unit in setting.real.units())
        return picture.layers(
            dict(zip(names, sizes, strict=True)),
            setting.num_ranks,
            _footprint(setting.real).labels[setting.moment],
            strategy=setting.strategy,
            language=self.language,
        )

    def _told(self, setting: Setting, run: Run) -> list[str]:
        """How near the prediction was, and what was called in which order."""
        say = self._words
        predicted = _footprint(setting.real)
        measured = run[0]["footprint"]
        off = len(differences(_shards(setting.real), sharding_run.measured(run)))
        near = say["measured"].format(
            format_bytes(measured.peak_bytes),
            measured.peak,
            100 * (measured.peak_bytes / predicted.peak_bytes - 1),
            say["other"].format(off) if off else say["same"],
        )
        calls = [f"{name} {format_bytes(num)}" for name, num in run[0]["order"]]
        if setting.strategy == "ddp":
            return [near, say["order"].format(self._listed(calls))]
        second = calls[len(calls) // 2 :]  # of two microbatches
        return [near, say["order"].format(self._listed(second)), say["gloo"]]

    def _listed(self, calls: Sequence[str]) -> str:
        """The first twenty, and how many there are if there are more."""
        shown = WORDS[self.language]["comma"].join(calls[:20])
        return f"{shown} … ({len(calls)})" if len(calls) > 20 else shown


@lru_cache(maxsize=64)
def _footprint(real: sharding_run.Setting) -> footprint.Footprint:
    """Rank 0's bytes at each moment: the same for all pages of one flipbook."""
    return sharding_run.predicted_footprint(real)


@lru_cache(maxsize=64)
def _shards(real: sharding_run.Setting) -> Shards:
    """What all ranks hold between steps: the same for all pages of one flipbook."""
    return sharding_run.predicted(real)


def fsdp_sharding(
    language: str | None = None, *, strategy: str = "fsdp", num_layers: int = 4, num_ranks: int = 4
) -> FsdpBoard:
    """How FSDP gathers, computes, frees and reduces layer by layer, and what that does to memory;
    or "zh"."""
    return FsdpBoard(language, strategy=strategy, layers=num_layers, ranks=num_ranks)
