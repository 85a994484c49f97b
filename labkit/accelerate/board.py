"""``accelerate_workflow()``: what each line of an Accelerate loop does in one update, predicted and
then run."""

from collections.abc import Mapping
from html import escape
from typing import ClassVar

from labkit.accelerate import picture
from labkit.accelerate.update import ENGINES, PRECISIONS, Update, differing
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial

__all__ = ["accelerate_workflow"]


class AccelerateBoard(Trial):
    """The widget: pages by accumulation; ``run()`` trains with a real Accelerator and looks at its
    third update."""

    options: ClassVar = {
        "accumulation": (1, 2, 3, 4),
        "engine": ENGINES,
        "precision": PRECISIONS,
        "spike": (False, True),
        "ranks": (2, 3, 4),
    }
    dropdowns = ("engine", "precision", "spike")
    words = (
        *picture.NAMES,
        ("accumulation", "accumulation"),
        ("engine", "engine"),
        ("precision", "precision"),
        ("ranks", "ranks"),
        ("spike", "last batch's loss"),
        ("spike off", "as it is"),
        ("spike on", "2³⁰ times as large"),
        (
            "scaling",
            "fp16 rounds what is below 6e-8 to 0 and has no number above 65,504. So the loss is "
            "multiplied by a scale, and the gradients are divided by it before they are clipped.",
        ),
        (
            "skipping",
            "A gradient became infinite: every rank sees it, nobody updates, and the scale is "
            "halved. The batch is lost, its messages were sent all the same.",
        ),
        (
            "clipped",
            "{} has fp32's range: the large gradient is clipped, and the update made.",
        ),
        (
            "own",
            "Accelerate has fp16 on GPUs only, and ignores it on a CPU. Without a GPU it is given "
            "here what it makes on one: autocast and torch's GradScaler, for this rank's device. "
            "The scale begins at 65,536, and is smaller here if one of the two updates before was "
            "skipped as well.",
        ),
        ("objects", "the objects, before and after prepare"),
        ("before", "before prepare"),
        ("after", "after prepare"),
        ("model", "model"),
        ("optimizer", "optimizer"),
        ("loader", "loader"),
        ("batch sampler", "batch sampler"),
        ("batches", "batches per epoch"),
        ("batch on", "batches lie on"),
        ("weights", "weights on rank 0"),
        ("inside", "a block computes in"),
        ("output", "type of the output"),
        (
            "same",
            "Measured: every line called the predicted collectives, and the weights changed where "
            "predicted.",
        ),
        (
            "other",
            "Measured: {} places differ from the prediction (≠).",
        ),
        (
            "cpu",
            "Accelerate runs FSDP and DeepSpeed only where each rank has a GPU. Where there is "
            "none, a device of labkit's stands in for it.",
        ),
    )

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._scene(self.step)

    def _scene(self, step: Update) -> Sketch:
        run = self.ran(step)
        notes = () if run is None else run.notes
        return picture.update(step, self.prediction(step), self.found(step), self.language, notes)

    def page(self, step: Update, at: None) -> str:
        """The picture; after a run what ``prepare`` changed."""
        say = self._words
        results = self.ran(step)
        notes = self._on_scaling(step)
        more = ""
        if results is not None:
            lines = self.found(step)
            off = differing(self.prediction(step), lines)
            notes.append(say["other"].format(off) if off else say["same"])
            more = _before_after(results[0], say)
            if step.precision == "fp16":
                notes.append(say["own"])
        if step.engine in ("fsdp", "zero2"):
            notes.append(say["cpu"])
        return svg.html(self._scene(step)) + paragraphs(*notes) + more

    def _on_scaling(self, step: Update) -> list[str]:
        """What the precision does with gradients that are very small or large."""
        say = self._words
        if step.precision == "fp16":
            return [say["scaling"], *([say["skipping"]] if step.spike else [])]
        if not step.spike:
            return []
        return [say["clipped"].format(picture.number_type(step))]


def board(step: Update, language: str | None = None) -> AccelerateBoard:
    """The widget of an update."""
    return AccelerateBoard(step, language)


def accelerate_workflow(
    language: str | None = None,
    *,
    engine: str = "ddp",
    precision: str = "no",
    accumulation: int = 2,
    num_ranks: int = 2,
    spike: bool = False,
) -> AccelerateBoard:
    """What each line of an Accelerate loop does in one update, and what ``prepare`` changed; in
    English or "zh"."""
    step = Update(
        engine=engine,
        precision=precision,
        accumulation=accumulation,
        spike=spike,
        ranks=num_ranks,
    )
    return AccelerateBoard(step, language)


def _before_after(result: Mapping, say: Mapping[str, str]) -> str:
    """What ``prepare`` was given and what it gave back, as a folded table; what differs is bold."""
    changed = zip(result["before"].items(), result["after"].values(), strict=True)
    rows = [f"<tr><td></td><th>{escape(say['before'])}</th><th>{escape(say['after'])}</th></tr>"]
    for (name, was), now in changed:
        shown = escape(now) if was == now else f"<b>{escape(now)}</b>"
        rows.append(f"<tr><td>{escape(say[name])}</td><td>{escape(was)}</td><td>{shown}</td></tr>")
    look = "border-collapse:separate;border-spacing:14px 2px;text-align:left"
    head = escape(say["objects"])
    table = f'<table style="{look}">{"".join(rows)}</table>'
    return f"<details><summary>{head}</summary>{table}</details>"
