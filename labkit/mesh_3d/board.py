"""``three_d_parallelism()``: the grid of ranks in space, the groups of each axis lit, what a rank
holds and sends on which link, whether it fits, the step in time; then run."""

from html import escape
from typing import Any, ClassVar

from labkit.mesh_3d import picture
from labkit.mesh_3d.step import AXES, ENGINES, SCHEDULES, Step
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.timeline import busy_us, step_us
from labkit.units import format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import WORDS

__all__ = ["three_d_parallelism"]

SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "layers": 8,
        "hidden": 32,
        "heads": 8,
        "vocab": 256,
        "sequence": 32,
        "batch": 64,
        "precision": "fp32",
    },
    "6.7B": {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "vocab": 51_200,
        "sequence": 2048,
        "batch": 512,
        "precision": "bf16",
    },
    "175B": {
        "layers": 96,
        "hidden": 12_288,
        "heads": 96,
        "vocab": 51_200,
        "sequence": 2048,
        "batch": 1536,
        "precision": "bf16",
    },
}
"""Models that a control offers: one that runs here, two of GPT-3's (Brown et al. 2020, table
2.1)."""
MOST_MICROBATCHES = 4
"""for each stage, that the step's picture shows one by one"""


class MeshBoard(Trial):
    """The widget: pages by what is lit; ``run()`` trains on real ranks and holds the losses against
    one process."""

    options: ClassVar = {
        "view": picture.VIEWS,
        "tp": (1, 2, 4, 8),
        "pp": (1, 2, 4, 8),
        "dp_shard": (1, 2, 4, 8),
        "dp_replicate": (1, 2, 4, 8),
        "zero": (1, 3),
        "microbatches": (1, 2, 4, 8, 16, 32, 64),
        "size": tuple(SIZES),
        "schedule": SCHEDULES,
        "recompute": ("none", "selective", "full"),
        "node_size": (1, 2, 4, 8),
        "inside": AXES,
        "gpu": ("A100 80 GB", "H100 80 GB"),
        "engine": ENGINES,
        "forward_ms": (0.0, 20.0, 50.0),
    }
    view = "view"
    presets: ClassVar = {"size": SIZES}
    dropdowns = ("zero", "size", "schedule", "recompute", "inside", "gpu", "engine", "forward_ms")
    words = (
        ("view", "lit"),
        ("layers", "layers"),
        ("node", "nodes"),
        ("tp", "tensor parallel (tp)"),
        ("pp", "pipeline stages (pp)"),
        ("dp_shard", "replicas that share (dp_shard)"),
        ("dp_replicate", "whole replicas (dp_replicate)"),
        ("zero", "dp_shard shares out"),
        ("zero 0", "nothing"),
        ("zero 1", "optimizer states (ZeRO 1)"),
        ("zero 3", "all states (FSDP)"),
        ("microbatches", "microbatches"),
        ("size", "model"),
        ("small", "8 layers, h 32 (runs here)"),
        ("6.7B", "GPT-3 6.7B"),
        ("175B", "GPT-3 175B"),
        ("own size", "{} layers, h {}"),
        ("schedule", "schedule"),
        ("gpipe", "GPipe"),
        ("1f1b", "1F1B"),
        ("recompute", "recomputation"),
        ("none", "none"),
        ("selective", "selective"),
        ("full", "full"),
        ("node_size", "GPUs of a node"),
        ("inside", "neighbours in a node along"),
        ("gpu", "GPU model"),
        ("engine", "engine"),
        ("torch", "torch: one DeviceMesh"),
        ("deepspeed", "DeepSpeed: its grid"),
        ("forward_ms", "a forward takes"),
        ("as the GPU", "what the GPU needs"),
        ("stated", "{:g} ms, stated"),
        ("impossible", "No such step: {}."),
        ("about layers", "Each stage holds a run of layers, and each rank a slice of them."),
        (
            "about tp",
            "Along tp ranks share every layer of a stage. They sum the stream twice in a block's "
            "forward and twice in its backward, and all wait for it: tp wants the fastest links.",
        ),
        (
            "about dp_shard",
            "Along dp_shard ranks work on different sequences and share out states. Beside a "
            "pipeline a layer is gathered once a step; gradients are scattered at its end.",
        ),
        (
            "about dp_replicate",
            "Along dp_replicate ranks work on different sequences and hold the same. They sum "
            "gradients once a step: many bytes, and seldom.",
        ),
        (
            "about pp",
            "Along pp a microbatch's stream goes to the next stage and its gradient comes back: "
            "few bytes, but who waits for them is idle.",
        ),
        ("about node", "Ranks of one colour share a node. Broken lines leave it."),
        ("single", "It has one rank here: nothing is said along it."),
        ("head axis", "axis"),
        ("head ranks", "ranks"),
        ("head nodes", "nodes of a group"),
        ("head link", "their narrowest link"),
        ("head says", "what the busiest rank hands in"),
        ("head time", "time of its messages"),
        ("call", "{} {} x, {}"),
        ("send", "send"),
        ("all_reduce", "all-reduce"),
        ("all_gather", "all-gather"),
        ("reduce_scatter", "reduce-scatter"),
        ("fits", "It fits: the fullest rank needs {} of {}."),
        ("not", "It does not fit: the fullest rank needs {}, and the GPU has {}."),
        ("step", "The step takes {}; the average rank computes {} of it."),
        ("fewer", "Drawn with {} microbatches; the step has {}."),
        ("placed", "With neighbours in a node along {}: {}."),
        (
            "how",
            "The bytes of messages are exact, for an embedding and an output layer that are whole "
            "on each tp rank, as in a run here. Memory and times come from the planner, which cuts "
            "these two layers along tp, as Megatron does.",
        ),
        (
            "how stated",
            "Bytes of messages exactly. Times as stated: a forward, a backward twice as long, "
            "messages over stated links.",
        ),
        (
            "own",
            "DeepSpeed's messages are its own and are not predicted; these are those of torch's "
            "engine.",
        ),
        (
            "ran",
            "Measured on {} ranks: over {} steps the losses differ from one process by at most "
            "{:.1e}. Handed in by rank 0: {}.",
        ),
        ("handed", "{} {} (predicted: {})"),
        ("handed own", "{} {}"),
        ("took", "Its recorded step took {}; predicted at the stated times: {}."),
    )

    # --- controls ---

    def written(self, name: str, value: Any) -> str:
        """Sizes, stages of ZeRO and stated times in words; axes by their names."""
        if name == "zero":
            return self._words[f"zero {value}"]
        if name == "size" and not isinstance(value, str):
            return self._words["own size"].format(*value[:2])
        if name == "forward_ms":
            return self._words["stated"].format(value) if value else self._words["as the GPU"]
        return value if value in AXES else super().written(name, value)

    # --- the page ---

    def scene(self) -> Sketch | None:
        """The grid as it stands; None where there is no such step."""
        if self.step.impossible(self.language):
            return None
        return picture.grid(self.step, self.at, language=self.language)

    def page(self, step: Step, at: str) -> str:
        """The grid, what is said along its axes, the step in time, memory, and what a run said."""
        say = self._words
        if reason := step.impossible(self.language):
            return paragraphs(say["impossible"].format(reason))
        told = [say[f"about {at}"]]
        if at in AXES and getattr(step, at) == 1:
            told.append(say["single"])
        return "".join(
            (
                svg.html(picture.grid(step, at, language=self.language)),
                paragraphs(*told),
                self._axes(step),
                svg.html(self._line(step)),
                paragraphs(*self._in_time(step)),
                "" if step.forward_ms else svg.html(picture.memory(step, language=self.language)),
                paragraphs(*self._figures(step)),
            )
        )

    def _axes(self, step: Step) -> str:
        """A row for each axis of two ranks or more: whom it joins, what is said, how long."""
        say = self._words
        heads = [say[f"head {key}"] for key in ("axis", "ranks", "nodes", "link", "says", "time")]
        lines = ["".join(f"<th>{escape(head)}</th>" for head in heads)]
        sent = [step.messages(step.mesh.rank(pp=stage)) for stage in range(step.pp)]
        times_us = [step.times().axis_us(stage) for stage in range(step.pp)]
        for axis in AXES:
            if getattr(step, axis) == 1:
                continue
            busiest = max(range(step.pp), key=lambda stage: times_us[stage].get(axis, 0.0))
            told = []
            for name, (calls, num_bytes) in sent[busiest].get(axis, {}).items():
                told.append(say["call"].format(say[name], calls, format_bytes(num_bytes)))
            cells = (
                axis,
                str(getattr(step, axis)),
                str(step.nodes_of_group(axis)),
                f"{step.times().gb_per_s(axis):.3g} GB/s",
                WORDS[self.language]["comma"].join(told),
                format_us(times_us[busiest].get(axis, 0.0)),
            )
            lines.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
        look = "border-collapse:separate;border-spacing:14px 2px;text-align:left;color:inherit"
        return f'<table style="{look}"><tr>{"</tr><tr>".join(lines)}</tr></table>'

    def _line(self, step: Step) -> Any:
        """The step in time; beside it a run's, where both were at stated times."""
        short = shortened(step)
        measured = self.found(step) if step.forward_ms and short == step else None
        return short.drawn(self.prediction(short), measured, self.language)

    def _in_time(self, step: Step) -> list[str]:
        """How long it takes, and how long if it were placed otherwise."""
        say = self._words
        line = self.prediction(step)
        computes = float(busy_us(line).mean()) / step_us(line)
        told = [say["step"].format(format_us(step_us(line)), format_share(computes))]
        short = shortened(step)
        if short != step:
            told.append(say["fewer"].format(short.microbatches, step.microbatches))
        if step.mesh.num_nodes > 1:
            for axis in AXES:
                if axis != step.inside and getattr(step, axis) > 1:
                    placed = self.prediction(step.but(inside=axis))
                    told.append(say["placed"].format(axis, format_us(step_us(placed))))
        return told

    def _figures(self, step: Step) -> list[str]:
        """Whether it fits, how it was reckoned, and what a run said."""
        say = self._words
        told = []
        if not step.forward_ms:
            sizes = (step.memory().peak_bytes, step.times().cluster.device_bytes)
            told.append(say["fits" if step.fits() else "not"].format(*map(format_bytes, sizes)))
        told.append(say["how stated" if step.forward_ms else "how"])
        told += [say["own"]] if step.engine == "deepspeed" else []
        if (run := self.ran(step)) is not None:
            told += self._measured(step, run)
        return told

    def _measured(self, step: Step, run: Any) -> list[str]:
        """How near the losses were, and what rank 0 handed in along each axis."""
        say = self._words
        handed = []
        for axis, expected in step.messages().items():
            found = run[0]["payload_bytes"].get(axis, {})
            seen = sum(num_bytes for name, num_bytes in found.items() if name != "recv")
            due = sum(each.num_bytes for each in expected.values())
            key = "handed own" if step.engine == "deepspeed" else "handed"
            handed.append(say[key].format(axis, format_bytes(seen), format_bytes(due)))
        worst = max(each["loss_difference"] for each in run)
        steps = len(run[0]["losses"])
        told = [say["ran"].format(step.ranks, steps, worst, "; ".join(handed))]
        if step.forward_ms:
            took = max(each["step_us"] for each in run)
            due_us = step_us(self.prediction(step))
            told.append(say["took"].format(format_us(took), format_us(due_us)))
        return told


def shortened(step: Step) -> Step:
    """The same with as many microbatches as can be seen, each as large."""
    most = MOST_MICROBATCHES * step.pp
    if step.microbatches <= most:
        return step
    return step.but(microbatches=most, batch=step.batch // step.microbatches * most)


def board(step: Step, language: str | None = None) -> MeshBoard:
    """The widget of a step."""
    return MeshBoard(step, language)


def three_d_parallelism(
    language: str | None = None,
    *,
    pp: int = 2,
    dp_replicate: int = 1,
    dp_shard: int = 2,
    tp: int = 2,
    size: str = "small",
    node_size: int = 4,
) -> MeshBoard:
    """All axes at once: the grid of ranks, groups along each axis, what a rank holds and sends, the
    step in time; in English or "zh"."""
    if size not in SIZES:
        raise ValueError(f"size is one of {', '.join(SIZES)}; got {size!r}")
    step = Step(
        pp=pp,
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        tp=tp,
        microbatches=4 if size == "small" else 64,
        node_size=node_size,
        **SIZES[size],
    )
    return MeshBoard(step, language)
