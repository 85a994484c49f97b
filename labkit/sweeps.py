"""One experiment at many values of one field: a predicted line and measured dots.

step = pipeline.Step(schedule="1f1b", ranks=4, microbatches=8)
lab.sweep(step, microbatches=[2, 4, 8, 16], run=[4, 8])
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit import words
from labkit.experiment import Experiment, kept
from labkit.shown import Said, Shown

if TYPE_CHECKING:
    from labkit.pictures.drawing import Picture

_WORDS = words.catalogue(
    [
        ("title", "{} by {}"),
        ("each", "{} per {}"),
        ("apart", "largest difference"),
    ]
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sweep(Shown):
    """What was predicted at each value, and measured at some. Shows itself in a notebook."""

    experiment: Experiment
    """the one that was varied"""
    name: str
    """the field that was varied"""
    values: tuple
    """its values"""
    predicted: tuple[float | None, ...]
    """the experiment's reading at each value; None where nothing is predicted"""
    measured: dict[Any, float]
    """value -> the same reading of a real run"""
    badge: str
    """where the numbers come from"""
    each: Said = ""
    """what the values count, where readings are told for one of these"""
    title: Said = ""
    """over the picture, if not the reading and the field"""
    x: Said = ""
    """under its axis, if not the field's name"""

    @property
    def line(self) -> dict[Any, float | None]:
        """Value -> what was predicted there, in the form of ``measured``."""
        return dict(zip(self.values, self.predicted, strict=True))

    @property
    def readings(self) -> dict[str, dict[str, float]]:
        """Value -> what was predicted there and, where it was run, measured: rows of
        ``lab.bars``."""
        found: dict[str, dict[str, float]] = {}
        for row in self.rows():
            both = {origin: row[origin] for origin in ("predicted", "measured")}
            known = {origin: number for origin, number in both.items() if number is not None}
            found[str(row[self.name])] = known
        return found

    def rows(self) -> list[dict[str, Any]]:
        """A row per value: the field, ``predicted`` and ``measured``, None where there is none."""
        return [
            {self.name: value, "predicted": predicted, "measured": self.measured.get(value)}
            for value, predicted in zip(self.values, self.predicted, strict=True)
        ]

    def _picture(self, language: str) -> "Picture":
        """A line of predictions and a dot for each run; values that are no numbers stand at 1, 2,
        and so on."""
        from labkit.pictures import curves
        from labkit.pictures.sketch import said

        reading = self.experiment.reading
        name = reading.name
        if self.each:
            name = {
                code: _WORDS[code]["each"].format(name[code], said(self.each, code))
                for code in name
            }
        lines = []
        known = [
            (x, y) for x, y in zip(self._places(), self.predicted, strict=True) if y is not None
        ]
        if known:
            lines.append(curves.Series(name, *zip(*known, strict=True)))
        if self.measured:
            places = dict(zip(self.values, self._places(), strict=True))
            xs = [places[value] for value in self.measured]
            lines.append(curves.Series(name, xs, [*self.measured.values()], points=True))
        return curves.curves(
            lines,
            title=self.title
            or {code: _WORDS[code]["title"].format(name[code], self.name) for code in name},
            badge=self.badge,
            x_name=self.x or self.name,
            y_name=name,
            x_format=self._written,
            y_format=reading.written,
            log_x=self._is_log(),
            language=language,
        )

    def _places(self) -> list[float]:
        """Where each value stands across the picture."""
        if self._are_numbers():
            return [float(value) for value in self.values]
        return [float(number) for number in range(1, len(self.values) + 1)]

    def _are_numbers(self) -> bool:
        return all(isinstance(value, int | float) for value in self.values)

    def _written(self, place: float) -> str:
        if self._are_numbers():
            return f"{place:g}"
        index = round(place) - 1
        is_one = abs(place - index - 1) < 1e-9 and index in range(len(self.values))
        return str(self.values[index]) if is_one else ""

    def _is_log(self) -> bool:
        """Whether the values grow by factors: 2, 4, 8, 16."""
        places = sorted(self._places())
        return places[0] > 0 and len(places) > 2 and places[-1] >= 8 * places[0]

    def __repr__(self) -> str:
        written = self.experiment.reading.written
        lines = []
        for row in self.rows():
            told = [f"{self.name} = {row[self.name]}"]
            for origin in ("predicted", "measured"):
                if row[origin] is not None:
                    told.append(f"{origin} {written(row[origin])}")
            lines.append(", ".join(told))
        return "\n".join(lines)


def sweep(
    experiment: Experiment,
    *,
    run: Iterable = (),
    each: Said = "",
    title: Said = "",
    x: Said = "",
    **values: Iterable,
) -> Sweep:
    """The experiment at each of the values of one field; real ranks take it at those in ``run``.
    ``each`` says what the values count ("microbatch"): every reading is then divided by its value.
    ``title`` stands over the picture, ``x`` under its axis.

    Raises ValueError for another number of fields, no values, values in ``run`` that are none of
    them, and, before anything is started, for one that is refused.
    """
    if len(values) != 1:
        raise ValueError(
            "a sweep varies one field, e.g. sweep(step, microbatches=[2, 4, 8]); got "
            f"{', '.join(values) or 'none'}"
        )
    name, given = next(iter(values.items()))
    wanted = tuple(given)
    if not wanted:
        raise ValueError(f"a sweep has one value or more; {name} has none")
    steps = {value: experiment.but(**{name: value}) for value in wanted}
    runs = tuple(run)
    _check_runs(name, steps, runs)
    parts = {value: value if each else 1 for value in steps}
    predicted = tuple(_predicted(step, parts[value]) for value, step in steps.items())
    simulated = "simulated" if any(number is not None for number in predicted) else ""
    measured, badges = _measured(steps, runs, parts)
    return Sweep(
        experiment=experiment,
        name=name,
        values=tuple(steps),
        predicted=predicted,
        measured=measured,
        badge=" / ".join(filter(None, [simulated, badges])),
        each=each,
        title=title,
        x=x,
    )


def _check_runs(name: str, steps: dict[Any, Experiment], runs: Sequence) -> None:
    """Raises ValueError for a run that can't be."""
    for value in runs:
        if value not in steps:
            raise ValueError(
                f"run names values of the sweep, {', '.join(map(str, steps))}; got {value!r}"
            )
        if reason := steps[value].refusal():
            raise ValueError(f"{name} = {value}: {reason}")


def _measured(
    steps: dict[Any, Experiment], runs: Sequence, parts: dict[Any, int]
) -> tuple[dict[Any, float], str]:
    """The readings of the runs, over their parts, and where they come from, each said once."""
    measured = {}
    badges: list[str] = []
    for value in runs:
        step = steps[value]
        found = step.measured(kept(step) or step.run())
        measured[value] = float(step.reading.read(found)) / parts[value]
        badges += found.badge.split(", ")
    return measured, ", ".join(dict.fromkeys(badges))


def _predicted(step: Experiment, parts: float) -> float | None:
    """The reading of a prediction, over so many parts; None where there is no such thing."""
    try:
        return float(step.reading.read(step.predict())) / parts
    except ValueError:
        return None
