"""What the boards of experiments have in common: controls, a flipbook, a button, a verdict.

How a board does it:

- ``options`` is a dict from a control to the values it offers. A control is a field of the
  experiment; the one that ``view`` names, if any, only chooses what of it is looked at (a step, a
  moment). The first control is flipped through.
- The experiment predicts, starts and refuses. ``page`` and ``scene`` ask ``self.prediction(step)``:
  each experiment is predicted once, however often its picture and its words need the result.
- ``words`` are the board's words, and ``written`` says how a value stands in its control.
"""

import threading
import time
from collections.abc import Hashable, Sequence
from html import escape
from typing import Any, ClassVar

import ipywidgets as w

from labkit.experiment import Experiment, keep
from labkit.launching.job import Job
from labkit.launching.run import Run
from labkit.pictures.style import text_px
from labkit.widgets.flipbook import MAX_PAGES, Flipbook
from labkit.widgets.live import Panel
from labkit.widgets.picture import Board, answer_anytime, spoken
from labkit.words import spoken_in

_BESIDE_PX = {w.Dropdown: 50, w.SelectionSlider: 150}
"""what a control needs beside its name and the longest option"""
_WORDS = (
    ("run", "Run it on real ranks"),
    ("busy", "kernel busy: the new settings are not drawn yet"),
    ("off", "Off: {}."),
)


