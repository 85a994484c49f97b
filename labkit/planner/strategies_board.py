"""``strategies()``: data parallel, sharded, by layers, hybrid: who holds what and sends what,
computed for a large model; then the same strategy on real ranks with a small one."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil

from labkit.launching.job import Job
from labkit.pictures import svg
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words
from labkit.planner.models import DEVICES, MODELS, PARTS, stacked
from labkit.planner.need_board import _WORDS as _BILL
from labkit.planner.picture import architectures
from labkit.planner.run import held, num_params, num_stages, payload, predicted, start
from labkit.sharding import states
from labkit.units import format_bytes, format_share
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, chosen, selectors
from labkit.words import WORDS, speaking

__all__ = ["architectures", "strategies"]

STRATEGIES = ("data", "sharded", "layers", "hybrid")
MAX_REAL_RANKS, MAX_REAL_BATCH = 4, 16
_OPTIONS = {
    "strategy": STRATEGIES,
    "model": tuple(MODELS),
    "device": tuple(DEVICES),
    "ranks": (4, 8),
    "batch": (16, 64, 256),
}
_WORDS = (
    *(
        row
        for row in _BILL
        if row[0] in (*PARTS, "model", "device", "computed", "both", "apart", "table")
    ),
    ("strategy", "strategy", "策略"),
    ("ranks", "ranks", "rank 数"),
    ("batch", "sequences per step", "每步序列数"),
    ("data", "data parallel", "数据并行"),
    ("sharded", "states sharded", "状态分片"),
    ("layers", "model parallel", "模型并行"),
    ("hybrid", "hybrid, 2 stages", "混合，2 段"),
    ("all_layers", "layers", "层"),
    ("share", "sequences", "序列"),
    ("holds", "a rank holds", "一个 rank 存"),
    ("sends", "sends per step", "每步发送"),
    ("idle", "idle", "空闲"),
    ("heading", "{}, {} ranks, {}", "{}，{} 个 rank，{}"),
    ("each", "The busiest rank of each", "各策略最忙的 rank"),
    (
        "how",
        "fp32 with Adam. The same {} sequences in every row. Sent: collectives at their lower "
        "bound, and messages "
        "of activations. Idle: (p-1)/(m+p-1), for p equal stages and m microbatches of one "
        "sequence, GPipe.",
        "fp32，Adam。各行都是同样的 {} 条序列。发送：集合通信按下界，再加传激活的消息。空闲："
        "(p-1)/(m+p-1)，"
        "p 个相等的段、m 个微批次（每个一条序列），GPipe。",
    ),
    ("small", "The small model, run here: {}", "在这里运行的小模型：{}"),
    ("predicted_rank", "rank {}, predicted", "rank {}，预测"),
    ("measured_rank", "rank {}, measured", "rank {}，实测"),
    (
        "handed",
        "Not the model above: {} parameters. Bytes of tensors that rank {} handed over in a step: "
        "{} "
        "(predicted: {}). On the wire, headers and gloo's ways included: {}.",
        "不是上面的模型：{} 个参数。一步里 rank {} 交出的张量字节：{}（预测：{}）。线路上，"
        "含报头与 gloo 的做法：{}。",
    ),
    ("uncounted", "not counted on this system", "本系统不计"),
    ("many", "real runs take up to {} ranks", "真实运行最多 {} 个 rank"),
    ("long", "real runs take up to {} sequences", "真实运行最多 {} 条序列"),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of all controls."""

    strategy: str
    """one of STRATEGIES"""
    model: str
    """a key of MODELS"""
    device: str
    """a key of DEVICES"""
    num_ranks: int
    """N"""
    batch: int
    """sequences per step, on all ranks together"""

    @property
    def num_stages(self) -> int:
        """p: into how many parts the layers are cut."""
        return num_stages(self.strategy, self.num_ranks)

    @property
    def num_replicas(self) -> int:
        """d: how many take a part of the batch."""
        return self.num_ranks // self.num_stages

    @property
    def part(self) -> float:
        """The share of the layers that the longest stage has."""
        num_layers = MODELS[self.model].layers
        return ceil(num_layers / self.num_stages) / num_layers

    @property
    def idle(self) -> float:
        """The share of a rank's time that the pipeline leaves idle."""
        stages = self.num_stages
        return (stages - 1) / (self.batch / self.num_replicas + stages - 1)

    def bill(self) -> dict[str, float]:
        """Bytes on the busiest rank, by PARTS."""
        model = MODELS[self.model]
        bill = model.bill(
            1, "fp32", num_ranks=self.num_ranks, stage=3 * (self.strategy == "sharded")
        )
        return {
            part: num_bytes
            * self.part
            * (self.batch / self.num_replicas if part == "activations" else 1)
            for part, num_bytes in bill.items()
        }

    def sent_bytes(self) -> float:
        """What the busiest rank sends in a step."""
        model = MODELS[self.model]
        volume = states.step_volume(
            4 * model.params * self.part, self.num_replicas, 3 if self.strategy == "sharded" else 0
        )
        edges = min(
            2, self.num_stages - 1
        )  # to the next stage in the forward, to the one before in the backward
        return (
            sum(volume.values())
            + edges * 4 * model.dim * model.seq_len * self.batch / self.num_replicas
        )


