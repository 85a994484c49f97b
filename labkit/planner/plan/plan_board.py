"""``training_plan()``: a model, a cluster and a layout by controls; memory against the GPU's, where
the time of a step goes, tokens per second, MFU and days, beside the last setting."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any, ClassVar

from labkit.pictures import scene
from labkit.pictures.drawing import Picture
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.planner.card_picture import days, tokens_told
from labkit.planner.models import names, training_tokens
from labkit.planner.plan import picture
from labkit.planner.plan.layout import RECOMPUTE
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.shape import Shape
from labkit.units import check_real, format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import catalogue, in_every, meanwhile

__all__ = ["training_plan"]

FIRST = {"model": "LLaMA 7B", "gpu": "A100 80 GB", "gpus": 8, "zero": 1, "batch": 512}
"""The setting that the board opens with: what the running story begins with."""
_ORDER = (
    *("model", "seq", "batch"),
    *("gpu", "gpus", "nic_gb_per_s"),
    *("tp", "sp", "cp"),
    *("pp", "vpp", "zero"),
    *("mbs", "recompute"),
)
"""How the controls stand on the board; the first three of ``options`` turn in the book."""
_WORDS = (
    ("model", "model"),
    ("gpu", "GPU model"),
    ("gpus", "number of GPUs"),
    ("nic_gb_per_s", "network (GB/s a GPU)"),
    ("usual", "usual"),
    ("tp", "tensor parallel (tp)"),
    ("sp", "sequence parallel (sp)"),
    ("sp on", "on"),
    ("sp off", "off"),
    ("cp", "context parallel (cp)"),
    ("pp", "pipeline stages (pp)"),
    ("vpp", "chunks a stage (vpp)"),
    ("zero", "ZeRO stage"),
    ("mbs", "microbatch (sequences)"),
    ("recompute", "recomputation"),
    ("batch", "sequences per step"),
    ("seq", "sequence (tokens)"),
    ("none", "none"),
    ("selective", "selective"),
    ("full", "full"),
    ("now", "this setting"),
    ("last", "before"),
    ("plan", "plan"),
    ("step", "step"),
    ("rate", "tokens/s"),
    ("mfu", "MFU"),
    ("memory", "memory of the fullest GPU"),
    ("days", "days for {} tokens"),
    ("untold", "days: nothing says how many tokens it is trained on"),
    ("fits", "It fits: {} of each GPU's {} are left."),
    (
        "not",
        "It does not fit: the fullest GPU needs {} more than its {}; the times are those of "
        "GPUs that had them.",
    ),
    ("idle", "Nothing was started: all numbers are predicted."),
    ("operators", "by operators"),
    ("least", "the least"),
    ("impossible", "No such layout: {}."),
    ("no beside", "The setting before was no layout."),
    ("whole", "The step, a row for each stage"),
    ("fewer", "The same layout with {} microbatches; the step has {:,}"),
    ("doubts", "How far to trust these numbers"),
    ("long", "The step has too many forwards and backwards to draw them one by one."),
)
MOST_ACTIONS = 32
"""A step of more on a rank is drawn with fewer microbatches."""
MOST_BOXES = 2_000
"""A timeline of more is not drawn."""


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """Where the controls stand at no plan."""

    reason: str
    """why, in the board's language"""

    def refusal(self, language: str | None = None) -> str:
        """Why there is nothing to run either."""
        return self.reason

    def as_run(self) -> "Impossible":
        """Itself: nothing was run of it."""
        return self


