"""``training_need()``: what training a model takes in bytes, against one device; and the same bill
of a small model, read out of real ranks."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit import footprint
from labkit.launching import launcher
from labkit.launching.job import Job
from labkit.machine import resources
from labkit.pictures import svg
from labkit.pictures.sketch import Sketch
from labkit.planner.models import DEVICES, MODELS, PARTS, stacked
from labkit.sharding import partition
from labkit.sharding import run as sharding_run
from labkit.sharding import states as sharding_states
from labkit.sharding import step as sharding_step
from labkit.shards import join
from labkit.units import format_bytes, format_share
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, chosen, selectors
from labkit.words import speaking

__all__ = ["training_need"]

RECIPES, ATTENTION, BATCHES = (
    ("mixed", "fp32", "bf16", "sgd"),
    ("flash", "stored", "recompute"),
    (1, 2, 4, 8, 16, 32),
)
SMALL = {"num_layers": 4, "dim": 64, "num_heads": 4, "seq_len": 32}
"""The model that real ranks train beside the large one that is computed."""
_MANY = 1 << 20
_WORDS = (
    ("model", "model", "模型"),
    ("recipe", "precision, optimizer", "精度与优化器"),
    ("batch", "batch", "批大小"),
    ("attention", "attention", "注意力"),
    ("device", "device", "设备"),
    ("mixed", "16 bit, fp32 copy, Adam", "16 位，fp32 副本，Adam"),
    ("fp32", "fp32, Adam", "fp32，Adam"),
    ("bf16", "bf16 throughout, Adam", "全用 bf16，Adam"),
    ("sgd", "fp32, SGD with momentum", "fp32，带动量的 SGD"),
    ("flash", "flash: 34 s b h", "flash：34 s b h"),
    ("stored", "stored: + 5 a s² b", "存矩阵：+ 5 a s² b"),
    ("recompute", "full recomputation: 2 s b h", "全部重算：2 s b h"),
    ("here", "this machine", "本机"),
    ("parameters", "parameters", "参数"),
    ("gradients", "gradients", "梯度"),
    ("optimizer", "optimizer", "优化器"),
    ("activations", "activations", "激活"),
    ("states", "states", "状态"),
    ("title", "{}: training", "{}：训练"),
    ("computed", "computed", "计算值"),
    ("whole", "all on one device", "全在一个设备上"),
    ("zero", "ZeRO {}, each of {}", "ZeRO {}，{} 个中的每个"),
    ("never", "ZeRO {}, however many", "ZeRO {}，再多也不够"),
    ("fits", "It fits on one device: {} of its memory.", "一个设备放得下：占内存 {}。"),
    (
        "not",
        "One device is too small: the bill is {:.1f} times its memory. Fewest devices: {}.",
        "一个设备放不下：账单是其内存的 {:.1f} 倍。最少设备数：{}。",
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
        "blocks, such "
        "as LLaMA's, that is an estimate. Logits, buffers and fragmentation are left out.",
        "激活按带 dropout 的 GPT 块计算（Korthikanti 等，2022），用于别的块（例如 LLaMA "
        "的）只是估计。"
        "logits、缓冲区和碎片没有计入。",
    ),
    ("small", "The small model, run here", "在这里运行的小模型"),
    ("predicted", "predicted", "预测"),
    ("both", "computed / measured, gloo", "计算值 / 实测，gloo"),
    ("rank", "measured, rank {}", "实测，rank {}"),
    ("apart", "largest difference", "最大相差"),
    (
        "ran",
        "Not the model above: {} parameters, {} ranks, the same recipe and batch. A bill of that "
        "recipe has {} "
        "bytes of states for each parameter, whatever the size.",
        "不是上面的模型：{} 个参数，{} 个 rank，同样的配方和批大小。按这种配方，每个参数有 {} "
        "字节的状态，多大都一样。",
    ),
    (
        "flash_only",
        "the small model has flash attention: choose it",
        "小模型用的是 flash 注意力：请选它",
    ),
    ("table", "part", "部分"),
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
    """a key of memory.RECIPES"""
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
        return sharding_states.ranks_needed(
            MODELS[self.model].params,
            self.device_bytes,
            stage,
            self.recipe,
            extra_bytes=self.bill()["activations"],
        )


class NeedBoard(Trial):
    """The widget: a page per model; ``run()`` reads the bill of a small model out of two ranks."""

    def __init__(self, language: str = "en", **start: object) -> None:
        words = spoken(_WORDS, language)
        shown = {name: words.get for name in ("recipe", "attention")}
        shown["device"] = lambda name: _device(name, words)
        super().__init__(
            language,
            _WORDS,
            selectors(_OPTIONS, start, words, shown, dropdowns=("recipe", "attention", "device")),
        )

    def setting_at(self, *indices: int) -> Setting:
        """What the controls say when they stand at these indices."""
        return chosen(Setting, _OPTIONS, indices)

    def key(self, setting: Setting) -> tuple:
        """A run depends on the recipe and the batch: the model is the small one."""
        return setting.recipe, setting.batch

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._scene(self.setting)

    def _scene(self, setting: Setting) -> Sketch:
        bill, device = setting.bill(), setting.device

        def build(words: dict[str, str]) -> Sketch:
            say = spoken(_WORDS, words["code"])
            rows, states = [(say["whole"], bill)], sum(bill.values()) - bill["activations"]
            for stage in () if setting.needed(0) == 1 else (1, 2, 3):
                num_ranks = setting.needed(stage)
                label = say["zero" if num_ranks else "never"].format(
                    stage, f"{num_ranks:,}" if num_ranks else ""
                )
                rows.append((label, setting.bill(num_ranks or _MANY, stage)))
            numbers = (
                (say["states"], format_bytes(states)),
                (say["activations"], format_bytes(bill["activations"])),
            )
            return stacked(
                rows,
                say,
                title=say["title"].format(setting.model),
                badge=say["computed"],
                numbers=numbers,
                mark=(_device(device, say), setting.device_bytes),
                code=words["code"],
            )

        return speaking(self.language, build)

    def page(self, setting: Setting) -> str:
        """The picture, what fits, and what was measured of the small model."""
        say, total = self._words, sum(setting.bill().values())
        if setting.needed(0) == 1:
            notes = [say["fits"].format(format_share(total / setting.device_bytes))]
        else:
            needed = [(stage, setting.needed(stage)) for stage in (1, 2, 3)]
            listed = (
                say["need"].format(stage, f"{num:,}" if num else say["none"])
                for stage, num in needed
            )
            notes = [say["not"].format(total / setting.device_bytes, say["and"].join(listed))]
        notes += [say["own"].format(setting.batch, MODELS[setting.model].seq_len), say["estimate"]]
        page = svg.html(self._scene(setting)) + paragraphs(*notes)
        if (run := self.runs.get(self.key(setting))) is None:
            return page
        ran = say["ran"].format(
            f"{run[0]['num_params']:,}",
            len(run),
            sharding_states.recipe(setting.recipe).bytes_per_parameter,
        )
        return page + svg.html(self._measured(setting)) + paragraphs(ran)

    def _measured(self, setting: Setting) -> Sketch:
        """The small model's bill: predicted, and what each rank held."""
        predicted, bills = (
            small_bill(setting.recipe, setting.batch),
            measured_bills(self.runs[self.key(setting)]),
        )
        off = max(abs(bill[part] - predicted[part]) for bill in bills for part in PARTS)

        def build(words: dict[str, str]) -> Sketch:
            say = spoken(_WORDS, words["code"])
            rows = [(say["rank"].format(rank), bill) for rank, bill in enumerate(bills)]
            numbers = ((say["apart"], format_bytes(off)),)
            return stacked(
                [(say["predicted"], predicted), *rows],
                say,
                title=say["small"],
                badge=say["both"],
                numbers=numbers,
                code=words["code"],
            )

        return speaking(self.language, build)

    def reason(self, setting: Setting) -> str | None:
        """The small model never stores the attention matrix, and recomputes nothing."""
        return None if setting.attention == "flash" else self._words["flash_only"]

    def begin(self, setting: Setting) -> Job:
        """The recipe on two real ranks."""
        return launcher.start(
            train, setting.recipe, setting.batch, ranks=2, backend="gloo", timeout_s=60.0
        )


