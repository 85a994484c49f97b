"""An experiment: what a reader may turn, what theory says of it, and the same on real ranks.

    step = pipeline.Step(schedule="1f1b", ranks=4, microbatches=8)
    step.predict()      # by theory
    step.run()          # on real ranks
    step.compare()      # both, and what their difference is made of
    step.board()        # the widget, its controls at these values

A subject's experiment is a frozen dataclass whose fields are what may be turned. It says three
things of itself, ``predict``, ``start`` and ``refusal``, and has the other verbs from here.
"""

import importlib
import importlib.util
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from labkit import words
from labkit.footprint import Footprint
from labkit.shards import Shards
from labkit.shown import Said, Shown
from labkit.timeline import Timeline, busy_us, exposed_comm_us, step_us
from labkit.units import format_us

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run
    from labkit.pictures.drawing import Picture

MOST_RUNS = 32
"""runs that are kept for ``compare``; each has a folder with its traces"""
_runs: "OrderedDict[Experiment, Run]" = OrderedDict()
_WORDS = words.catalogue(
    [
        ("more", "{}: {} more than predicted."),
        ("less", "{}: {} less than predicted."),
        ("same", "{}: as predicted."),
        ("causes", "{} It is made of: {}."),
        ("step", "Step"),
        ("steps", "All steps together"),
        ("compute", "computing"),
        ("exposed", "exposed communication"),
        ("idle", "nothing under way"),
    ]
)


