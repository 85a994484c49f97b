"""``accelerate_workflow()``: what each line of an Accelerate loop does in one update, predicted and
then run."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from labkit.accelerate import run as accelerate_run
from labkit.accelerate.run import LINES, SHAPE
from labkit.data_parallel import buckets
from labkit.launching import launcher
from labkit.launching.job import Job
from labkit.pictures import svg
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Sketch, Words, legend, origin
from labkit.pictures.style import KINDS
from labkit.sharding import step
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, chosen, selectors
from labkit.words import speaking

__all__ = ["accelerate_workflow"]

ENGINES = ("one process", "ddp", "fsdp", "zero2")
CODE = dict(
    zip(
        LINES,
        (
            "loss = f(net(tokens))",
            "accelerator.backward(loss)",
            "clip_grad_norm_(...)",
            "optimizer.step()",
            "optimizer.zero_grad()",
        ),
        strict=True,
    )
)
_COLOURS = {
    "forward": KINDS["F"].colour,
    "backward": KINDS["B"].colour,
    "clip": KINDS["wait"].colour,
    "step": KINDS["optimizer"].colour,
    "zero_grad": KINDS["wait"].colour,
}
_OPTIONS = {
    "accumulation": (1, 2, 3, 4),
    "engine": ENGINES,
    "precision": ("no", "bf16"),
    "ranks": (2, 3, 4),
}
_LEFT_PX, _HIGH_PX = (
    196.0,
    {"forward": 34.0, "backward": 66.0, "clip": 34.0, "step": 34.0, "zero_grad": 34.0},
)
_WORDS = (
    ("accumulation", "accumulation", "累积批次"),
    ("engine", "engine", "引擎"),
    ("precision", "precision", "精度"),
    ("ranks", "ranks", "rank 数"),
    ("one process", "one process", "单进程"),
    ("ddp", "DDP", "DDP"),
    ("fsdp", "FSDP2", "FSDP2"),
    ("zero2", "DeepSpeed ZeRO-2", "DeepSpeed ZeRO-2"),
    ("no", "no (fp32)", "no（fp32）"),
    ("bf16", "bf16", "bf16"),
    ("heading", "One update: {}, {}, {}", "一次更新：{}，{}，{}"),
    ("many", "{} ranks", "{} 个 rank"),
    ("one", "one process", "单进程"),
    ("batch", "batch {}", "批次 {}"),
    ("sync", "sync_gradients {}", "sync_gradients {}"),
    ("quiet", "no message", "无消息"),
    ("skip", "does nothing", "什么也不做"),
    ("out", "not called", "未调用"),
    ("update", "weights change", "权重改变"),
    ("clear", "gradients dropped", "丢掉梯度"),
    ("reads", "reads the norm only", "只读出范数"),
    ("done", "done in backward", "已在 backward 里完成"),
    ("guess", "collectives predicted", "预测的集合通信"),
    ("seen", "measured", "实测"),
    ("key", "3 = 3: predicted = measured", "3 = 3：预测 = 实测"),
    ("thick", "thick edge: the line changed the weights", "粗边：这一行改变了权重"),
    ("before", "before prepare", "prepare 之前"),
    ("after", "after prepare", "prepare 之后"),
    ("model", "model", "模型"),
    ("optimizer", "optimizer", "优化器"),
    ("loader", "loader", "加载器"),
    ("batch sampler", "batch sampler", "批采样器"),
    ("batches", "batches per epoch", "每个 epoch 的批次数"),
    ("batch on", "batches lie on", "批次所在设备"),
    ("weights", "weights on rank 0", "rank 0 上的权重"),
    ("inside", "a block computes in", "层内计算的类型"),
    ("output", "output", "输出的类型"),
    (
        "same",
        "Measured: every line called the predicted collectives, and the weights changed where "
        "predicted.",
        "实测：每一行调用的集合通信都与预测相同，权重也在预测的那一行改变。",
    ),
    (
        "other",
        "Measured: {} places differ from the prediction (≠).",
        "实测：有 {} 处与预测不同（≠）。",
    ),
    (
        "payload",
        "Handed to collectives in this update by a rank: {} bytes.",
        "这次更新中，一个 rank 交给集合通信 {} 字节。",
    ),
    (
        "cpu",
        "On the CPU with gloo. Accelerate runs FSDP and DeepSpeed on all ranks only where it "
        "finds GPUs: here it "
        "is told that it has.",
        "在 CPU 上用 gloo 运行。Accelerate 只在找到 GPU 时才会在所有 rank 上用 FSDP 和 DeepSpeed："
        "这里告诉它“找到了”。",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of all controls."""

    accumulation: int
    """batches per update"""
    engine: str
    """one of ENGINES"""
    precision: str
    """mixed_precision: "no" or "bf16\""""
    ranks: int
    """how many ranks; one process has one"""

    @property
    def num_ranks(self) -> int:
        """As many as are started."""
        return 1 if self.engine == "one process" else self.ranks