def training_need(
    language: str = "en",
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


def small_bill(recipe: str, batch: int) -> dict[str, float]:
    """What a rank should hold of the small model after a backward, to the byte, by PARTS."""
    units = sharding_step.transformer(**SMALL, batch=batch)
    held = partition.predict("ddp", sharding_step.shapes(units), 2, recipe_name=recipe)
    if recipe in (
        "mixed",
        "sgd",
    ):  # AdamW alone counts its steps in a tensor; DeepSpeed in a number
        held = held.select(held.kind != "step")
    step = sharding_step.predict("ddp", units, 2, recipe_name=recipe)
    kept = step.num_bytes[step.labels.index("loss"), footprint.PARTS.index("activations")]
    states = {part: float(per_rank[0]) for part, per_rank in held.bytes_by("category").items()}
    return {
        **states,
        "activations": float(kept) + 4,
    }  # the mean of the loss keeps how many it is of


def measured_bills(run: Sequence[dict]) -> list[dict[str, float]]:
    """What each rank of such a run held, by PARTS."""
    states = join(each["shards"] for each in run).bytes_by("category")
    return [
        {
            **{part: float(states[part][rank]) for part in PARTS[:3]},
            "activations": float(each["activation_bytes"]),
        }
        for rank, each in enumerate(run)
    ]


def train(recipe: str, batch: int, recorded: bool = True) -> dict:
    """One rank: steps by a recipe, in torch or (16 bit with an fp32 copy) DeepSpeed; what lay there
    in them."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from labkit import model
    from labkit.measure import memory, trace
    from labkit.sharding import engines

    net, found = model.Transformer(*list(SMALL.values())[:3], max_len=SMALL["seq_len"]), {}
    if recipe == "mixed":
        trainer = sharding_run.wrap(
            sharding_run.Setting(engine="zero0", batch=batch, num_microbatches=1), net
        )
    else:
        engine = DistributedDataParallel(
            net.bfloat16() if recipe == "bf16" else net, gradient_as_bucket_view=True
        )
        make = torch.optim.SGD if recipe == "sgd" else torch.optim.AdamW
        options = {"momentum": 0.9} if recipe == "sgd" else {}
        trainer = sharding_run.Trainer(
            engine=engine, optimizer=make(engine.parameters(), lr=1e-3, **options)
        )
    tokens, targets = (
        each.clone() for each in model.story_tokens(batch, SMALL["seq_len"], seed=dist.get_rank())
    )
    trainer.train(1, tokens, targets)
    trainer.train(
        1,
        tokens,
        targets,
        between=lambda _: found.update(shards=engines.shards(trainer.engine, trainer.optimizer)),
    )
    with trace.record(operators=False) if recorded else contextlib.nullcontext():
        trainer.train(1, tokens, targets)
    held = memory.Activations(trainer.engine.parameters())
    with held.chunk(0):
        loss = model.loss(trainer.engine(tokens).float(), targets)
    return {
        **found,
        "activation_bytes": held.num_bytes,
        "loss": loss.item(),
        "num_params": sum(each.numel() for each in net.parameters()),
    }