class PlanBoard(Trial):
    """The widget: a page per degree of tensor parallelism, this setting beside the last one. A plan
    is not run, so there is no button; a line says so."""

    options: ClassVar = {
        "tp": (1, 2, 4, 8),
        "pp": (1, 2, 4, 8, 16),
        "zero": (0, 1, 2, 3),
        "model": tuple(names("models.csv")),
        "gpu": tuple(names("hardware.csv")),
        "gpus": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        "nic_gb_per_s": (0.0, 1.5, 3.0, 6.0, 12.5, 25.0, 50.0),
        "sp": (False, True),
        "cp": (1, 2, 4, 8),
        "vpp": (1, 2, 4),
        "mbs": (1, 2, 4, 8, 16),
        "recompute": RECOMPUTE,
        "batch": (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
        "seq": (512, 1024, 2048, 4096, 8192, 16_384, 32_768),
    }
    dropdowns = ("model", "gpu", "recompute")
    words = _WORDS

    def __init__(
        self, plan: Plan, language: str | None = None, tokens: float | None = None
    ) -> None:
        self.tokens = tokens
        self._now: tuple[int, ...] = ()
        self._last: tuple[int, ...] = ()
        self._turned = False
        super().__init__(plan, language)
        box, book, _, *others = self.children
        box.children = [self.controls[name] for name in _ORDER]
        self.children = [box, book, self.why_off, *others]

    def written(self, name: str, value: Any) -> str:
        """A model of one's own by its name, lengths with commas, a batch that nobody stated."""
        if isinstance(value, Shape):
            return value.name
        if name == "batch" and not value:
            return self._words["least"]
        if name == "nic_gb_per_s" and not value:
            return self._words["usual"]
        return f"{value:,}" if name in ("gpus", "batch", "seq") else super().written(name, value)

    # --- this setting, and the last one ---

    def _at(self, *indices: int) -> tuple[Plan | Impossible, Plan | Impossible | None]:
        """The plan there, and the one that is shown beside it: where the controls stand, the last
        one; anywhere else, the one that they would come from."""
        self._remember()
        beside = self._last if indices == self._now else self._now
        return self._plan(indices), self._plan(beside) if beside else None

    def _plan(self, indices: tuple[int, ...]) -> Plan | Impossible:
        changes = {}
        for (name, values), index in zip(self._choices.items(), indices, strict=True):
            changes[name] = values[index]
        try:
            with meanwhile(self.language):
                plan = self.experiment.but(**changes)
                plan.check()
        except ValueError as error:
            return Impossible(reason=str(error))
        return plan

    def _remember(self) -> None:
        """Notes that a control has moved."""
        book = getattr(self, "book", None)
        if book is None:
            stands = tuple(control.index for control in self.controls.values())
        else:
            stands = tuple(book.at.values())
        if stands == self._now:
            return
        self._turned = stands[1:] == self._now[1:]
        self._last = self._now
        self._now = stands

    def _allow(self) -> None:
        """That nothing was started. Where the first control has moved, all other pages are drawn
        anew: they stand beside another setting now."""
        self.why_off.value = "" if isinstance(self.step, Impossible) else self._words["idle"]
        if self._turned:
            self._turned = False
            self.book.redraw()

    # --- what it shows ---

    def scene(self) -> Sketch | None:
        """The bars of memory; None for no layout."""
        plan = self.step
        if isinstance(plan, Impossible):
            return None
        return picture.memory_bars(self._beside(plan, self.at), language=self.language)

    def _beside(self, plan: Plan, last: Plan | Impossible | None) -> list[tuple[dict, Plan]]:
        """The plans that are shown, each under its name in every language."""
        found = [("now", plan)]
        if isinstance(last, Plan) and last != plan:
            found.append(("last", last))
        return [(_in_both(key), each) for key, each in found]

    def page(self, step: Plan | Impossible, at: Plan | Impossible | None) -> str:
        """Numbers, memory, time, and the step itself where it is short; or why there is no such
        layout."""
        say = self._words
        if isinstance(step, Impossible):
            return paragraphs(say["impossible"].format(step.reason.rstrip("。.")))
        plans = self._beside(step, at)
        held = picture.memory_bars(plans, language=self.language)
        spent = picture.time_bars(plans, language=self.language)
        if step.precision != "fp32":  # else its badge says how a GPU multiplies
            spent = replace(spent, badge=held.badge)  # whose constants: below, folded
        numbers = self._numbers([each for _, each in plans])
        parts = [numbers, svg.html(held), svg.html(spent)]
        notes = [_room(step, say)]
        if drawable := shortened(step):
            parts.append(svg.html(self._timeline(step, drawable)))
        else:
            notes.append(say["long"])
        if isinstance(at, Impossible):
            notes.append(say["no beside"])
        with meanwhile(self.language):
            doubts = [*step.warnings(), step.trust()]
        folded = (
            f"<details><summary>{escape(say['doubts'])}</summary>{paragraphs(*doubts)}</details>"
        )
        return "".join((*parts, paragraphs(*notes), folded))

    def _timeline(self, plan: Plan, drawable: Plan) -> Picture:
        """The step of a plan, or of the same layout with fewer microbatches."""
        key = "whole" if drawable == plan else "fewer"
        counts = [each.layout.num_microbatches for each in (drawable, plan)]
        title = {code: told.format(*counts) for code, told in _in_both(key).items()}
        predicted = self.prediction(drawable)
        alone = drawable.pp == 1  # what is idle there is no bubble
        return scene.timeline(predicted, title=title, messages=alone, language=self.language)

    def _numbers(self, plans: list[Plan]) -> str:
        """A table: a row for each control that differs and for each number, a column for each
        plan."""
        say = self._words
        heads = [say["now"], say["last"]][: len(plans)]
        rows = [(say["plan"], *(plan.title(self.language) for plan in plans))]
        for name in _ORDER:
            values = [getattr(plan, name) for plan in plans]
            if len(set(values)) > 1:
                rows.append((say[name], *(self.written(name, value) for value in values)))
        rows.append((say["step"], *(format_us(plan.time().step_us) for plan in plans)))
        rows.append((say["rate"], *(f"{plan.tokens_per_s():,.0f}" for plan in plans)))
        rows.append((say["mfu"], *(format_share(plan.mfu()) for plan in plans)))
        rows.append((say["memory"], *(format_bytes(plan.memory().peak_bytes) for plan in plans)))
        rows.append(self._days(plans))
        return _table(heads, rows)

    def _days(self, plans: list[Plan]) -> tuple[str, ...]:
        """Days for the tokens that are stated, or each model's own."""
        tokens = [self.tokens or training_tokens(plan.shape.name) for plan in plans]
        if not any(tokens):
            return (self._words["untold"], *("–" for _ in plans))
        counts = dict.fromkeys(tokens_told(each, self.language) if each else "–" for each in tokens)
        told = []
        for plan, each in zip(plans, tokens, strict=True):
            told.append(days(plan.days(each)) if each else "–")
        return (self._words["days"].format(" / ".join(counts)), *told)


def board(
    plan: Plan | None = None, language: str | None = None, *, tokens: float | None = None
) -> PlanBoard:
    """The widget of a plan; of the running story's first one where none is given. ``tokens`` of the
    whole training; None: those that the model's paper names."""
    check_real(0.0, 1e18, tokens=tokens or 0.0)
    return PlanBoard(_named(plan or Plan(**FIRST)), language, tokens)


def training_plan(
    language: str | None = None,
    *,
    model: str = "LLaMA 7B",
    gpu: str = "A100 80 GB",
    num_gpus: int = 8,
    tokens: float | None = None,
) -> PlanBoard:
    """A model on so many GPUs, divided by controls: memory, time of a step, days; in English or
    "zh"."""
    batch = max(FIRST["batch"], num_gpus)
    plan = Plan(**{**FIRST, "model": model, "gpu": gpu, "gpus": num_gpus, "batch": batch})
    return board(plan, language, tokens=tokens)


def _named(plan: Plan) -> Plan:
    """The same plan, its model and GPU by the names that the controls have."""
    changes = {"gpu": plan.cluster.gpu.name}
    if isinstance(plan.model, str) and plan.shape.name in names("models.csv"):
        changes["model"] = plan.shape.name
    return plan.but(**changes)


def _in_both(key: str) -> dict[str, str]:
    """A word of the board in each language, for a picture that can also show itself in English."""
    return in_every(key, catalogue(_WORDS))


def _room(plan: Plan, say: Mapping[str, str]) -> str:
    """Whether it fits, and by how much."""
    peak = plan.memory().peak_bytes
    has = plan.cluster.device_bytes
    key = "fits" if peak <= has else "not"
    return say[key].format(format_bytes(abs(has - peak)), format_bytes(has))


def _table(heads: list[str], rows: list[tuple[str, ...]]) -> str:
    """Rows under heads, as HTML."""
    head = "".join(_cell("th", words, "col") for words in ("", *heads))
    lines = [f"<tr>{head}</tr>"]
    for name, *figures in rows:
        cells = "".join(_cell("td", each) for each in figures)
        lines.append(f"<tr>{_cell('th', name, 'row')}{cells}</tr>")
    return f"<table style='color:inherit'>{''.join(lines)}</table>"


def _cell(tag: str, words: str, scope: str = "") -> str:
    about = f" scope='{scope}'" if scope else ""
    look = "text-align:left;padding:1px 1.2em 1px 0"
    if not words:
        return "<td></td>"
    return f"<{tag}{about} style='{look}'>{escape(words)}</{tag}>"


def shortened(plan: Plan) -> Plan | None:
    """The plan whose step can be drawn: itself, or its layout with fewer microbatches, two for each
    stage; None where there would be too much to see."""
    layout = plan.layout
    count = layout.num_microbatches
    if 2 * plan.vpp * count > MOST_ACTIONS:
        count = min(count, max(4, 2 * plan.pp))
    if 2 * plan.vpp * count * plan.pp > MOST_BOXES:
        return None
    if count == layout.num_microbatches:
        return plan
    return plan.but(batch=count * layout.dp * plan.mbs)