def predicted(setting: Setting) -> list[dict[str, dict]]:
    """Per batch of an update and per line that is called: the collectives by name, and whether the
    weights change.

    DDP: an all-reduce per bucket, in the last batch only. FSDP2: blocks and root are gathered in
    every batch, reduced in the last; the norm is summed. ZeRO-2: gradients are reduced in every
    batch; the last backward also sums the norm (and, in bf16, looks for overflow), updates, and
    gathers the weights.
    """
    units, rows = SHAPE["num_layers"] + 1, []
    for index in range(setting.accumulation):
        last, row = index == setting.accumulation - 1, {line: {} for line in LINES}
        if setting.engine == "ddp" and last:
            row["backward"] = {"all_reduce": len(_buckets())}
        elif setting.engine == "fsdp":
            row["forward"] = {"all_gather": units}
            row["backward"] = {"all_gather": units - 1} | (
                {"reduce_scatter": units} if last else {}
            )
            row["clip"] = {"all_reduce": 1}
        elif setting.engine == "zero2":
            sums = 1 + last + (last and setting.precision == "bf16")
            row["backward"] = {"all_reduce": sums} | ({"all_gather": 1} if last else {})
        where = "backward" if setting.engine == "zero2" else "step"
        rows.append(
            {
                line: {"calls": calls, "moved": last and line == where}
                for line, calls in row.items()
                if last or line != "clip"
            }
        )
    return rows


def _buckets() -> tuple[tuple[int, ...], ...]:
    """DDP's own, with its default sizes."""
    units = step.transformer(
        num_layers=SHAPE["num_layers"],
        dim=SHAPE["dim"],
        num_heads=SHAPE["num_heads"],
        batch=1,
        seq_len=SHAPE["max_len"],
    )
    shapes = step.shapes(units).values()
    sizes = [4 * shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes]
    return buckets.assign(sizes, 25 * buckets.MIB, buckets.MIB)


class AccelerateBoard(Trial):
    """The widget: pages by accumulation; ``run()`` trains with a real Accelerator and looks at its
    third update."""

    def __init__(self, language: str = "en", **start: object) -> None:
        words = spoken(_WORDS, language)
        shown = {"engine": words.get, "precision": words.get}
        super().__init__(
            language, _WORDS, selectors(_OPTIONS, start, words, shown, ("engine", "precision"))
        )

    def setting_at(self, *indices: int) -> Setting:
        """What the controls say when they stand at these indices."""
        return chosen(Setting, _OPTIONS, indices)

    def key(self, setting: Setting) -> tuple:
        """One process is one process, however many ranks are chosen."""
        return setting.accumulation, setting.engine, setting.precision, setting.num_ranks

    def begin(self, setting: Setting) -> Job:
        """The usual loop under this engine."""
        return launcher.start(
            accelerate_run.step,
            setting.engine,
            setting.precision,
            setting.accumulation,
            ranks=setting.num_ranks,
            backend="gloo",
            timeout_s=60,
        )

    def measured_lines(self, setting: Setting) -> list[dict[str, dict]] | None:
        """What rank 0 called, per batch and line, once it has been run."""
        run = self.runs.get(self.key(setting))
        return run[0]["lines"] if run else None

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._scene(self.setting)

    def _scene(self, setting: Setting) -> Sketch:
        rows, found = predicted(setting), self.measured_lines(setting)

        def build(base: dict[str, str]) -> Sketch:
            say = spoken(_WORDS, base["code"])
            ranks = say["one"] if setting.num_ranks == 1 else say["many"].format(setting.num_ranks)
            heading = say["heading"].format(say[setting.engine], ranks, say[setting.precision])
            shapes, table, y = _columns(rows, say), [], 96.0
            for line in LINES:
                cells = [
                    _cell(setting, line, row, found[index] if found else None, say)
                    for index, row in enumerate(rows)
                ]
                shapes += [
                    Words(0, y + _HIGH_PX[line] / 2 + 2, CODE[line]),
                    *(
                        shape
                        for index, cell in enumerate(cells)
                        for shape in _drawn(cell, line, index, len(rows), y)
                    ),
                ]
                table.append((CODE[line], *("; ".join(words) for words, _, _ in cells)))
                y += _HIGH_PX[line] + 6
            keys = (
                [((), say["key"]), ((Box(0, -7, 22, 14, marked=True),), say["thick"])]
                if found
                else []
            )
            more, end_px = legend(keys, 0, y)
            badge = origin("measured, gloo", base) if found else base["predicted"].lower()
            totals = [
                (
                    say[name],
                    str(
                        sum(
                            num
                            for row in lines
                            for each in row.values()
                            for num in each["calls"].values()
                        )
                    ),
                )
                for name, lines in (("guess", rows), ("seen", found))
                if lines
            ]
            return Sketch(
                shapes=(*shapes, *more),
                height_px=end_px if found else y + 4,
                heading=heading,
                badge=badge,
                numbers=tuple(totals),
                language=base["code"],
                table=(("", *(say["batch"].format(i + 1) for i in range(len(rows)))), *table),
            )

        return speaking(self.language, build)

    def page(self, setting: Setting) -> str:
        """The picture; after a run what ``prepare`` changed."""
        say, run, notes, more = self._words, self.runs.get(self.key(setting)), [], ""
        if run is not None:
            off = differing(predicted(setting), run[0]["lines"])
            payload = sum(
                num
                for row in run[0]["lines"]
                for each in row.values()
                for num in each["payload_bytes"].values()
            )
            notes = [
                say["other"].format(off) if off else say["same"],
                say["payload"].format(f"{payload:,}"),
            ]
            more = _before_after(run[0], say)
        if setting.engine in ("fsdp", "zero2"):
            notes.append(say["cpu"])
        return svg.html(self._scene(setting)) + paragraphs(*notes) + more


