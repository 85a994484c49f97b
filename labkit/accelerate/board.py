"""``accelerate_workflow()``: what each line of an Accelerate loop does in one update, predicted and
then run."""

from collections.abc import Mapping, Sequence
from html import escape

from labkit.accelerate import picture, run
from labkit.accelerate.update import ENGINES, Row, Setting, differing, predicted
from labkit.launching.job import Job
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors
from labkit.words import spoken_in

__all__ = ["accelerate_workflow"]

_OPTIONS = {
    "accumulation": (1, 2, 3, 4),
    "engine": ENGINES,
    "precision": ("no", "bf16"),
    "ranks": (2, 3, 4),
}
_WORDS = (
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
        "On the CPU with gloo. Accelerate runs FSDP and DeepSpeed on all ranks only where it "
        "finds GPUs: here it is told that it has.",
    ),
)


class AccelerateBoard(Trial):
    """The widget: pages by accumulation; ``run()`` trains with a real Accelerator and looks at its
    third update."""

    options = _OPTIONS
    setting_type = Setting

    def __init__(self, language: str | None = None, **start: object) -> None:
        language = spoken_in(language)
        words = spoken(_WORDS, language)
        shown = {"engine": words.get, "precision": words.get}
        dropdowns = ("engine", "precision")
        super().__init__(language, _WORDS, selectors(_OPTIONS, start, words, shown, dropdowns))

    def predict(self, setting: Setting) -> list[Row]:
        """What each line should call, per batch."""
        return predicted(setting)

    def key(self, setting: Setting) -> tuple:
        """One process is one process, however many ranks are chosen."""
        return setting.accumulation, setting.engine, setting.precision, setting.num_ranks

    def begin(self, setting: Setting) -> Job:
        """The usual loop under this engine."""
        return run.start(
            setting.engine, setting.precision, setting.accumulation, num_ranks=setting.num_ranks
        )

    def measured_lines(self, setting: Setting) -> list[Row] | None:
        """What rank 0 called, per batch and line, once it has been run."""
        results = self.runs.get(self.key(setting))
        return results[0]["lines"] if results else None

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._scene(self.setting)

    def _scene(self, setting: Setting) -> Sketch:
        found = self.measured_lines(setting)
        return picture.update(setting, self.prediction(setting), found, self.language)

    def page(self, setting: Setting) -> str:
        """The picture; after a run what ``prepare`` changed."""
        say = self._words
        results = self.runs.get(self.key(setting))
        notes = []
        more = ""
        if results is not None:
            lines = results[0]["lines"]
            off = differing(self.prediction(setting), lines)
            notes.append(say["other"].format(off) if off else say["same"])
            notes.append(say["payload"].format(f"{_payload_bytes(lines):,}"))
            more = _before_after(results[0], say)
        if setting.engine in ("fsdp", "zero2"):
            notes.append(say["cpu"])
        return svg.html(self._scene(setting)) + paragraphs(*notes) + more


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
    return AccelerateBoard(
        language, accumulation=accumulation, engine=engine, precision=precision, ranks=num_ranks
    )


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
