"""The live panel: one line per rank while a launch runs, and a Stop button that stops."""

import threading
import time
from html import escape

import ipywidgets as w

from labkit.launching import job as jobs
from labkit.launching.job import Job
from labkit.launching.verdicts.verdict import LaunchError
from labkit.pictures import mime, waits
from labkit.units import format_us
from labkit.widgets.picture import answer_anytime, in_notebook, show, spoken

PATIENCE_S = 1.0
"""A launch that is over before needs no panel."""
_WORDS = (
    ("stop", "Stop"),
    ("step", "step"),
    ("loss", "loss"),
    ("line", "line"),
    ("running", "running"),
    ("returned", "returned"),
    ("failed", "failed"),
    ("died", "died"),
    ("ended", "{} ranks, {} with their start"),
    ("alone", "{} rank, {} with its start"),
    ("ahead", "{} runs ahead of you"),
    ("one_ahead", "1 run ahead of you"),
)


class Panel(w.VBox):
    """What each rank of a running Job is doing. ``refresh`` sends one message when a line has
    changed, else none."""

    def __init__(self, job: Job, language: str | None = None) -> None:
        self.job = job
        self._words = spoken(_WORDS, language)
        self.lines = w.HTML()
        self.stop = w.Button(description=self._words["stop"], button_style="danger")
        self.stop.on_click(lambda _: job.stop())
        super().__init__([self.lines, self.stop])
        self.refresh()
        answer_anytime(self.stop)

    def refresh(self) -> None:
        """Reads the job's progress and shows it."""
        told = "\n".join(_line(row, self._words) for row in self.job.progress)
        if ahead := self.job.ahead:
            told = self._words["ahead" if ahead > 1 else "one_ahead"].format(ahead)
        self.lines.value = f'<pre style="line-height:1.4">{escape(told)}</pre>'
        self.stop.disabled = self.job.done

    def last_words(self) -> str:
        """How many ranks there were, and how long it took."""
        told = self._words["ended" if self.job.num_ranks > 1 else "alone"]
        return told.format(self.job.num_ranks, format_us(1e6 * self.job.seconds))


def _line(row: dict, told: dict[str, str]) -> str:
    parts = [f"rank {row['rank']}", told.get(row["state"], row["state"])]
    if row.get("step") is not None:
        parts.append(f"{told['step']} {row['step']}")
    if row.get("loss") is not None:
        parts.append(f"{told['loss']} {row['loss']:.3f}")
    where = row.get("where") or {}
    if row["state"] == "running" and where.get("line"):
        parts.append(f"{told['line']} {where['line']}: {where.get('text', '').strip()}")
    return "   ".join(parts)


def watch(job: Job) -> None:
    """Called several times a second by the thread that waits for a job: shows a panel, and takes it
    away at the end.

    What stays in the notebook is one line of text: a panel without its kernel would be an error
    message. In the book, which has nobody waiting for a run, nothing is shown.
    """
    from IPython.display import display

    if mime.book() or threading.current_thread() is not threading.main_thread():
        return
    shown = _shown.get(id(job))
    if shown is None:
        if not job.done and time.monotonic() - job.began > PATIENCE_S:
            panel = Panel(job)
            _shown[id(job)] = (panel, display(panel, display_id=True))
        return
    panel, handle = shown
    panel.refresh()
    if job.done:
        del _shown[id(job)]
        for widget in (*panel.children, panel):
            widget.close()
        handle.update({"text/plain": panel.last_words()}, raw=True)


_shown: dict[int, tuple] = {}
"""Job's id -> its panel, and the handle of the output that it stands in."""


def report(error: LaunchError, language: str | None = None) -> None:
    """Draws how a run's ranks ended: a row per rank, whom it waits for, the odd one marked; by
    default in the notebook's language. Nothing where no rank had started."""
    if error.outcomes:
        show(waits.diagnosis(error.outcomes, error.finding, language=language))


def install() -> None:
    """Shows the panel for every launch of this kernel, and the report where one fails; outside a
    kernel, nothing."""
    if in_notebook() and watch not in jobs.listeners:
        jobs.listeners.append(watch)
        LaunchError.draw = staticmethod(report)