def differing(rows: list[dict[str, dict]], found: list[dict[str, dict]]) -> int:
    """How many lines called other collectives than predicted, or changed the weights elsewhere."""
    return sum(row.keys() != other.keys() for row, other in zip(rows, found, strict=True)) + sum(
        row[line]["calls"] != other[line]["calls"] or row[line]["moved"] != other[line]["moved"]
        for row, other in zip(rows, found, strict=True)
        for line in row.keys() & other.keys()
    )


def _cell(
    setting: Setting, line: str, row: Mapping, found: Mapping | None, say: Mapping[str, str]
) -> tuple[list[str], bool, bool]:
    """Its words, whether it does anything, whether it changes the weights."""
    if line not in row:
        return [say["out"]], False, False
    guess, seen = row[line]["calls"], found.get(line) if found else None
    moved = (seen or row[line])["moved"]
    words = []
    for name in {**guess, **(seen["calls"] if seen else {})}:
        counts = [guess.get(name, 0), *([seen["calls"].get(name, 0)] if seen else [])]
        sign = " = " if len(set(counts)) == 1 else " ≠ "
        words.append(f"{name} {sign.join(map(str, counts))}")
    zero, updates = setting.engine == "zero2", "clip" in row
    if line in ("step", "zero_grad") and (zero or not updates):
        return [*words, say["done"] if zero and updates else say["skip"]], False, moved
    if line == "clip" and zero:
        return [*words, say["reads"]], False, moved
    words += [say["update"]] * moved + [say["clear"]] * (line == "zero_grad")
    return words or [say["quiet"]], True, moved


def _columns(rows: list, say: Mapping[str, str]) -> list:
    """A head over each batch."""
    wide = (WIDTH_PX - _LEFT_PX) / len(rows)
    return [
        shape
        for index, row in enumerate(rows)
        for shape in (
            Words(
                _LEFT_PX + wide * (index + 0.5),
                68,
                say["batch"].format(index + 1),
                "middle",
                bold=True,
            ),
            Words(
                _LEFT_PX + wide * (index + 0.5),
                86,
                say["sync"].format("clip" in row),
                "middle",
                11,
                opacity=0.85,
            ),
        )
    ]


def _drawn(cell: tuple[list[str], bool, bool], line: str, index: int, num: int, y: float) -> list:
    words, does, moved = cell
    wide, high = (WIDTH_PX - _LEFT_PX) / num - 8, _HIGH_PX[line]
    x, part = _LEFT_PX + index * (wide + 8) + 4, high / len(words)
    boxes = [
        Box(x, y + place * part, wide, part, _COLOURS[line] if does else "", texts=(text,))
        for place, text in enumerate(words)
    ]
    return boxes + [Box(x, y, wide, high, marked=True)] * moved


def _before_after(result: Mapping, say: Mapping[str, str]) -> str:
    """What ``prepare`` was given and what it gave back, as a table; what differs is bold."""
    changed = zip(result["before"].items(), result["after"].values(), strict=True)
    rows = "".join(
        f"<tr><td>{escape(say[name])}</td><td>{escape(was)}</td>"
        f"<td>{escape(now) if was == now else f'<b>{escape(now)}</b>'}</td></tr>"
        for (name, was), now in changed
    )
    look = "border-collapse:separate;border-spacing:14px 2px;text-align:left"
    return (
        f'<table style="{look}"><tr><th></th><th>{escape(say["before"])}</th><th>{escape(say["after"])}</th></tr>'
        f"{rows}</table>"
    )


def accelerate_workflow(
    language: str = "en",
    *,
    engine: str = "ddp",
    precision: str = "no",
    accumulation: int = 2,
    num_ranks: int = 2,
) -> AccelerateBoard:
    """What each line of an Accelerate loop does in one update, and what ``prepare`` changed; in
    English or "zh"."""
    return AccelerateBoard(
        language, accumulation=accumulation, engine=engine, precision=precision, ranks=num_ranks
    )
