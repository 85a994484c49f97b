"""``accelerate_workflow()``: what each line of an Accelerate loop does in one update, predicted and
then run."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import ClassVar

from labkit.accelerate import picture
from labkit.accelerate.update import ENGINES, PRECISIONS, Row, Update, differing
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
        "ranks": (2, 3, 4),
    }
    dropdowns = ("engine", "precision")
    words = (
        *picture.NAMES,
        ("accumulation", "accumulation"),
        ("engine", "engine"),
        ("precision", "precision"),
        ("ranks", "ranks"),
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
        ("output", "output"),
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
            "payload",
            "Handed to collectives in this update by a rank: {} bytes.",
        ),
        (
            "cpu",
            "Accelerate runs FSDP and DeepSpeed on all ranks only where it finds a GPU for each: "
            "where there is none, it is told that it has.",
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
        notes = []
        more = ""
        if results is not None:
            lines = self.found(step)
            off = differing(self.prediction(step), lines)
            notes.append(say["other"].format(off) if off else say["same"])
            notes.append(say["payload"].format(f"{_payload_bytes(lines):,}"))
            more = _before_after(results[0], say)
        if step.engine in ("fsdp", "zero2"):
            notes.append(say["cpu"])
        return svg.html(self._scene(step)) + paragraphs(*notes) + more


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
) -> AccelerateBoard:
    """What each line of an Accelerate loop does in one update, and what ``prepare`` changed; in
    English or "zh"."""
    step = Update(engine=engine, precision=precision, accumulation=accumulation, ranks=num_ranks)
    return AccelerateBoard(step, language)


def _payload_bytes(rows: Sequence[Row]) -> int:
    """What was handed to collectives in a whole update."""
    total = 0
    for row in rows:
        total += sum(sum(line["payload_bytes"].values()) for line in row.values())
    return total


def _before_after(result: Mapping, say: Mapping[str, str]) -> str:
    """What ``prepare`` was given and what it gave back, as a table; what differs is bold."""
    changed = zip(result["before"].items(), result["after"].values(), strict=True)
    rows = [f"<tr><th></th><th>{escape(say['before'])}</th><th>{escape(say['after'])}</th></tr>"]
    for (name, was), now in changed:
        shown = escape(now) if was == now else f"<b>{escape(now)}</b>"
        rows.append(f"<tr><td>{escape(say[name])}</td><td>{escape(was)}</td><td>{shown}</td></tr>")
    look = "border-collapse:separate;border-spacing:14px 2px;text-align:left"
    return f'<table style="{look}">{"".join(rows)}</table>'