class StrategiesBoard(Trial):
    """The widget: a page per strategy; ``run()`` trains a small model by it on real ranks."""

    def __init__(self, language: str = "en", **first: object) -> None:
        words = spoken(_WORDS, language)
        super().__init__(
            language,
            _WORDS,
            selectors(
                _OPTIONS, first, words, {"strategy": words.get}, dropdowns=("model", "device")
            ),
        )

    def setting_at(self, *indices: int) -> Setting:
        """What the controls say when they stand at these indices."""
        return chosen(Setting, _OPTIONS, indices)

    def key(self, setting: Setting) -> tuple:
        """A run depends on these: the model is the small one."""
        return setting.strategy, setting.num_ranks, setting.batch

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._scene(self.setting)

    def _scene(self, setting: Setting) -> Sketch:
        def build(words: dict[str, str]) -> Sketch:
            return _who_holds_what(setting, spoken(_WORDS, words["code"]), words["code"])

        return speaking(self.language, build)

    def page(self, setting: Setting) -> str:
        """Who holds what, the four strategies beside each other, and what was measured of the small
        model."""
        say, every = self._words, [_like(setting, strategy) for strategy in STRATEGIES]
        bills = stacked(
            [(say[each.strategy], each.bill()) for each in every],
            say,
            title=say["each"],
            badge=say["computed"],
            mark=(setting.device, DEVICES[setting.device]),
            code=self.language,
        )
        page = (
            svg.html(self._scene(setting)) + svg.html(bills) + _table(every, setting.strategy, say)
        )
        page += paragraphs(say["how"].format(setting.batch))
        if (run := self.runs.get(self.key(setting))) is None:
            return page
        expected = predicted(*self.key(setting))
        rows = [
            row
            for rank, (bill, _) in enumerate(expected)
            for row in (
                (say["predicted_rank"].format(rank), bill),
                (say["measured_rank"].format(rank), held(run, rank)),
            )
        ]
        off = max(
            abs(ours[1][part] - theirs[1][part])
            for ours, theirs in zip(rows[::2], rows[1::2], strict=True)
            for part in PARTS
        )
        drawn = stacked(
            rows,
            say,
            title=say["small"].format(say[setting.strategy]),
            badge=say["both"],
            numbers=((say["apart"], format_bytes(off)),),
            code=self.language,
        )
        sent = [sum(payload(each).values()) for each in run]
        busiest = sent.index(max(sent))
        wire = run[busiest]["sent_bytes"]
        words = say["handed"].format(
            f"{num_params():,}",
            busiest,
            _listed(payload(run[busiest]), self.language),
            _listed(expected[busiest][1], self.language),
            say["uncounted"] if wire is None else f"{wire:,}",
        )
        return page + svg.html(drawn) + paragraphs(words)

    def reason(self, setting: Setting) -> str | None:
        """Two cores bear so much."""
        if setting.num_ranks > MAX_REAL_RANKS:
            return self._words["many"].format(MAX_REAL_RANKS)
        return (
            self._words["long"].format(MAX_REAL_BATCH) if setting.batch > MAX_REAL_BATCH else None
        )

    def begin(self, setting: Setting) -> Job:
        """The strategy on real ranks."""
        return start(setting.strategy, setting.num_ranks, setting.batch)


