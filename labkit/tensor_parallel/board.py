"""``tensor_parallelism()``: a layer's matrices cut by column and by row, tokens flowing through,
the collectives where they must be; bytes and time below; then run."""

from html import escape
from typing import Any, ClassVar

from labkit.pictures import scene
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.shards import differences
from labkit.tensor_parallel import messages, picture
from labkit.tensor_parallel.layer import ENGINES, Layer
from labkit.timeline import step_us
from labkit.units import format_bytes, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import LANGUAGES, WORDS, catalogue

__all__ = ["tensor_parallelism"]

SIZES: dict[str, dict[str, Any]] = {
    "small": {"hidden": 64, "heads": 8, "kv_heads": 0, "sequence": 32, "precision": "fp32"},
    "small grouped": {"hidden": 64, "heads": 8, "kv_heads": 4, "sequence": 32, "precision": "fp32"},
    "4096": {"hidden": 4096, "heads": 32, "kv_heads": 0, "sequence": 2048, "precision": "bf16"},
    "8192": {"hidden": 8192, "heads": 64, "kv_heads": 8, "sequence": 4096, "precision": "bf16"},
    "12288": {"hidden": 12288, "heads": 96, "kv_heads": 0, "sequence": 2048, "precision": "bf16"},
}
"""Layers that a control offers: two that run here, three as large models have them."""
RANKS = (2, 4, 8)


