"""``pipeline_parallelism()``: predict a pipeline's timeline, run the same one on real ranks, see both on one axis."""

import threading
import time
from dataclasses import dataclass
from html import escape

import ipywidgets as w

from labkit import pipeline, svg
from labkit.job import Job
from labkit.run import Run
from labkit.scene import Scene, compare, timeline
from labkit.schedule import SCHEDULES, TITLES
from labkit.simulate import Cost, bubble_formula, simulate
from labkit.timeline import Timeline
from labkit.units import format_share, format_us
from labkit.widgets.flipbook import Flipbook
from labkit.widgets.live import Panel
from labkit.widgets.picture import Board, answer_anytime, spoken

FORWARD_US = 50_000.0  # stated: long enough beside a message for the measured bubble to be within 2 points
MICROBATCHES = (*range(1, 17), 20, 24, 28, 32)
_OPTIONS = {"microbatches": MICROBATCHES, "schedule": tuple(SCHEDULES), "ranks": range(2, 9),
            "ratio": (1.0, 1.5, 2.0, 2.5, 3.0), "message": (0.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4)}
_WORDS = (
    ("schedule", "schedule", "调度"),
    ("ranks", "ranks (p)", "rank 数 (p)"),
    ("microbatches", "microbatches (m)", "微批次数 (m)"),
    ("ratio", "backward/forward", "反向/前向"),
    ("message", "message", "消息时间"),
    ("run", "Run it on real ranks", "在真实 rank 上运行"),
    ("busy", "kernel busy: the new settings are not drawn yet", "内核忙碌：新设置尚未绘制"),
    ("title", "{}, {} ranks, {} microbatches", "{}，{} 个 rank，{} 个微批次"),
    ("formula", "Closed form of the literature: bubble {}.", "文献中的闭式公式：气泡 {}。"),
    ("own", "It counts each rank from its own first action to its last.", "它从每个 rank 自己的首个动作数到末个。"),
    ("off", "Off: {}.", "不可运行：{}。"),
    ("none", "No such schedule: {}.", "没有这样的调度：{}。"),
    ("longer", "All ranks together idle {} longer than predicted:", "所有 rank 合计比预测多空闲 {}："),
    ("shorter", "All ranks together idle {} less than predicted:", "所有 rank 合计比预测少空闲 {}："),
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
        """The simulated timeline and the literature's bubble. Raises ValueError where there is no such schedule."""
        schedule = SCHEDULES[self.schedule](self.num_ranks, self.num_microbatches)
        cost = self.cost(schedule.num_stages // schedule.num_ranks)
        return simulate(schedule, cost), None if self.message_us else bubble_formula(schedule, cost=cost)

    def cost(self, num_chunks: int) -> Cost:
        """What each action takes, where a rank holds ``num_chunks`` stages."""
        return pipeline.cost(num_chunks, forward_us=FORWARD_US, backward_ratio=self.backward_ratio,
                             message_us=self.message_us)


class PipelineBoard(Board):
    """The widget. ``controls`` by name, ``predicted`` and ``measured`` timelines, ``run()`` to launch and wait."""

    def __init__(self, language: str = "en", **start: object) -> None:
        self.language, self._words = language, spoken(_WORDS, language)
        self.controls = _controls(self._words, **start)
        self.runs: dict[Setting, Run] = {}
        self.error: BaseException | None = None
        self._timelines: dict[Setting, Timeline] = {}
        self._job: Job | None = None
        self.button = w.Button(description=self._words["run"], icon="play", layout=w.Layout(width="auto"))
        self.button.on_click(lambda _: self._start())
        self.reason, self.live = w.HTML(), w.VBox()
        slider, *others = self.controls.values()
        self.book = Flipbook(slider, others, self._page, self._words["busy"], self._allow)
        box = w.Box([*others[:2], slider, *others[2:]], layout=w.Layout(flex_flow="row wrap"))
        super().__init__([box, self.book, w.HBox([self.button, self.reason]), self.live])
        self._allow()
        answer_anytime(*self.controls.values(), self.button)

    # --- what it shows ----------------------------------------------------------------------------------------------

    @property
    def setting(self) -> Setting:
        """Where the controls stand."""
        return _setting(*self.book.at.values())

    @property
    def predicted(self) -> Timeline:
        """The simulated timeline of the setting."""
        return self.setting.predict()[0]

    @property
    def measured(self) -> Timeline | None:
        """The measured timeline of the setting, once it has been run."""
        return self._timelines.get(self.setting)

    def scene(self) -> Scene | None:
        """The picture as it stands."""
        try:
            return self._scene(self.setting)
        except ValueError:
            return None

    def _scene(self, setting: Setting) -> Scene:
        predicted, _ = setting.predict()
        title = self._words["title"].format(TITLES[setting.schedule], setting.num_ranks, setting.num_microbatches)
        if setting in self._timelines:
            return compare(predicted, self._timelines[setting], title=title, language=self.language)
        return timeline(predicted, title=title, language=self.language)

    def _page(self, *indices: int) -> str:
        """The picture and its words, for one position of all controls."""
        setting = _setting(*indices)
        try:
            predicted, formula = setting.predict()
        except ValueError as error:
            return f"<p>{escape(self._words['none'].format(error))}</p>"
        notes = [self._words["formula"].format(format_share(formula))] if formula is not None else []
        notes += [self._words["own"]] if notes and setting.schedule == "zbv" else []
        if setting in self._timelines:
            notes += _explain(pipeline.residual(predicted, self._timelines[setting]), self._words)
        return svg.html(self._scene(setting)) + "".join(f"<div>{escape(note)}</div>" for note in notes)

    def _allow(self) -> None:
        """The button is on where torch runs the setting; otherwise the reason stands beside it."""
        setting = self.setting
        reason = pipeline.refusal(setting.schedule, setting.num_ranks, setting.num_microbatches)
        self.button.disabled = reason is not None or self._job is not None
        self.reason.value = escape(self._words["off"].format(reason)) if reason else ""

    # --- the real run -----------------------------------------------------------------------------------------------

    def run(self) -> Run:
        """Launches the setting on real ranks and waits. Raises ValueError where torch refuses, or the run's verdict."""
        setting = self.setting
        self._follow(setting, self._launch(setting))
        if self.error:
            raise self.error
        return self.runs[setting]

    def _start(self) -> None:
        """The button: the same in the background, so that everything stays alive meanwhile."""
        setting = self.setting
        if self._job is None and not self.button.disabled:
            try:
                job = self._launch(setting)
            except ValueError as error:
                self._tell(error)
                return
            threading.Thread(target=self._follow, args=(setting, job), daemon=True).start()

    def _launch(self, setting: Setting) -> Job:
        reason = pipeline.refusal(setting.schedule, setting.num_ranks, setting.num_microbatches)
        if reason:
            raise ValueError(reason)
        schedule = SCHEDULES[setting.schedule](setting.num_ranks, setting.num_microbatches)
        self.error, self.button.disabled = None, True
        self._job = pipeline.start(schedule, forward_us=FORWARD_US, backward_ratio=setting.backward_ratio)
        return self._job

    def _follow(self, setting: Setting, job: Job) -> None:
        """Shows the job's progress until it ends, then its timeline or its verdict."""
        panel = Panel(job, self.language)
        self.live.children = [panel]
        try:
            while not job.done:
                time.sleep(0.1)
                panel.refresh()
            run = job.wait()
            measured = run.timeline()
        except BaseException as error:
            job.stop()
            self._tell(error)
        else:
            self.runs[setting], self._timelines[setting] = run, measured
            self.live.children = []
        finally:
            self._job = None
            for widget in (*panel.children, panel):
                widget.close()
            self.book.redraw()
            self._allow()

    def _tell(self, error: BaseException) -> None:
        self.error = error
        self.live.children = [w.HTML(f"<pre>{escape(f'{type(error).__name__}: {error}')}</pre>")]


def pipeline_parallelism(language: str = "en", *, schedule: str = "gpipe", num_ranks: int = 4,
                         num_microbatches: int = 8) -> PipelineBoard:
    """Pipeline parallelism, predicted beside measured, for every schedule of ``SCHEDULES``; in English or "zh"."""
    return PipelineBoard(language, schedule=schedule, num_ranks=num_ranks, num_microbatches=num_microbatches)


def _controls(words: dict[str, str], schedule: str, num_ranks: int, num_microbatches: int) -> dict[str, w.Widget]:
    """The controls by name, in the order of ``_OPTIONS``."""
    start = (num_microbatches, schedule, num_ranks, 2.0, 0.0)
    shown = {"schedule": TITLES.get, "message": format_us}
    style, layout = {"description_width": "auto"}, w.Layout(width="290px", margin="2px 18px 2px 0")
    return {name: (w.Dropdown if name == "schedule" else w.SelectionSlider)(
                options=[(shown.get(name, str)(option), option) for option in options], value=value,
                description=words[name], style=style, layout=layout)
            for (name, options), value in zip(_OPTIONS.items(), start, strict=True)}


def _setting(*indices: int) -> Setting:
    """What the controls say when they stand at these indices."""
    chosen = {name: options[index] for (name, options), index in zip(_OPTIONS.items(), indices, strict=True)}
    return Setting(num_microbatches=chosen["microbatches"], schedule=chosen["schedule"], num_ranks=chosen["ranks"],
                   backward_ratio=chosen["ratio"], message_us=chosen["message"])


def _explain(causes_us: dict[str, float], words: dict[str, str]) -> list[str]:
    """The residual in words, the largest cause first."""
    total_us = causes_us["total"]
    head = words["longer" if total_us >= 0 else "shorter"].format(format_us(abs(total_us)))
    parts = sorted(((us, name) for name, us in causes_us.items() if name != "total"), key=lambda p: -abs(p[0]))
    listed = "; ".join(f"{words[name]} {'+' if us >= 0 else '−'}{format_us(abs(us))}" for us, name in parts)
    return [f"{head} {listed}"]
