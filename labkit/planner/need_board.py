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
    ("recipe", "precision, optimizer", "精度与优化器"),
    ("batch", "batch", "批大小"),
    ("attention", "attention", "注意力"),
    ("seq_len", "sequence (tokens)", "序列长度 (token)"),
    ("own length", "the model's longest", "模型的最大长度"),
    ("mixed", "16 bit, fp32 copy, Adam", "16 位，fp32 副本，Adam"),
    ("fp32", "fp32, Adam", "fp32，Adam"),
    ("bf16", "bf16 throughout, Adam", "全用 bf16，Adam"),
    ("sgd", "fp32, SGD with momentum", "fp32，带动量的 SGD"),
    ("flash", "flash: 34 s b h", "flash：34 s b h"),
    ("stored", "stored: + 5 a s² b", "存矩阵：+ 5 a s² b"),
    ("recompute", "full recomputation: 2 s b h", "全部重计算：2 s b h"),
    ("here", "this machine", "本机"),
    ("states", "states", "状态"),
    ("title", "{}: training", "{}：训练"),
    ("whole", "all on one device", "全在一个设备上"),
    ("zero", "ZeRO {}, each of {}", "ZeRO {}，{} 个中的每个"),
    ("never", "ZeRO {}, however many", "ZeRO {}，再多也不够"),
    ("fits", "It fits on one device: {} of its memory.", "一个设备放得下：占显存 {}。"),
    (
        "not",
        "One device is too small: the bill is {:.1f} times its memory. Fewest devices: {}.",
        "一个设备放不下：账单是其显存的 {:.1f} 倍。最少设备数：{}。",
    ),
    ("need", "ZeRO {}: {}", "ZeRO {}：{}"),
    ("and", "; ", "；"),
    ("none", "no number is enough", "多少个都不够"),
    (
        "own",
        "Each device has a batch of its own, {} x {} tokens, so its activations stay, whatever "
        "the stage.",
        "每个设备各有自己的一批数据，{} x {} 个 token，所以无论哪个阶段，激活都不变。",
    ),
    (
        "estimate",
        "Activations are those of GPT blocks with dropout (Korthikanti et al. 2022); for other "
        "blocks, such as LLaMA's, that is an estimate. Logits, buffers and fragmentation are left "
        "out.",
        "激活按带 dropout 的 GPT block计算（Korthikanti 等，2022），用于别的 block（例如 LLaMA 的）"
        "只是估计。logits、缓冲区和碎片没有计入。",
    ),
    ("small", "The small model, run here", "在这里运行的小模型"),
    ("predicted", "predicted", "预测"),
    ("rank", "measured, rank {}", "实测，rank {}"),
    (
        "ran",
        "Not the model above: {} parameters, {} ranks, the same recipe and batch. A bill of that "
        "recipe has {} bytes of states for each parameter, whatever the size.",
        "不是上面的模型：{} 个参数，{} 个 rank，同样的配方和批大小。"
        "按这种配方，每个参数有 {} 字节的状态，多大都一样。",
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
        results = self.found(step)
        if results is None:
            return page
        predicted = small_bill(step.recipe, step.batch)
        measured = need_run.measured_bills(results)
        ran = self._words["ran"].format(
            f"{results[0]['num_params']:,}",
            len(results),
            states.recipe(step.recipe).bytes_per_parameter,
        )
        return page + svg.html(_small_bills(predicted, measured, self.language)) + paragraphs(ran)


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
                (say["activations"], format_bytes(bill["activations"])),
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
