"""The experiments of this subject: the stages of ZeRO, and what offloading moves; for models to
look at, and for the small one that runs here."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from labkit import words
from labkit.experiment import Experiment
from labkit.sharding import partition, states
from labkit.sharding.step import Step
from labkit.shards import Shards, join
from labkit.units import check_real, check_whole, check_word
from labkit.zero import offload_times
from labkit.zero.offload_times import Phase

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

MODELS = {"small": 0, "7B": 7_000_000_000, "70B": 70_000_000_000, "175B": 175_000_000_000}
"""Parameters of the models to look at; "small" is the one that runs here, tensor by tensor."""
MODES = ("zero2", "zero3", "zero3 all")
MOST_RANKS = 4
"""as many ranks as a run starts"""
MOST_TOKENS = 8192
"""as many tokens of a rank and step as a run takes"""
_WORDS = words.catalogue(
    [
        ("small", "small model"),
        ("stages", "ZeRO {}, {} ranks, {}"),
        ("offload", "Offload, ZeRO {}: {}, ranks: {}"),
        (
            "large",
            "a model of {} is here to be looked at: choose the small one",
        ),
        ("many", "a run starts up to {} ranks"),
        ("one", "DeepSpeed runs the recipe mixed here"),
        ("tokens", "a run takes up to {} tokens of a rank and step"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Stages(Experiment):
    """What each rank holds at a stage of ZeRO."""

    stage: int = 2
    """0 is DDP as DeepSpeed runs it"""
    ranks: int = 4
    """data-parallel ranks"""
    model: str = "small"
    """a key of MODELS"""
    recipe: str = "mixed"
    """a key of ``states.RECIPES``"""

    def __post_init__(self) -> None:
        check_whole(0, 3, stage=self.stage)
        check_whole(1, 1_000_000, ranks=self.ranks)
        check_word(self.model, MODELS, "a model")
        check_word(self.recipe, states.RECIPES, "a recipe")

    @property
    def real(self) -> Step:
        """The small model in DeepSpeed's engine of that stage."""
        return Step(engine=f"zero{self.stage}", ranks=self.ranks)

    @property
    def size(self) -> int:
        """How many parameters the model has."""
        return MODELS[self.model] or sum(unit.num_params for unit in self.real.units())

    def predict(self) -> Shards:
        """Tensor by tensor for the small model under the recipe that runs, else one tensor of the
        model's size."""
        if self.model == "small" and self.recipe == "mixed":
            return self.real.predict()
        return partition.stage_shards(self.size, self.ranks, self.stage, self.recipe)

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't run: too large, too many, another recipe."""
        why = _refusal(self.model, self.ranks, language)
        if why is None and self.recipe != "mixed":
            return _WORDS[words.spoken_in(language)]["one"]
        return why

    def start(self) -> "Job":
        """The small model with a real DeepSpeed engine, in the background."""
        return self.real.start()

    def measured(self, run: "Run") -> Shards:
        """What the ranks held."""
        return self.real.measured(run)

    def title(self, language: str | None = None) -> str:
        """Stage, ranks and model."""
        say = _WORDS[words.spoken_in(language)]
        return say["stages"].format(self.stage, self.ranks, say.get(self.model, self.model))


class Moves(NamedTuple):
    """What offloading does with a step of one rank."""

    moves: list
    """what crosses the link between device and host, as ``states.offload_moves`` says it"""
    device: dict[str, float]
    """bytes that stay on the device, by part"""
    host: dict[str, float]
    """bytes that lie on the host, by part"""
    phases: list[Phase]
    """how long each phase computes, transfers and updates"""


@dataclass(frozen=True, kw_only=True)
class Offload(Experiment):
    """What crosses the link between device and host in a step."""

    mode: str = "zero2"
    """one of MODES: the stage, and whether parameters are offloaded too"""
    ranks: int = 2
    """data-parallel ranks"""
    model: str = "small"
    """a key of MODELS"""
    tokens: int = 2048
    """of a rank's microbatch"""
    microbatches: int = 1
    """per step"""
    tflops: float = 150.0
    """what the device computes a second, in 1e12 operations"""
    gb_per_s: float = 25.0
    """of the link between device and host, each way; a pretend device's copies last accordingly"""
    host_gb_per_s: float = 100.0
    """of the host's memory, one rank's share of it: it bounds the update there"""

    def __post_init__(self) -> None:
        check_word(self.mode, MODES, "a mode")
        check_whole(1, 1_000_000, ranks=self.ranks)
        check_word(self.model, MODELS, "a model")
        check_whole(1, 1_000_000_000, tokens=self.tokens)
        check_whole(1, 1_000_000, microbatches=self.microbatches)
        speeds = {"gb_per_s": self.gb_per_s, "host_gb_per_s": self.host_gb_per_s}
        check_real(1e-6, 1e6, tflops=self.tflops, **speeds)

    @property
    def real(self) -> Step:
        """The small model in DeepSpeed's engine, offloaded so."""
        engine, _, everything = self.mode.partition(" ")
        return Step(
            engine=engine,
            ranks=self.ranks,
            offload=everything or "optimizer",
            batch=max(1, self.tokens // Step.seq_len),
            microbatches=self.microbatches,
        )

    @property
    def keeps_between(self) -> bool:
        """Whether there is a moment at which the prediction of its shards holds: between two
        microbatches; in stage 3 also before the update."""
        return self.microbatches > 1 or self.mode != "zero2"

    def predict(self) -> Moves:
        """What moves and what lies where, by DeepSpeed's rules."""
        real = self.real
        size = MODELS[self.model] or sum(unit.num_params for unit in real.units())
        about = (size, self.ranks, int(real.engine[-1]), real.offload)
        device, host = partition.offload_places(*about, self.microbatches)
        moves = states.offload_moves(*about, self.microbatches)
        phases = offload_times.phases(
            moves,
            size,
            self.ranks,
            tokens=self.tokens * self.microbatches,
            tflops=self.tflops,
            gb_per_s=self.gb_per_s,
            host_gb_per_s=self.host_gb_per_s,
        )
        return Moves(moves, device, host, phases)

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't run: too large, too many."""
        why = _refusal(self.model, self.ranks, language)
        if why is None and self.tokens * self.microbatches > MOST_TOKENS:
            return _WORDS[words.spoken_in(language)]["tokens"].format(MOST_TOKENS)
        return why

    def start(self) -> "Job":
        """The small model with DeepSpeed's offload, in the background."""
        from labkit.zero import offload_run

        return offload_run.start(self.real, self.gb_per_s)

    def as_run(self) -> "Offload":
        """A run computes as fast as it does."""
        return replace(self, tflops=150.0, host_gb_per_s=100.0)

    def measured(self, run: "Run") -> Shards:
        """What the ranks held, and on which device."""
        return join(result["shards"] for result in run)

    def title(self, language: str | None = None) -> str:
        """Stage, model and ranks."""
        say = _WORDS[words.spoken_in(language)]
        model = say.get(self.model, self.model)
        return say["offload"].format(self.real.engine[-1], model, self.ranks)


def _refusal(model: str, num_ranks: int, language: str | None) -> str | None:
    say = _WORDS[words.spoken_in(language)]
    if model != "small":
        return say["large"].format(model)
    if num_ranks > MOST_RANKS:
        return say["many"].format(MOST_RANKS)
    return None
