"""What the boards that predict and then run on real ranks have in common: controls, a flipbook, a
button, a verdict.

How a board does it:

- ``options`` is a dict from a control's name to its values, ``setting_type`` a frozen dataclass
  with a field per control in the same order. Then nobody counts positions: ``setting_at`` is done
  here.
- ``predict(setting)`` is theory, and nothing but ``prediction`` calls it. ``page``, ``scene`` and
  their helpers ask ``self.prediction(setting)``: each setting is simulated once, however often its
  picture and its words need the result.
- Where many pages have one prediction (the steps of a plan, the moments of a training step),
  ``predicts_by(setting)`` names what it depends on, as ``key(setting)`` does for runs.
"""

import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import fields
from html import escape
from typing import Any

import ipywidgets as w

from labkit.launching.job import Job
from labkit.launching.run import Run
from labkit.pictures.style import text_px
from labkit.timeline import Timeline
from labkit.widgets.flipbook import MAX_PAGES, Flipbook
from labkit.widgets.live import Panel
from labkit.widgets.picture import Board, answer_anytime, spoken

_BESIDE_PX = {w.Dropdown: 50, w.SelectionSlider: 150}
"""what a control needs beside its name and the longest option"""
_WORDS = (
    ("run", "Run it on real ranks", "在真实 rank 上运行"),
    ("busy", "kernel busy: the new settings are not drawn yet", "内核忙碌：新设置尚未绘制"),
    ("off", "Off: {}.", "不可运行：{}。"),
)


class Trial(Board):
    """A board that predicts each setting and, at a button, runs it for real. The first control is
    flipped through.

    A subclass says what a ``setting`` of the controls is, what theory ``predict``s of it, draws its
    ``page``, ``begin``s its run, and may have a ``reason`` why a setting can't run, or a number of
    pages that depends on the other controls (``num_pages``).
    """

    options: dict[str, Sequence]
    """Control's name -> the values it stands for, in the order of the fields of
    ``setting_type``."""
    setting_type: type
    """A frozen dataclass: one position of all controls."""

    def __init__(
        self,
        language: str,
        words: tuple,
        controls: dict[str, w.Widget],
        around: Sequence[w.Widget] = (),
    ) -> None:
        self.language = language
        self._words = spoken((*_WORDS, *words), language)
        self.controls = controls
        self.runs: dict[Hashable, Run] = {}
        self.error: BaseException | None = None
        self._predictions: dict[Hashable, Any] = {}
        self._timelines: dict[Hashable, Timeline] = {}
        self._job: Job | None = None
        self.button = w.Button(
            description=self._words["run"], icon="play", layout=w.Layout(width="auto")
        )
        self.button.on_click(lambda _: self._start())
        self.why_off = w.HTML()
        self.live = w.VBox()
        slider, *others = controls.values()
        self.book = Flipbook(
            slider, others, self._page, self._words["busy"], self._allow, self.num_pages
        )
        box = w.Box(
            [*others[:2], slider, *around, *others[2:]], layout=w.Layout(flex_flow="row wrap")
        )
        super().__init__([box, self.book, w.HBox([self.button, self.why_off]), self.live])
        self._allow()
        answer_anytime(*controls.values(), *around, self.button)

    # --- what a subclass says ---

    def setting_at(self, *indices: int) -> Hashable:
        """What the controls mean when they stand at these indices, in the order of ``controls``."""
        return chosen(self.setting_type, self.options, indices)

    def predict(self, setting: Any) -> Any:
        """What theory says of a setting. Raises ValueError where there is no such thing."""
        raise NotImplementedError

    def predicts_by(self, setting: Any) -> Hashable:
        """What of a setting its prediction depends on."""
        return setting

    def page(self, setting: Any) -> str:
        """The picture of a setting and its words, as HTML."""
        raise NotImplementedError

    def begin(self, setting: Any) -> Job:
        """Starts the setting on real ranks."""
        raise NotImplementedError

    def reason(self, setting: Any) -> str | None:
        """Why a setting can't be run; None where it can."""
        return None

    def key(self, setting: Any) -> Hashable:
        """What of a setting a run depends on."""
        return setting

    def num_pages(self, *indices: int) -> int | None:
        """How many pages there are where the other controls stand at these indices; None: one for
        each option."""
        return None

    # --- where it stands ---

    @property
    def setting(self) -> Any:
        """What the controls say now."""
        return self.setting_at(*self.book.at.values())

    def prediction(self, setting: Any) -> Any:
        """What ``predict`` says of a setting, which it is asked once; the latest ``MAX_PAGES`` are
        kept."""
        about = self.predicts_by(setting)
        if about in self._predictions:
            return self._predictions[about]
        found = self.predict(setting)
        self._predictions[about] = found
        if len(self._predictions) > MAX_PAGES:
            oldest = next(iter(self._predictions))
            del self._predictions[oldest]
        return found

    @property
    def measured(self) -> Timeline | None:
        """The measured timeline of the setting, once it has been run."""
        return self.timeline_of(self.setting)

    def timeline_of(self, setting: Any) -> Timeline | None:
        """The measured timeline of any setting, once it has been run."""
        return self._timelines.get(self.key(setting))

    def _page(self, *indices: int) -> str:
        return self.page(self.setting_at(*indices))

    def _allow(self) -> None:
        """The button is on where the setting can run; otherwise the reason stands beside it."""
        reason = self.reason(self.setting)
        self.button.disabled = reason is not None or self._job is not None
        self.why_off.value = escape(self._words["off"].format(reason)) if reason else ""

    # --- the real run ---

    def run(self) -> Run:
        """Launches the setting on real ranks and waits. Raises ValueError where it can't run, or
        the run's verdict."""
        setting = self.setting
        self._follow(setting, self._launch(setting))
        if self.error:
            raise self.error
        return self.runs[self.key(setting)]

    def _start(self) -> None:
        """The button: the same in the background, so that everything stays alive meanwhile."""
        setting = self.setting
        if self._job is None and not self.button.disabled:
            try:
                job = self._launch(setting)
            except Exception as error:  # a setting that can't be, no memory, no processes
                self._tell(error)
                return
            threading.Thread(target=self._follow, args=(setting, job), daemon=True).start()

    def _launch(self, setting: Any) -> Job:
        if reason := self.reason(setting):
            raise ValueError(reason)
        if self._job is not None:
            raise ValueError("this board is running; wait until it ends, or stop it")
        self.error = None
        self._job = self.begin(setting)
        self._allow()
        return self._job

    def _follow(self, setting: Any, job: Job) -> None:
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
            self.runs[self.key(setting)] = run
            self._timelines[self.key(setting)] = measured
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