class Trial(Board):
    """A board that predicts an experiment at every position of its controls and, at a button, runs
    it for real.

    A subclass has ``options``, ``words`` and a ``page``; it may have a ``view``, ``dropdowns``, and
    a number of pages that depends on the experiment (``num_pages``).
    """

    options: ClassVar[dict[str, Sequence]]
    """control -> the values it offers; a value that the first experiment brings along is added"""
    view: ClassVar[str] = ""
    """the control that is no field of the experiment"""
    presets: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    """a control that stands for several fields -> what each of its words says of all of them"""
    words: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    """(key, English, Chinese); a control is named by its own key"""
    dropdowns: ClassVar[tuple[str, ...]] = ()
    """the controls that choose among kinds, not along a scale"""

    def __init__(
        self,
        experiment: Experiment,
        language: str | None = None,
        around: Sequence[w.Widget] = (),
    ) -> None:
        self.language = spoken_in(language)
        self._words = spoken((*_WORDS, *self.words), self.language)
        self.experiment = experiment
        self._choices = self._offered(experiment)
        self.controls = self._selectors(experiment)
        self.runs: dict[Experiment, Run] = {}
        self.error: BaseException | None = None
        self._predictions: dict[Hashable, Any] = {}
        self._found: dict[Experiment, Any] = {}
        self._job: Job | None = None
        self.button = w.Button(
            description=self._words["run"], icon="play", layout=w.Layout(width="auto")
        )
        self.button.on_click(lambda _: self._start())
        self.why_off = w.HTML()
        self.live = w.VBox()
        slider, *others = self.controls.values()
        slider.add_class("labkit-first")
        self.book = Flipbook(
            slider, others, self._page, self._words["busy"], self._allow, self._num_pages
        )
        box = w.Box(
            [*others[:2], slider, *around, *others[2:]], layout=w.Layout(flex_flow="row wrap")
        )
        super().__init__([box, self.book, w.HBox([self.button, self.why_off]), self.live])
        self._allow()
        answer_anytime(*self.controls.values(), *around, self.button)

    def _offered(self, experiment: Experiment) -> dict[str, Sequence]:
        """What each control offers: its options, and where the experiment stands."""
        offered = {}
        for name, values in self.options.items():
            given = self.standing(name, experiment)
            offered[name] = values if given in values else _with(values, given)
        return offered

    def _selectors(self, experiment: Experiment) -> dict[str, w.Widget]:
        made = {}
        for name, values in self._choices.items():
            labelled = [(self.written(name, value), value) for value in values]
            kind = w.Dropdown if name in self.dropdowns else w.SelectionSlider
            value = self.standing(name, experiment)
            made[name] = _selector(kind, self._words[name], labelled, value)
        return made

    # --- what a subclass says ---

    def page(self, step: Any, at: Any) -> str:
        """The picture of an experiment and its words, as HTML; ``at`` is where the view stands."""
        raise NotImplementedError

    def compared(self, step: Any, at: Any) -> str:
        """The page that ``compare()`` shows, once there is a run: the same, but for a board whose
        picture of the run stands by itself."""
        return self.page(step, at)

    def written(self, name: str, value: Any) -> str:
        """How a value stands in its control: in words where the board has some."""
        if isinstance(value, bool):
            return self._words[f"{name} {'on' if value else 'off'}"]
        if isinstance(value, float):
            return f"{value:g}"
        return self._words.get(value, str(value)) if isinstance(value, str) else str(value)

    def standing(self, name: str, step: Any) -> Any:
        """The value that a control has for an experiment; the view begins at its first. Where the
        fields of a preset have none of its words, they are the value themselves."""
        if name == self.view:
            return self.options[name][0]
        if name not in self.presets:
            return getattr(step, name)
        meanings = self.presets[name]
        given = {field: getattr(step, field) for field in _fields(meanings)}
        known = [word for word, fields in meanings.items() if fields == given]
        return known[0] if known else tuple(given.values())

    def changes(self, name: str, value: Any) -> dict[str, Any]:
        """The fields of the experiment that a control's value means."""
        if name not in self.presets:
            return {name: value}
        meanings = self.presets[name]
        if isinstance(value, str):
            return meanings[value]
        return dict(zip(_fields(meanings), value, strict=True))

    def num_pages(self, step: Any) -> int | None:
        """How many pages the view has; None: one for each option."""
        return None

    def predicts_by(self, step: Any) -> Hashable:
        """What of an experiment its prediction depends on."""
        return step

    # --- where it stands ---

    @property
    def step(self) -> Any:
        """The experiment that the controls say now."""
        return self._at(*self.book.at.values())[0]

    @property
    def at(self) -> Any:
        """Where the view stands; None where there is none."""
        return self._at(*self.book.at.values())[1]

    def _at(self, *indices: int) -> tuple[Any, Any]:
        """The experiment and the view where the controls stand at these indices."""
        at = None
        changes = {}
        for (name, values), index in zip(self._choices.items(), indices, strict=True):
            if name == self.view:
                at = values[index]
            else:
                changes |= self.changes(name, values[index])
        return self.experiment.but(**changes), at

    def prediction(self, step: Any) -> Any:
        """What an experiment predicts, asked once; the latest ``MAX_PAGES`` are kept."""
        about = self.predicts_by(step)
        if about in self._predictions:
            return self._predictions[about]
        found = step.predict()
        self._predictions[about] = found
        if len(self._predictions) > MAX_PAGES:
            oldest = next(iter(self._predictions))
            del self._predictions[oldest]
        return found

    @property
    def predicted(self) -> Any:
        """What is predicted where the controls stand."""
        return self.prediction(self.step)

    @property
    def measured(self) -> Any:
        """What was measured where the controls stand; None before a run."""
        return self.found(self.step)

    def found(self, step: Any) -> Any:
        """What a run measured of an experiment; None before it."""
        return self._found.get(step.as_run())

    def ran(self, step: Any) -> Run | None:
        """The run of an experiment, once there is one."""
        return self.runs.get(step.as_run())

    def take(self, step: Any, run: Run, found: Any) -> None:
        """Lays a run of an experiment, and what it measured, beside the prediction."""
        self.runs[step.as_run()] = run
        self._found[step.as_run()] = found

    def _page(self, *indices: int) -> str:
        return self.page(*self._at(*indices))

    def _num_pages(self, *indices: int) -> int | None:
        if not self.view:
            return None
        return self.num_pages(self._at(0, *indices)[0])

    def _allow(self) -> None:
        """The button is on where the experiment can run; otherwise the reason stands beside it."""
        reason = self.step.refusal(self.language)
        self.button.disabled = reason is not None or self._job is not None
        self.why_off.value = escape(self._words["off"].format(reason)) if reason else ""

    # --- the real run ---

    def run(self) -> Run:
        """Launches the experiment on real ranks and waits. Raises ValueError where it can't run, or
        the run's verdict."""
        step = self.step
        self._follow(step, self._launch(step))
        if self.error:
            raise self.error
        return self.runs[step.as_run()]

    def _start(self) -> None:
        """The button: the same in the background, so that everything stays alive meanwhile."""
        step = self.step
        if self._job is None and not self.button.disabled:
            try:
                job = self._launch(step)
            except Exception as error:  # what can't be, no memory, no processes
                self._tell(error)
                return
            threading.Thread(target=self._follow, args=(step, job), daemon=True).start()

    def _launch(self, step: Any) -> Job:
        if reason := step.refusal(self.language):
            raise ValueError(reason)
        if self._job is not None:
            raise ValueError("this board is running; wait until it ends, or stop it")
        self.error = None
        self._job = step.start()
        self._allow()
        return self._job

    def _follow(self, step: Any, job: Job) -> None:
        """Shows the job's progress until it ends, then what it measured or its verdict."""
        panel = Panel(job, self.language)
        self.live.children = [panel]
        try:
            while not job.done:
                time.sleep(0.1)
                panel.refresh()
            run = job.wait()
            found = step.measured(run)
        except BaseException as error:
            job.stop()
            self._tell(error)
        else:
            self.take(step, keep(step, run), found)
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


def _fields(meanings: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """The fields that each word of a preset sets."""
    return tuple(next(iter(meanings.values())))


def _with(values: Sequence, given: Any) -> tuple:
    """The values and one more, in order where they have one."""
    try:
        return tuple(sorted((*values, given)))
    except TypeError:
        return (*values, given)


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