def strategies(
    language: str = "en",
    *,
    strategy: str = "data",
    model: str = "LLaMA 7B",
    device: str = "A100 80 GB",
    num_ranks: int = 4,
    batch: int = 16,
) -> StrategiesBoard:
    """Data, sharded, model and hybrid parallelism: memory, bytes sent and idle time; in English or
    "zh"."""
    return StrategiesBoard(
        language, strategy=strategy, model=model, device=device, ranks=num_ranks, batch=batch
    )


def _like(setting: Setting, strategy: str) -> Setting:
    return Setting(
        **{
            **{name: getattr(setting, name) for name in Setting.__dataclass_fields__},
            "strategy": strategy,
        }
    )


def _table(every: Sequence[Setting], chosen: str, say: dict[str, str]) -> str:
    lines = [("th", "", "", say["holds"], say["sends"], say["idle"])]
    lines += [
        (
            "td",
            "▸" * (each.strategy == chosen),
            say[each.strategy],
            format_bytes(sum(each.bill().values())),
            format_bytes(each.sent_bytes()),
            format_share(each.idle),
        )
        for each in every
    ]
    cells = (
        "".join(
            f"<{tag if cell else 'td'} style='text-align:left;padding-right:1.2em'>{escape(cell)}"
            f"</{tag if cell else 'td'}>"
            for cell in line
        )
        for tag, *line in lines
    )
    return f"<table style='color:inherit'>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>"


def _listed(payload: dict[str, float], language: str) -> str:
    return WORDS[language]["comma"].join(
        f"{name} {round(num):,}" for name, num in payload.items() if num
    )


def _who_holds_what(setting: Setting, say: dict[str, str], code: str) -> Sketch:
    """A row per rank: which layers, or which slice of each, and which part of the batch."""
    num_layers, left, wide, right = max(8, setting.num_stages), 64.0, 380.0, 500.0
    layer, part = wide / num_layers, (WIDTH_PX - right - 4) / setting.num_replicas
    shapes: list[Shape] = [
        Words(left, 76, say["all_layers"], opacity=0.8),
        Words(right, 76, say["share"], opacity=0.8),
    ]
    for rank in range(setting.num_ranks):
        y, stage, replica = 84.0 + 26 * rank, rank % setting.num_stages, rank // setting.num_stages
        shapes.append(Words(left - 8, y + 15, f"rank {rank}", "end"))
        for index in range(num_layers):
            x, mine = left + index * layer, index * setting.num_stages // num_layers == stage
            slices = setting.num_ranks if setting.strategy == "sharded" else 1
            slice_px = (layer - 3) / slices
            shapes += [
                Box(x, y, layer - 3, 20),
                *[Box(x + slice_px * (rank % slices), y, slice_px, 20, "#4f9fe3")] * mine,
            ]
        first, size = (
            replica * setting.batch // setting.num_replicas,
            setting.batch // setting.num_replicas,
        )
        label = f"{first}" if size == 1 else f"{first}-{first + size - 1}"
        shapes += [
            Box(right, y, part * setting.num_replicas, 20),
            Box(right + replica * part, y, part, 20, "#f2954b", "", (label,)),
        ]
    heading = say["heading"].format(say[setting.strategy], setting.num_ranks, setting.model)
    numbers = (
        (say["holds"], format_bytes(sum(setting.bill().values()))),
        (say["sends"], format_bytes(setting.sent_bytes())),
        (say["idle"], format_share(setting.idle)),
    )
    table = [
        ("rank", say["all_layers"], say["share"]),
        *(
            (
                str(rank),
                f"{rank % setting.num_stages + 1}/{setting.num_stages}",
                f"{rank // setting.num_stages + 1}/{setting.num_replicas}",
            )
            for rank in range(setting.num_ranks)
        ),
    ]
    return Sketch(
        shapes=tuple(shapes),
        height_px=88.0 + 26 * setting.num_ranks,
        heading=heading,
        numbers=numbers,
        badge=say["computed"],
        language=code,
        table=tuple(table),
    )
