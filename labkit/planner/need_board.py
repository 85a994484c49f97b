"""``training_need()``: what training a model takes in bytes, against one device; and the same bill
of a small model, read out of real ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from labkit.machine import resources
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.planner import need_run
from labkit.planner.models import DEVICES, MODELS, PARTS
from labkit.planner.need import ATTENTION, RECIPES, Need, Share, small_bill
from labkit.planner.picture import BILL_WORDS, stacked
from labkit.sharding import states
from labkit.units import format_bytes, format_share
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial
from labkit.words import speaking

__all__ = ["training_need"]

BATCHES = (1, 2, 4, 8, 16, 32)
HERE = float(resources.total_bytes())
"""the memory of this machine"""
_WORDS = (
    *BILL_WORDS,
    ("recipe", "precision, optimizer"),
    ("batch", "batch"),
    ("attention", "attention"),
    ("seq_len", "sequence (tokens)"),
    ("own length", "the model's longest"),
    ("mixed", "16 bit, fp32 copy, Adam"),
    ("fp32", "fp32, Adam"),
    ("bf16", "bf16 throughout, Adam"),
    ("sgd", "fp32, SGD with momentum"),
    ("flash", "flash attention"),
    ("stored", "scores stored"),
    ("recompute", "all recomputed"),
    ("here", "this machine"),
    ("states", "states"),
    ("estimated", "activations, estimated"),
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
        "The small model: {} parameters, {} ranks, the same recipe and batch. A bill of that "
        "recipe has {} bytes of states for each parameter, whatever the size.",
    ),
)


class NeedBoard(Trial):
    """The widget: a page per model; ``run()`` reads the bill of a small model out of two ranks."""

    options: ClassVar = {
        "model": tuple(MODELS),
        "recipe": RECIPES,
        "device": (HERE, *DEVICES),
        "batch": BATCHES,
        "attention": ATTENTION,
        "seq_len": (0, 512, 2048, 8192, 32_768, 131_072),
    }
    dropdowns = ("model", "recipe", "device", "attention", "seq_len")
    words = _WORDS

    def written(self, name: str, value: Any) -> str:
        """Devices of one's own by their memory, lengths with commas."""
        if name == "device":
            return _device(value, self._words)
        if name == "seq_len":
            return self._words["own length"] if not value else f"{value:,}"
        return super().written(name, value)

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return _bills(self.step, self.prediction(self.step), self.language)

    def page(self, step: Need, at: None) -> str:
        """The picture, what fits, and what was measured of the small model."""
        shares = self.prediction(step)
        drawn = svg.html(_bills(step, shares, self.language))
        page = drawn + paragraphs(*_notes(step, shares, self._words))
        return page if self.found(step) is None else page + self.compared(step, at)

    def compared(self, step: Need, at: None) -> str:
        """The bill of the small model, and what each rank held of it."""
        results = self.found(step)
        predicted = small_bill(step.recipe, step.batch)
        measured = need_run.measured_bills(results)
        ran = self._words["ran"].format(
            f"{results[0]['num_params']:,}",
            len(results),
            states.recipe(step.recipe).bytes_per_parameter,
        )
        return svg.html(_small_bills(predicted, measured, self.language)) + paragraphs(ran)


def board(step: Need, language: str | None = None) -> NeedBoard:
    """The widget of a need."""
    return NeedBoard(step, language)


def training_need(
    language: str | None = None,
    *,
    model: str = "LLaMA 7B",
    recipe: str = "mixed",
    device: str | float = "A100 80 GB",
    batch: int = 1,
    attention: str = "flash",
) -> NeedBoard:
    """The bill of training a model against a device ("here" is this machine), and on how many it
    fits; in English or "zh"."""
    step = Need(
        model=model,
        recipe=recipe,
        device=HERE if device == "here" else device,
        batch=batch,
        attention=attention,
    )
    return NeedBoard(step, language)


def _device(device: str | float, say: Mapping[str, str]) -> str:
    if isinstance(device, str):
        return device
    return f"{say['here']}, {format_bytes(device)}" if device == HERE else format_bytes(device)


def _bills(step: Need, shares: Sequence[Share], language: str) -> Sketch:
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
            title=say["title"].format(step.model),
            badge=say["computed"],
            numbers=(
                (say["states"], format_bytes(state_bytes)),
                (say["estimated"], format_bytes(bill["activations"])),
            ),
            mark=(_device(step.device, say), step.device_bytes),
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


def _notes(step: Need, shares: Sequence[Share], say: Mapping[str, str]) -> list[str]:
    """What fits, and what the bill leaves out."""
    whole, *sharded = shares
    filled = sum(whole.bill.values()) / step.device_bytes
    fewest = [
        say["need"].format(stage, f"{num_ranks:,}" if num_ranks else say["none"])
        for stage, num_ranks, _ in sharded
    ]
    if fewest:
        fits = say["not"].format(filled, say["and"].join(fewest))
    else:
        fits = say["fits"].format(format_share(filled))
    own = say["own"].format(step.batch, step.sized.seq_len)
    return [fits, own, say["estimate"]]
