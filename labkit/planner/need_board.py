"""``training_need()``: what training a model takes in bytes, against one device; and the same bill
of a small model, read out of real ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labkit.launching.job import Job
from labkit.machine import resources
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.planner import need_run
from labkit.planner.models import DEVICES, MODELS, PARTS
from labkit.planner.need import RECIPES, small_bill
from labkit.planner.picture import BILL_WORDS, stacked
from labkit.sharding import states
from labkit.units import format_bytes, format_share
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors
from labkit.words import speaking, spoken_in

__all__ = ["training_need"]

ATTENTION = ("flash", "stored", "recompute")
BATCHES = (1, 2, 4, 8, 16, 32)
_MANY = 1 << 20
_WORDS = (
    *BILL_WORDS,
    ("recipe", "precision, optimizer"),
    ("batch", "batch"),
    ("attention", "attention"),
    ("mixed", "16 bit, fp32 copy, Adam"),
    ("fp32", "fp32, Adam"),
    ("bf16", "bf16 throughout, Adam"),
    ("sgd", "fp32, SGD with momentum"),
    ("flash", "flash: 34 s b h"),
    ("stored", "stored: + 5 a s² b"),
    ("recompute", "full recomputation: 2 s b h"),
    ("here", "this machine"),
    ("states", "states"),
    ("title", "{}: training"),
    ("whole", "all on one device"),
    ("zero", "ZeRO {}, each of {}"),
    ("never", "ZeRO {}, however many"),
    ("fits", "It fits on one device: {} of its memory."),
    (
        "not",
        "One device is too small: the bill is {:.1f} times its memory. Fewest devices: {}.",
    ),
    ("need", "ZeRO {}: {}"),
    ("and", "; "),
    ("none", "no number is enough"),
    (
        "own",
        "Each device has a batch of its own, {} x {} tokens, so its activations stay, whatever "
        "the stage.",
    ),
    (
        "estimate",
        "Activations are those of GPT blocks with dropout (Korthikanti et al. 2022); for other "
        "blocks, such as LLaMA's, that is an estimate. Logits, buffers and fragmentation are left "
        "out.",
    ),
    ("small", "The small model, run here"),
    ("predicted", "predicted"),
    ("rank", "measured, rank {}"),
    (
        "ran",
        "Not the model above: {} parameters, {} ranks, the same recipe and batch. A bill of that "
        "recipe has {} bytes of states for each parameter, whatever the size.",
    ),
    (
        "flash_only",
        "the small model has flash attention: choose it",
    ),
)
_OPTIONS = {
    "model": tuple(MODELS),
    "recipe": RECIPES,
    "device": ("here", *DEVICES),
    "batch": BATCHES,
    "attention": ATTENTION,
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of all controls."""

    model: str
    """a key of MODELS"""
    recipe: str
    """one of RECIPES"""
    device: str
    """a key of DEVICES, or "here\""""
    batch: int
    """sequences on each device"""
    attention: str
    """one of ATTENTION"""

    @property
    def device_bytes(self) -> float:
        """The memory of the device."""
        return resources.total_bytes() if self.device == "here" else DEVICES[self.device]

    def bill(self, num_ranks: int = 1, stage: int = 0) -> dict[str, float]:
        """Bytes on each of ``num_ranks`` devices, by PARTS."""
        return MODELS[self.model].bill(
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

    def predict(self) -> list["Share"]:
        """The whole bill; and, where one device is too small, its share at every stage."""
        shares = [Share(0, 1, self.bill())]
        if self.needed(0) != 1:
            for stage in (1, 2, 3):
                num_ranks = self.needed(stage)
                shares.append(Share(stage, num_ranks, self.bill(num_ranks or _MANY, stage)))
        return shares


class Share(NamedTuple):
    """What each of the fewest devices holds at a stage of ZeRO."""

    stage: int
    """0 to 3; 0 is all on one device"""
    num_ranks: int | None
    """how many devices; None where no number is enough"""
    bill: dict[str, float]
    """bytes by PARTS, on very many devices where no number is enough"""


class NeedBoard(Trial):
    """The widget: a page per model; ``run()`` reads the bill of a small model out of two ranks."""

    options = _OPTIONS
    setting_type = Setting

    def __init__(self, language: str | None = None, **start: object) -> None:
        language = spoken_in(language)
        words = spoken(_WORDS, language)
        shown = {
            "recipe": words.get,
            "attention": words.get,
            "device": lambda name: _device(name, words),
        }
        dropdowns = ("recipe", "attention", "device")
        super().__init__(language, _WORDS, selectors(_OPTIONS, start, words, shown, dropdowns))

    def predict(self, setting: Setting) -> list[Share]:
        """The whole bill, and its shares."""
        return setting.predict()

    def key(self, setting: Setting) -> tuple:
        """A run depends on the recipe and the batch: the model is the small one."""
        return setting.recipe, setting.batch

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return _bills(self.setting, self.prediction(self.setting), self.language)

    def page(self, setting: Setting) -> str:
        """The picture, what fits, and what was measured of the small model."""
        shares = self.prediction(setting)
        drawn = svg.html(_bills(setting, shares, self.language))
        page = drawn + paragraphs(*_notes(setting, shares, self._words))
        results = self.runs.get(self.key(setting))
        if results is None:
            return page
        predicted = small_bill(setting.recipe, setting.batch)
        measured = need_run.measured_bills(results)
        ran = self._words["ran"].format(
            f"{results[0]['num_params']:,}",
            len(results),
            states.recipe(setting.recipe).bytes_per_parameter,
        )
        return page + svg.html(_small_bills(predicted, measured, self.language)) + paragraphs(ran)

    def reason(self, setting: Setting) -> str | None:
        """The small model never stores the attention matrix, and recomputes nothing."""
        return None if setting.attention == "flash" else self._words["flash_only"]

    def begin(self, setting: Setting) -> Job:
        """The recipe on two real ranks."""
        return need_run.start(setting.recipe, setting.batch)


def training_need(
    language: str | None = None,
    *,
    model: str = "LLaMA 7B",
    recipe: str = "mixed",
    device: str = "A100 80 GB",
    batch: int = 1,
    attention: str = "flash",
) -> NeedBoard:
    """The bill of training a model against a device, and on how many it fits; in English or
    "zh"."""
    return NeedBoard(
        language, model=model, recipe=recipe, device=device, batch=batch, attention=attention
    )


def _device(name: str, say: Mapping[str, str]) -> str:
    return f"{say['here']}, {format_bytes(resources.total_bytes())}" if name == "here" else name


def _bills(setting: Setting, shares: Sequence[Share], language: str) -> Sketch:
    """The bill on one device and, where that is too small, sharded on the fewest."""
    whole, *sharded = shares
    bill = whole.bill

    def build(words: dict[str, str]) -> Sketch:
        say = spoken(_WORDS, words["code"])
        rows = [(say["whole"], bill)]
        for stage, num_ranks, share in sharded:
            if num_ranks:
                rows.append((say["zero"].format(stage, f"{num_ranks:,}"), share))
            else:
                rows.append((say["never"].format(stage), share))
        state_bytes = sum(bill.values()) - bill["activations"]
        return stacked(
            rows,
            say,
            title=say["title"].format(setting.model),
            badge=say["computed"],
            numbers=(
                (say["states"], format_bytes(state_bytes)),
                (say["activations"], format_bytes(bill["activations"])),
            ),
            mark=(_device(setting.device, say), setting.device_bytes),
            code=words["code"],
        )

    return speaking(language, build)


def _small_bills(
    predicted: dict[str, float], measured: list[dict[str, float]], language: str
) -> Sketch:
    """The small model's bill: predicted, and what each rank held."""
    off = max(_apart(bill, predicted) for bill in measured)

    def build(words: dict[str, str]) -> Sketch:
        say = spoken(_WORDS, words["code"])
        rows = [(say["rank"].format(rank), bill) for rank, bill in enumerate(measured)]
        return stacked(
            [(say["predicted"], predicted), *rows],
            say,
            title=say["small"],
            badge=say["both"],
            numbers=((say["apart"], format_bytes(off)),),
            code=words["code"],
        )

    return speaking(language, build)


def _apart(bill: Mapping[str, float], other: Mapping[str, float]) -> float:
    """The largest difference in a part."""
    return max(abs(bill[part] - other[part]) for part in PARTS)


def _notes(setting: Setting, shares: Sequence[Share], say: Mapping[str, str]) -> list[str]:
    """What fits, and what the bill leaves out."""
    whole, *sharded = shares
    filled = sum(whole.bill.values()) / setting.device_bytes
    fewest = [
        say["need"].format(stage, f"{num_ranks:,}" if num_ranks else say["none"])
        for stage, num_ranks, _ in sharded
    ]
    if fewest:
        fits = say["not"].format(filled, say["and"].join(fewest))
    else:
        fits = say["fits"].format(format_share(filled))
    own = say["own"].format(setting.batch, MODELS[setting.model].seq_len)
    return [fits, own, say["estimate"]]