def selectors(
    options: dict[str, Sequence],
    start: dict[str, Any],
    words: dict[str, str],
    shown: dict,
    dropdowns: Sequence[str] = (),
) -> dict[str, w.Widget]:
    """One control per entry of ``options``, slider or dropdown; ``shown`` says how its values are
    written.

    Raises ValueError for a ``start`` that is none of the options.
    """
    for name, values in options.items():
        if start[name] not in values:
            raise ValueError(f"{name} is one of {', '.join(map(str, values))}; got {start[name]!r}")
    made = {}
    for name, values in options.items():
        labels = [shown.get(name, str)(value) for value in values]
        labelled = list(zip(labels, values, strict=True))
        kind = w.Dropdown if name in dropdowns else w.SelectionSlider
        made[name] = _selector(kind, words[name], labelled, start[name])
    return made


def _selector(
    kind: type[w.Widget], name: str, options: list[tuple[str, Any]], value: object
) -> w.Widget:
    """A slider or dropdown, as wide as its name and its longest option need."""
    longest_px = max(text_px(label, 14) for label, _ in options)
    need_px = text_px(name, 14) + longest_px + _BESIDE_PX[kind]
    return kind(
        options=options,
        value=value,
        description=name,
        style={"description_width": "auto"},
        layout=w.Layout(
            width=f"{max(290, round(need_px))}px", max_width="100%", margin="2px 18px 2px 0"
        ),
    )


def chosen(kind: type, options: dict[str, Sequence], indices: Sequence[int]) -> Any:
    """A setting whose fields are, in their order, the options that controls at these indices stand
    for."""
    picked = [values[index] for values, index in zip(options.values(), indices, strict=True)]
    names = [field.name for field in fields(kind)]
    return kind(**dict(zip(names, picked, strict=True)))
