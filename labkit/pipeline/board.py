"""``pipeline_parallelism()``: predict a pipeline's timeline, run the same one on real ranks, see
both on one axis."""

from dataclasses import dataclass
from html import escape

from labkit.launching.job import Job
from labkit.pictures import svg
from labkit.pictures.scene import Scene, compare, timeline
from labkit.pipeline import run
from labkit.pipeline.schedules import SCHEDULES, TITLES
from labkit.pipeline.simulation import Cost, bubble_formula, simulate
from labkit.timeline import Timeline
from labkit.units import format_share, format_us
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors

__all__ = ["pipeline_parallelism"]

FORWARD_US = (
    50_000.0  # stated: long enough beside a message for the measured bubble to be within 2 points
)
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

    schedule: str
    """a key of SCHEDULES"""
    num_ranks: int
    """p, the length of the pipeline"""
    num_microbatches: int
    """m, the pieces of the batch"""
    backward_ratio: float
    """backward over forward time"""
    message_us: float
    """what a message is predicted to take, in microseconds"""

    def predict(self) -> tuple[Timeline, float | None]:
        """The simulated timeline and the literature's bubble. Raises ValueError where there is no
        such schedule."""
        schedule = SCHEDULES[self.schedule](self.num_ranks, self.num_microbatches)
        cost = self.cost(schedule.num_stages // schedule.num_ranks)
        return simulate(schedule, cost), None if self.message_us else bubble_formula(
            schedule, cost=cost
        )

    def cost(self, num_chunks: int) -> Cost:
        """What each action takes, where a rank holds ``num_chunks`` stages."""
        return run.cost(
            num_chunks,
            forward_us=FORWARD_US,
            backward_ratio=self.backward_ratio,
            message_us=self.message_us,
        )


class PipelineBoard(Trial):
    """The widget. ``controls`` by name, ``predicted`` and ``measured`` timelines, ``run()`` to
    launch and wait."""

    def __init__(self, language: str = "en", **start: object) -> None:
        words = spoken(_WORDS, language)
        shown = {"schedule": TITLES.get, "message": format_us}
        super().__init__(
            language, _WORDS, selectors(_OPTIONS, start, words, shown, dropdowns=("schedule",))
        )

    @property
    def predicted(self) -> Timeline:
        """The simulated timeline of the setting."""
        return self.setting.predict()[0]

    def scene(self) -> Scene | None:
        """The picture as it stands."""
        try:
            return self._scene(self.setting)
        except ValueError:
            return None

    def _scene(self, setting: Setting) -> Scene:
        predicted, _ = setting.predict()
        title = self._words["title"].format(
            TITLES[setting.schedule], setting.num_ranks, setting.num_microbatches
        )
        if (measured := self.timeline_of(setting)) is not None:
            return compare(predicted, measured, title=title, language=self.language)
        return timeline(predicted, title=title, language=self.language)

    def setting_at(self, *indices: int) -> Setting:
        """What the controls say when they stand at these indices."""
        chosen = {
            name: options[index]
            for (name, options), index in zip(_OPTIONS.items(), indices, strict=True)
        }
        return Setting(
            num_microbatches=chosen["microbatches"],
            schedule=chosen["schedule"],
            num_ranks=chosen["ranks"],
            backward_ratio=chosen["ratio"],
            message_us=chosen["message"],
        )

    def page(self, setting: Setting) -> str:
        """The picture and its words."""
        try:
            predicted, formula = setting.predict()
        except ValueError as error:
            return f"<p>{escape(self._words['none'].format(error))}</p>"
        notes = (
            [self._words["formula"].format(format_share(formula))] if formula is not None else []
        )
        notes += [self._words["own"]] if notes and setting.schedule == "zbv" else []
        if (measured := self.timeline_of(setting)) is not None:
            notes += _explain(run.residual(predicted, measured), self._words)
        return svg.html(self._scene(setting)) + paragraphs(*notes)

    def reason(self, setting: Setting) -> str | None:
        """What torch refuses to run."""
        return run.refusal(setting.schedule, setting.num_ranks, setting.num_microbatches)

    def begin(self, setting: Setting) -> Job:
        """The setting on real ranks, through torch.distributed.pipelining."""
        schedule = SCHEDULES[setting.schedule](setting.num_ranks, setting.num_microbatches)
        return run.start(schedule, forward_us=FORWARD_US, backward_ratio=setting.backward_ratio)


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


def _explain(causes_us: dict[str, float], words: dict[str, str]) -> list[str]:
    """The residual in words, the largest cause first."""
    total_us = causes_us["total"]
    head = words["longer" if total_us >= 0 else "shorter"].format(format_us(abs(total_us)))
    parts = sorted(
        ((us, name) for name, us in causes_us.items() if name != "total"), key=lambda p: -abs(p[0])
    )
    listed = "; ".join(
        f"{words[name]} {'+' if us >= 0 else '−'}{format_us(abs(us))}" for us, name in parts
    )
    return [f"{head} {listed}"]
