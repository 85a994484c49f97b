"""The bill of training a model: of a large one by formula, against one device and on the fewest; of
a small one, which two ranks can train, to the byte."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from labkit import footprint, tables, words
from labkit.experiment import Experiment
from labkit.planner.models import DEVICES, MODELS, Model
from labkit.sharding import moments, partition, states
from labkit.units import check_real, check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

RECIPES = ("mixed", "fp32", "bf16", "sgd")
"""precision and optimizer: keys of ``states.RECIPES``"""
SMALL = {"num_layers": 4, "dim": 64, "num_heads": 4, "seq_len": 32}
"""The model that real ranks train beside the large one that is computed."""
ATTENTION = ("flash", "stored", "recompute")
_MANY = 1 << 20
_WORDS = words.catalogue(
    [
        ("title", "{}: training"),
        (
            "flash_only",
            "the small model has flash attention: choose it",
        ),
    ]
)


class Share(NamedTuple):
    """What each of the fewest devices holds at a stage of ZeRO."""

    stage: int
    """0 to 3; 0 is all on one device"""
    num_ranks: int | None
    """how many devices; None where no number is enough"""
    bill: dict[str, float]
    """bytes by PARTS, on very many devices where no number is enough"""


@dataclass(frozen=True, kw_only=True)
class Need(Experiment):
    """What training a model takes on each device; a run trains the small model by the same recipe
    and batch."""

    model: str = "LLaMA 7B"
    """a key of MODELS"""
    recipe: str = "mixed"
    """one of RECIPES"""
    device: str | float = "A100 80 GB"
    """a key of DEVICES, or the bytes of its memory"""
    batch: int = 1
    """sequences on each device"""
    attention: str = "flash"
    """one of ATTENTION"""
    seq_len: int = 0
    """tokens of a sequence; 0: as long as the model takes"""

    def __post_init__(self) -> None:
        check_word(self.model, MODELS, "a model")
        check_word(self.recipe, RECIPES, "a recipe")
        check_word(self.attention, ATTENTION, "attention")
        if isinstance(self.device, str):
            check_word(self.device, DEVICES, "a device")
        else:
            check_real(1.0, 1e18, device=self.device)
        check_whole(1, 1_000_000, batch=self.batch)
        check_whole(0, 10_000_000, seq_len=self.seq_len)

    @property
    def sized(self) -> Model:
        """The model, with sequences as long as they are here."""
        model = MODELS[self.model]
        return replace(model, seq_len=self.seq_len) if self.seq_len else model

    @property
    def device_bytes(self) -> float:
        """The memory of the device."""
        return DEVICES[self.device] if isinstance(self.device, str) else self.device

    def bill(self, num_ranks: int = 1, stage: int = 0) -> dict[str, float]:
        """Bytes on each of ``num_ranks`` devices, by PARTS."""
        return self.sized.bill(
            self.batch, self.recipe, self.attention, num_ranks=num_ranks, stage=stage
        )

    def needed(self, stage: int) -> int | None:
        """The fewest devices that hold it; None where no number is enough."""
        return states.ranks_needed(
            MODELS[self.model].params,
            self.device_bytes,
            stage,
            self.recipe,
            extra_bytes=self.bill()["activations"],
        )

    def predict(self) -> list[Share]:
        """The whole bill; and, where one device is too small, its share at every stage."""
        shares = [Share(0, 1, self.bill())]
        if self.needed(0) != 1:
            for stage in (1, 2, 3):
                num_ranks = self.needed(stage)
                shares.append(Share(stage, num_ranks, self.bill(num_ranks or _MANY, stage)))
        return shares

    def refusal(self, language: str | None = None) -> str | None:
        """The small model never stores the attention matrix, and recomputes nothing."""
        if self.attention == "flash":
            return None
        return _WORDS[words.spoken_in(language)]["flash_only"]

    def start(self) -> "Job":
        """The recipe on two real ranks, in the background."""
        from labkit.planner import need_run

        return need_run.start(self.recipe, self.batch)

    def as_run(self) -> "Need":
        """A run depends on the recipe and the batch: the model is the small one."""
        return Need(recipe=self.recipe, batch=self.batch, attention=self.attention)

    def measured(self, run: "Run") -> list[dict]:
        """What each rank returned."""
        return list(run.results)

    def title(self, language: str | None = None) -> str:
        """The model."""
        return _WORDS[words.spoken_in(language)]["title"].format(self.model)


def cards(device: str | float = "A100 80 GB") -> tables.Table:
    """The fewest devices that hold each of MODELS in training, one sequence each: ZeRO 1, ZeRO 3,
    and ZeRO 3 with all blocks recomputed. An empty cell: no number is enough. Raises ValueError for
    no device, see ``Need``."""
    heads = {"name": words.both("model"), "states_bytes": words.both("states")}
    found = []
    for name, model in MODELS.items():
        need = Need(model=name, device=device)
        recomputed = need.but(attention="recompute")
        found.append(
            {
                "name": name,
                "states_bytes": sum(states.state_bytes(model.params, 1, 0).values()),
                "ZeRO 1": need.needed(1),
                "ZeRO 3": need.needed(3),
                "recomputed": recomputed.needed(3),
            }
        )
    heads |= {"recomputed": words.both("ZeRO 3, recomputed")}
    return tables.table(found, heads=heads)


def small_bill(recipe: str, batch: int) -> dict[str, float]:
    """What a rank should hold of the small model after a backward, to the byte, by PARTS."""
    units = moments.transformer(**SMALL, batch=batch)
    held = partition.predict("ddp", moments.shapes(units), 2, recipe_name=recipe)
    if recipe in ("mixed", "sgd"):
        # AdamW alone counts its steps in a tensor; DeepSpeed in a number
        held = held.select(held.kind != "step")
    predicted = moments.predict("ddp", units, 2, recipe_name=recipe)
    after_the_loss = predicted.labels.index("loss")
    kept = predicted.num_bytes[after_the_loss, footprint.PARTS.index("activations")]
    states = {part: float(per_rank[0]) for part, per_rank in held.bytes_by("category").items()}
    # the mean of the loss keeps how many it is of, in 4 bytes
    return {**states, "activations": float(kept) + 4}