class Reading(NamedTuple):
    """The one number of a result that ``sweep`` draws."""

    name: Said
    """what it is"""
    read: Callable[[Any], float]
    """reads it from what ``predict`` gives and from what a run measured"""
    written: Callable[[float], str]
    """writes it with its unit"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Difference:
    """Measured minus predicted, and what it is made of. The causes sum to it."""

    of: Said
    """what differs"""
    causes: dict[str, float]
    """name -> its share, signed"""
    names: dict[str, Said]
    """the same names in words"""
    written: Callable[[float], str] = format_us
    """writes an amount with its unit; microseconds unless said otherwise"""

    @property
    def total(self) -> float:
        """All causes together."""
        return sum(self.causes.values())

    def told(self, language: str | None = None) -> str:
        """The difference in a sentence or two, the largest cause first."""
        code = words.spoken_in(language)
        say = _WORDS[code]
        told = [name for name in self.causes if self.causes[name]]
        if not told:
            return say["same"].format(self.of[code])
        key = "more" if self.total >= 0 else "less"
        head = say[key].format(self.of[code], self.written(abs(self.total)))
        parts = []
        for name in sorted(told, key=lambda name: -abs(self.causes[name])):
            amount = self.causes[name]
            sign = "+" if amount >= 0 else "−"
            parts.append(f"{self.names[name][code]} {sign}{self.written(abs(amount))}")
        return say["causes"].format(head, words.WORDS[code]["comma"].join(parts))

    def __repr__(self) -> str:
        return self.told()


class Experiment:
    """What every experiment can do. A subclass is a frozen dataclass that says ``predict``,
    ``start`` and, where an engine refuses some of it, ``refusal``."""

    reading: ClassVar[Reading] = Reading(words.in_every("step", _WORDS), step_us, format_us)
    """what ``sweep`` draws of it"""

    part_names: ClassVar[dict] = {}
    """what parts of a footprint are called, where its pictures say otherwise"""
    counts_messages: ClassVar[bool] = False
    """whether the span in its pictures has the messages before the first compute and behind the
    last one: where a step waits for them"""

    board_home: ClassVar[str | None] = ""
    """the module of its board, where that is not its own subject's; None: it has no board"""

    # --- what a subclass says ---

    def predict(self) -> Any:
        """What theory says: a Timeline, Shards or a Footprint. Raises ValueError for what can't
        be."""
        raise NotImplementedError

    def start(self) -> "Job":
        """The same on real ranks, in the background."""
        raise NotImplementedError

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't be run, in words; None where it can."""
        return None

    def title(self, language: str | None = None) -> str:
        """What pictures of it are called."""
        raise NotImplementedError

    def as_run(self) -> "Experiment":
        """The experiment without what only its prediction knows: equal for two that one run
        serves."""
        return self

    def measured(self, run: "Run") -> Any:
        """What a run measured of what ``predict`` predicts."""
        return run.timeline()

    def difference(self, predicted: Any, measured: Any) -> Difference | None:
        """What the difference is made of; None where there is nothing to say. Unless a subclass
        knows better: where the time of a step went, on the average rank."""
        if isinstance(predicted, Timeline) and isinstance(measured, Timeline):
            return step_difference(predicted, measured)
        return None

    # --- what everyone gets ---

    def run(self) -> "Run":
        """Runs it on real ranks and waits. Raises ValueError for what is refused, and the verdict
        of a run that fails."""
        if reason := self.refusal():
            raise ValueError(reason)
        return keep(self, self.start().wait())

    def compare(self) -> "Comparison":
        """Prediction and measurement on one axis, their difference explained. The latest run of an
        equal experiment serves; without one it runs."""
        run = kept(self) or self.run()
        return Comparison(experiment=self, predicted=self.predict(), run=run)

    def board(self, language: str | None = None) -> Any:
        """Its widget, the controls at these values. Raises ValueError where it has none."""
        home = self.board_module()
        if home is None:
            raise ValueError(
                f"{type(self).__name__} has no board; its predict(), run() and compare() show "
                "themselves"
            )
        return importlib.import_module(home).board(self, language)

    @classmethod
    def board_module(cls) -> str | None:
        """The name of the module that holds its board; None where it has none."""
        if cls.board_home is None or cls.board_home:
            return cls.board_home
        subject = cls.__module__.rpartition(".")[0]
        for home in (f"{cls.__module__}_board", f"{subject}.board"):
            if importlib.util.find_spec(home) and hasattr(importlib.import_module(home), "board"):
                return home
        return None

    def but(self, **changes: Any) -> "Experiment":
        """The same with some fields changed. Raises ValueError for a field that it has not."""
        known = [each.name for each in fields(self) if each.init]
        odd = sorted(set(changes) - set(known))
        if odd:
            raise ValueError(
                f"{type(self).__name__} has the fields {', '.join(known)}; got {', '.join(odd)}"
            )
        return replace(self, **changes)

    def drawn(
        self,
        predicted: Any,
        measured: Any = None,
        language: str | None = None,
        *,
        span_us: float | None = None,
    ) -> "Picture":
        """The picture of a prediction, or of both; ``span_us`` lengthens an axis of time."""
        from labkit.pictures import bytes_held, scene

        said = words.spoken_in(language)
        told = {
            "title": {code: self.title(code) for code in words.LANGUAGES},
            "language": said,
        }
        if isinstance(predicted, Shards):
            return bytes_held.shards(predicted, measured, **told)
        if isinstance(predicted, Footprint):
            return bytes_held.footprint(predicted, measured, named=self.part_names, **told)
        in_time = {"span_us": span_us, "messages": self.counts_messages}
        predicted = self._in_picture(predicted)
        if measured is None:
            return scene.timeline(predicted, **in_time, **told)
        measured = self._in_picture(measured)
        found = self.difference(predicted, measured)
        notes = [] if found is None else [{code: found.told(code) for code in words.LANGUAGES}]
        return scene.compare(predicted, measured, notes=notes, **in_time, **told)

    def _in_picture(self, timeline: Timeline) -> Timeline:
        """A timeline with the names and kinds that its picture shows: its own."""
        return timeline


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison(Shown):
    """A prediction beside what a run measured of it. Shows itself in a notebook."""

    experiment: Experiment
    """what was predicted and run"""
    predicted: Any
    """what ``predict`` gave"""
    run: "Run"
    """the run"""
    measured: Any = field(init=False)
    """what the run measured of it"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "measured", self.experiment.measured(self.run))

    @property
    def readings(self) -> dict[str, float]:
        """The one number that ``sweep`` draws, predicted and measured: the microseconds of a step,
        unless the experiment says otherwise. A row of ``lab.bars``."""
        read = self.experiment.reading.read
        return {"predicted": float(read(self.predicted)), "measured": float(read(self.measured))}

    def difference(self) -> Difference | None:
        """Measured minus predicted, by cause; None where there is nothing to say."""
        return self.experiment.difference(self.predicted, self.measured)

    def _picture(self, language: str) -> "Picture":
        """Both on one axis, and the difference in words."""
        return self.experiment.drawn(self.predicted, self.measured, language)

    def bundle(self, *, title: Said = "", language: str | None = None) -> dict[str, str]:
        """By mime type. What is no timeline, shards or footprint is shown as its board shows it."""
        if isinstance(self.predicted, Timeline | Shards | Footprint):
            return super().bundle(title=title, language=language)
        board = self.experiment.board(language)
        board.take(board.step, self.run, self.measured)
        return {"text/html": board.compared(board.step, board.at), "text/plain": repr(self)}

    def __repr__(self) -> str:
        found = self.difference()
        told = f": {found.told('en')}" if found else ""
        return f"Comparison of {self.experiment.title('en')}{told}"


def step_difference(
    predicted: Timeline, measured: Timeline, *, several: bool = False
) -> Difference:
    """Where the time of a step went, or of ``several``: every rank computes, communicates without
    computing, or does neither, from the first span's start to the last one's end. Means over the
    ranks, so the three sum to the difference."""
    before = _spent_us(predicted)
    after = _spent_us(measured)
    return Difference(
        of=words.in_every("steps" if several else "step", _WORDS),
        causes={name: after[name] - before[name] for name in before},
        names={name: words.in_every(name, _WORDS) for name in before},
    )


def _spent_us(timeline: Timeline) -> dict[str, float]:
    """What the average rank does with the time of a step, in microseconds."""
    if not timeline.num_ranks:
        return dict.fromkeys(("compute", "exposed", "idle"), 0.0)
    compute_us = float(busy_us(timeline).mean())
    exposed_us = float(exposed_comm_us(timeline).mean())
    idle_us = step_us(timeline) - compute_us - exposed_us
    return {"compute": compute_us, "exposed": exposed_us, "idle": idle_us}


def keep(experiment: Experiment, run: "Run") -> "Run":
    """Remembers the latest run of an experiment, for ``compare``; returns it."""
    key = experiment.as_run()
    _runs.pop(key, None)
    _runs[key] = run
    while len(_runs) > MOST_RUNS:
        _runs.popitem(last=False)
    return run


def kept(experiment: Experiment) -> "Run | None":
    """The latest run of an equal experiment; None where there is none."""
    return _runs.get(experiment.as_run())
