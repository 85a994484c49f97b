"""What is kept of a survey: numbers, each with where it comes from, and what they were taken on.

It is one JSON file, ``summary.json``, in the folder of the survey; the runs lie beside it.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from labkit.devices import rung
from labkit.survey.trials import Trial
from labkit.units import check_real, check_whole, check_word

FILE = "summary.json"
RECORDED = Path(__file__).parents[2] / "data" / "runs"
"""Where the surveys of other machines lie, each in a folder measure-<machine>."""
ORIGINS = ("predicted", "measured", "recorded")
UNITS = ("us", "bytes", "share", "gb_per_s", "tflop_per_s")


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number of a survey. Numbers of one ``what`` and ``case`` stand side by side."""

    part: str
    """the part of the survey: "collectives", ..."""
    group: str
    """the table that it stands in: "all_reduce", ..."""
    case: tuple[str, ...]
    """its row there, in words: ("1.05 MB",)"""
    what: str
    """what it is: "time", "bubble", ..."""
    unit: str
    """one of UNITS"""
    value: float
    """how much"""
    origin: str
    """one of ORIGINS: "measured" if a clock, a counter or an allocator was read for it"""
    ranks: int
    """on how many ranks"""
    rung: str
    """what they stood on: "cuda", "shared", "pretend" or "cpu\""""
    headline: bool = False
    """whether it stands at the top of the page"""
    at: float | None = None
    """where it stands on a curve: a size in bytes, a number of microbatches"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "case", tuple(self.case))
        check_word(self.origin, ORIGINS, "the origin of a number")
        check_word(self.unit, UNITS, "the unit of a number")
        check_word(self.rung, rung.NAMES, "a rung")
        check_real(-1e300, 1e300, value=self.value)
        check_whole(1, 10**6, ranks=self.ranks)
        texts = (self.part, self.group, self.what, *self.case)
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"part, group, what and case of a number are words; got {texts}")


@dataclass(frozen=True, kw_only=True)
class Taken(Trial):
    """A trial that was run; the run is saved in the folder of its name, below "runs"."""

    rung: str
    """what the ranks stood on"""
    notes: tuple[str, ...] = ()
    """what must be said with it: the backend, "paced", ..."""
    seconds: float = 0.0
    """how long the run took"""
    error: str = ""
    """why there is no run; "" where there is one"""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A survey: what was taken, on what, and the numbers."""

    started: str
    """when, local time"""
    minutes: float
    """how long it was allowed to take"""
    machine: dict
    """the machine, as ``resources.summary`` tells it, and its GPUs by name"""
    versions: dict
    """of the packages that matter, by their names"""
    seconds: float = 0.0
    """how long it took"""
    taken: tuple[Taken, ...] = ()
    """every trial, in order"""
    left_out: tuple[str, ...] = ()
    """the names of those for which no time was left"""
    numbers: tuple[Number, ...] = ()
    """what came of it"""
    stopped: bool = False
    """whether somebody stopped it"""
    folder: Path | None = field(default=None, compare=False)
    """where it lies"""

    @property
    def errors(self) -> dict[str, str]:
        """Name -> why, of the trials that failed."""
        return {each.name: each.error for each in self.taken if each.error}

    def recorded(self) -> "Summary":
        """The same as it is read later: what was measured then is recorded now."""
        numbers = []
        for each in self.numbers:
            is_measured = each.origin == "measured"
            numbers.append(replace(each, origin="recorded") if is_measured else each)
        return replace(self, numbers=tuple(numbers))

    def save(self) -> Path:
        """Writes the file into its folder, in one move; returns its path."""
        content = {name: each for name, each in asdict(self).items() if name != "folder"}
        path = self.folder / FILE
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
        draft.replace(path)
        return path


def load(folder: str | Path) -> Summary:
    """What ``save`` wrote, its measured numbers recorded ones now. Raises ValueError for any other
    folder."""
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise ValueError(
            f"a survey is a folder with a {FILE}; {str(folder)!r} has none. Make one: "
            "python -m labkit measure"
        )
    try:
        content = json.loads((folder / FILE).read_bytes())
        numbers = [Number(**each) for each in content["numbers"]]
        taken = [Taken(**{**each, "notes": tuple(each["notes"])}) for each in content["taken"]]
        lists = {
            "numbers": tuple(numbers),
            "taken": tuple(taken),
            "left_out": tuple(content["left_out"]),
        }
        found = Summary(**{**content, **lists, "folder": folder})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{str(folder / FILE)!r} does not hold what a survey wrote ({error}). Measure again: "
            "python -m labkit measure"
        ) from error
    return found.recorded()


def elsewhere(own: Path | None = None, folder: Path = RECORDED) -> dict[str, Summary]:
    """What this repository has recorded: the machine's name -> its survey, but not the one in
    ``own``."""
    found = {}
    for path in sorted(folder.glob(f"measure-*/{FILE}")):
        if own is None or path.parent.resolve() != own.resolve():
            found[path.parent.name.removeprefix("measure-")] = load(path.parent)
    return found


def beside(number: Number, others: Iterable[Number]) -> Number | None:
    """The same number of another survey; of several the one on as many ranks, else the first."""
    key = (number.part, number.group, number.case, number.what)
    same = []
    for each in others:
        if each.origin == "recorded" and (each.part, each.group, each.case, each.what) == key:
            same.append(each)
    same.sort(key=lambda each: each.ranks != number.ranks)
    return same[0] if same else None