class TensorBoard(Trial):
    """The widget: pages by moment; ``run()`` cuts the layer on real ranks and holds it against one
    process."""

    options: ClassVar = {
        "moment": tuple(range(len(picture.STOPS))),
        "ranks": RANKS,
        "size": tuple(SIZES),
        "sequence_parallel": (False, True),
        "overlap": (False, True),
        "engine": ENGINES,
        "gpu": ("A100 80 GB", "H100 80 GB"),
        "node_size": (8, 4, 2),
    }
    view = "moment"
    presets: ClassVar = {"size": SIZES}
    dropdowns = ("size", "sequence_parallel", "overlap", "engine", "gpu")
    words = (
        ("moment", "moment"),
        ("ranks", "ranks"),
        ("size", "layer"),
        ("small", "h 64, 8 heads (runs here)"),
        ("small grouped", "h 64, 8 heads, 4 of keys (runs here)"),
        ("4096", "h 4096, 32 heads"),
        ("8192", "h 8192, 64 heads, 8 of keys"),
        ("12288", "h 12288, 96 heads"),
        ("own", "h {}, {} heads, {} of keys"),
        ("sequence_parallel", "sequence parallel"),
        ("sequence_parallel on", "on"),
        ("sequence_parallel off", "off"),
        ("overlap", "what hides backward messages"),
        ("overlap on", "a weight's own gradient"),
        ("overlap off", "nothing"),
        ("engine", "engine"),
        ("by hand", "by hand: f and g"),
        ("torch", "torch: DTensor"),
        ("megatron", "megatron-core"),
        ("gpu", "simulated GPU"),
        ("node_size", "GPUs of a node"),
        ("enter", "X goes in. Whole on every rank, or under sequence parallelism each its tokens."),
        (
            "column",
            "Columns: each rank multiplies by its own heads' queries, keys and values, and attends "
            "with them. No head needs another rank's.",
        ),
        (
            "row",
            "Rows: each rank multiplies its own features by the rows that meet them. What comes "
            "out has every feature, and is a summand.",
        ),
        ("sum", "g: the summands are added, and X goes on. The one sum of this pair of products."),
        (
            "column_mlp",
            "Columns: each rank has its own features of the MLP. GELU looks at one feature at a "
            "time, so it needs no other rank's.",
        ),
        ("enter_back", "The gradient of the output comes in, as X went out."),
        (
            "row_back",
            "Backward through the rows: every summand has the gradient of the sum; each rank finds "
            "the gradients of its features and of its rows.",
        ),
        (
            "column_back",
            "Backward through the columns: each rank finds its columns' gradients, and of X's "
            "gradient a summand.",
        ),
        ("sum_back", "f: these summands are added. The one sum of the pair in the backward."),
        ("none", "This moment has no message."),
        ("message", "Message: {}, {} handed in by each rank."),
        ("line", "A step of this layer on {} {}"),
        ("plain", "tensor parallel"),
        ("cut", "and sequence parallel"),
        ("head weights", "weights of a rank"),
        ("head sent", "handed to collectives"),
        ("head kept", "kept for the backward"),
        ("head step", "simulated step"),
        (
            "how",
            "Weights and collectives exactly, in {}. Kept: 16 bit with dropout, gathered tokens "
            "not kept but gathered again (Korthikanti et al. 2022). The step: simulated by the "
            "planner's times, matrix products with the constants of Megatron's own runs.",
        ),
        (
            "ran",
            "Measured on {} ranks: the output differs from one process by at most {:.1e}, a "
            "gradient by {:.1e}. Handed in: {} (predicted: {}). {}. Autograd kept {}.",
        ),
        ("slices", "Every live slice is the predicted one"),
        ("other", "{} live slices are not the predicted ones"),
    )

    # --- controls ---

    def written(self, name: str, value: Any) -> str:
        """Moments by their number, sizes in words."""
        if name == "moment":
            return f"{value + 1} / {len(picture.STOPS)}"
        if name == "size" and not isinstance(value, str):
            return self._words["own"].format(value[0], value[1], value[2] or value[1])
        return super().written(name, value)

    # --- the page ---

    def scene(self) -> Sketch:
        """The upper picture as it stands."""
        return picture.layer(self.step, self.at, language=self.language)

    def page(self, step: Layer, at: int) -> str:
        """The layer, what happens in it now, its step in time, its bytes, and what a run said."""
        say = self._words
        told = [say[picture.STOPS[at].key], self._message(step, at)]
        notes = [say["how"].format(step.precision)]
        run = self.ran(step)
        if run is not None:
            notes.append(self._measured(step, run))
        line = scene.timeline(step.timeline(), title=self._titles(step), language=self.language)
        return "".join(
            (
                svg.html(picture.layer(step, at, language=self.language)),
                paragraphs(*told),
                svg.html(line),
                self._beside(step),
                paragraphs(*notes),
            )
        )

    def _titles(self, step: Layer) -> dict[str, str]:
        every = catalogue(self.words)
        return {code: every[code]["line"].format(step.ranks, step.gpu) for code in LANGUAGES}

    def _message(self, step: Layer, at: int) -> str:
        """The collectives of a moment."""
        found = picture.messages_at(step, at)
        if not found:
            return self._words["none"]
        names = picture.WORDS[self.language]
        told = []
        for each in found:
            size = format_bytes(each.num_bytes)
            told.append(self._words["message"].format(names[each.collective], size))
        return " ".join(told)

    def _beside(self, step: Layer) -> str:
        """With the sequence whole and cut, beside each other, as a table; the chosen one is
        marked."""
        say = self._words
        named = [say[f"head {key}"] for key in ("weights", "sent", "kept", "step")]
        heads = "".join(f"<th>{escape(head)}</th>" for head in named)
        lines = [f"<tr><td></td>{heads}</tr>"]
        for is_cut in (False, True):
            each = step.but(sequence_parallel=is_cut)
            figures = (
                format_bytes(each.rank_bytes()),
                self._listed(messages.payload(messages.of_layer(each.stream()))),
                format_bytes(each.kept_bytes()),
                format_us(step_us(each.timeline())),
            )
            name = ("▸ " if is_cut == step.sequence_parallel else "") + say[
                "cut" if is_cut else "plain"
            ]
            cells = "".join(f"<td>{escape(figure)}</td>" for figure in figures)
            lines.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
        look = "border-collapse:separate;border-spacing:14px 2px;text-align:left;color:inherit"
        return f'<table style="{look}">{"".join(lines)}</table>'

    def _listed(self, payload: dict[str, int]) -> str:
        names = picture.WORDS[self.language]
        told = [f"{names[name]} {format_bytes(num)}" for name, num in payload.items()]
        return WORDS[self.language]["comma"].join(told) or "0 B"

    def _measured(self, step: Layer, run: Any) -> str:
        """How near the ranks were to one process, and what they handed in."""
        say = self._words
        off = len(differences(self.prediction(step), self.found(step)))
        return say["ran"].format(
            step.ranks,
            max(each["output_difference"] for each in run),
            max(each["gradient_difference"] for each in run),
            self._listed(run[0]["payload_bytes"]),
            self._listed(step.payload()),
            say["other"].format(off) if off else say["slices"],
            format_bytes(max(each["activation_bytes"] for each in run)),
        )


def board(step: Layer, language: str | None = None) -> TensorBoard:
    """The widget of a layer."""
    return TensorBoard(step, language)


def tensor_parallelism(
    language: str | None = None,
    *,
    num_ranks: int = 4,
    size: str = "small",
    sequence_parallel: bool = False,
) -> TensorBoard:
    """Tensor parallelism: a layer's matrices cut by column and by row, tokens flowing through, the
    all-reduce where it must be; in English or "zh"."""
    if size not in SIZES:
        raise ValueError(f"size is one of {', '.join(SIZES)}; got {size!r}")
    step = Layer(ranks=num_ranks, sequence_parallel=sequence_parallel, **SIZES[size])
    return TensorBoard(step, language)
