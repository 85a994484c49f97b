"""``pipeline_parallelism()``: predict a pipeline's timeline, run the same one on real ranks, see
both on one axis."""

from dataclasses import dataclass
from html import escape

from labkit.launching.job import Job
from labkit.pictures.painters import svg
from labkit.pictures.scene import Scene, compare, timeline
from labkit.pipeline import run, runtime
from labkit.pipeline.difference import residual
from labkit.pipeline.schedule import Schedule
from labkit.pipeline.schedules import SCHEDULES, TITLES
from labkit.pipeline.simulation import bubble_formula, simulate
from labkit.timeline import Timeline
from labkit.units import format_share, format_us
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors

__all__ = ["pipeline_parallelism"]

FORWARD_US = 50_000.0
"""stated: long enough beside a message for the measured bubble to be within 2 points"""
MICROBATCHES = (*range(1, 17), 20, 24, 28, 32)
_OPTIONS = {
    "microbatches": MICROBATCHES,
    "schedule": tuple(SCHEDULES),
    "ranks": range(2, 9),
    "ratio": (1.0, 1.5, 2.0, 2.5, 3.0),
    "message": (0.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4),
}
_WORDS = (
    ("schedule", "schedule", "调度"),
    ("ranks", "ranks (p)", "rank 数 (p)"),
    ("microbatches", "microbatches (m)", "微批次数 (m)"),
    ("ratio", "backward/forward", "反向/前向"),
    ("message", "message", "消息时间"),
    ("title", "{}, {} ranks, {} microbatches", "{}，{} 个 rank，{} 个微批次"),
    ("formula", "Closed form of the literature: bubble {}.", "文献中的闭式公式：气泡 {}。"),
    (
        "own",
        "It counts each rank from its own first action to its last.",
        "它从每个 rank 自己的首个动作数到末个。",
    ),
    ("none", "No such schedule: {}.", "没有这样的调度：{}。"),
    (
        "longer",
        "All ranks together idle {} longer than predicted:",
        "所有 rank 合计比预测多空闲 {}：",
    ),
    (
        "shorter",
        "All ranks together idle {} less than predicted:",
        "所有 rank 合计比预测少空闲 {}：",
    ),
    ("durations", "actions took other than stated", "动作用时与设定不同"),
    ("messages", "messages took longer than predicted", "消息比预测慢"),
    ("start-up", "ranks began late", "rank 开始得晚"),
    ("runtime", "loss, sends and Python between actions", "动作之间的 loss、发送与 Python"),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of all controls."""

    num_microbatches: int
    """m, the pieces of the batch"""
    schedule: str
    """a key of SCHEDULES"""
    num_ranks: int
    """p, the length of the pipeline"""
    backward_ratio: float
    """backward over forward time"""
    message_us: float
    """what a message is predicted to take, in microseconds"""

    def order(self) -> Schedule:
        """What the ranks run. Raises ValueError where there is no such schedule."""
        return SCHEDULES[self.schedule](self.num_ranks, self.num_microbatches)

    def predict(self) -> tuple[Timeline, float | None]:
        """The simulated timeline and the literature's bubble, which knows free messages only.
        Raises ValueError where there is no such schedule."""
        order = self.order()
        cost = runtime.cost(
            order.num_stages // order.num_ranks,
            forward_us=FORWARD_US,
            backward_ratio=self.backward_ratio,
            message_us=self.message_us,
        )
        formula = None if self.message_us else bubble_formula(order, cost=cost)
        return simulate(order, cost), formula


class PipelineBoard(Trial):
    """The widget. ``controls`` by name, ``predicted`` and ``measured`` timelines, ``run()`` to
    launch and wait."""

    options = _OPTIONS
    setting_type = Setting

    def __init__(self, language: str = "en", **start: object) -> None:
        words = spoken(_WORDS, language)
        shown = {"schedule": TITLES.get, "message": format_us}
        dropdowns = ("schedule",)
        super().__init__(language, _WORDS, selectors(_OPTIONS, start, words, shown, dropdowns))

    def predict(self, setting: Setting) -> tuple[Timeline, float | None]:
        """The simulated timeline and the literature's bubble."""
        return setting.predict()

    @property
    def predicted(self) -> Timeline:
        """The simulated timeline of the setting."""
        return self.prediction(self.setting)[0]

    def scene(self) -> Scene | None:
        """The picture as it stands; None where there is no such schedule."""
        try:
            return self._scene(self.setting)
        except ValueError:
            return None

    def _scene(self, setting: Setting) -> Scene:
        predicted, _ = self.prediction(setting)
        title = self._words["title"].format(
            TITLES[setting.schedule], setting.num_ranks, setting.num_microbatches
        )
        measured = self.timeline_of(setting)
        if measured is None:
            return timeline(predicted, title=title, language=self.language)
        return compare(predicted, measured, title=title, language=self.language)

    def page(self, setting: Setting) -> str:
        """The picture and its words."""
        try:
            predicted, formula = self.prediction(setting)
        except ValueError as error:
            return f"<p>{escape(self._words['none'].format(error))}</p>"
        notes = []
        if formula is not None:
            notes.append(self._words["formula"].format(format_share(formula)))
        if formula is not None and setting.schedule == "zbv":
            notes.append(self._words["own"])
        measured = self.timeline_of(setting)
        if measured is not None:
            notes.append(_explained(residual(predicted, measured), self._words))
        return svg.html(self._scene(setting)) + paragraphs(*notes)

    def reason(self, setting: Setting) -> str | None:
        """What torch refuses to run."""
        return runtime.refusal(setting.schedule, setting.num_ranks, setting.num_microbatches)

    def begin(self, setting: Setting) -> Job:
        """The setting on real ranks, through torch.distributed.pipelining."""
        return run.start(
            setting.order(), forward_us=FORWARD_US, backward_ratio=setting.backward_ratio
        )


def pipeline_parallelism(
    language: str = "en", *, schedule: str = "gpipe", num_ranks: int = 4, num_microbatches: int = 8
) -> PipelineBoard:
    """Pipeline parallelism, predicted beside measured, for every schedule of ``SCHEDULES``; in
    English or "zh"."""
    return PipelineBoard(
        language,
        schedule=schedule,
        ranks=num_ranks,
        microbatches=num_microbatches,
        ratio=2.0,
        message=0.0,
    )


def _explained(causes_us: dict[str, float], words: dict[str, str]) -> str:
    """The residual in words, the largest cause first."""
    total_us = causes_us["total"]
    head = words["longer" if total_us >= 0 else "shorter"].format(format_us(abs(total_us)))
    names = [name for name in causes_us if name != "total"]
    parts = []
    for name in sorted(names, key=lambda name: -abs(causes_us[name])):
        sign = "+" if causes_us[name] >= 0 else "−"
        parts.append(f"{words[name]} {sign}{format_us(abs(causes_us[name]))}")
    return f"{head} {'; '.join(parts)}"
