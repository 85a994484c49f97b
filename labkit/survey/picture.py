"""A part of a survey as tables and pictures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from labkit.experiment import Experiment
from labkit.pictures import curves
from labkit.pictures.drawing import Picture
from labkit.survey.summary import Number, beside
from labkit.tables import Table, worded
from labkit.units import format_bytes, format_number
from labkit.words import WORDS, both, language, say, to_say

WHATS = {
    "time": to_say("time"),
    "bus_bandwidth": to_say("bus bandwidth"),
    "throughput": to_say("throughput"),
    "speed": to_say("speed"),
    "step": to_say("step"),
    "hidden": to_say("communication hidden"),
    "held": to_say("held by a rank"),
    "peak": to_say("peak"),
    "allocated": to_say("peak by the allocator"),
    "payload": to_say("payload"),
    "bubble": to_say("bubble"),
}
"""What a number is -> its words."""
GROUPS = {
    "matmul": to_say("Square matrices multiplied"),
    "copy": to_say("Bytes copied"),
    "memory": to_say("The rank that holds most: between two microbatches, and at the peak"),
    "traffic": to_say("One step: the payload that a rank hands to collectives, and the time"),
    "step": to_say("One step of data parallelism"),
    "bubble": to_say("One step of a pipeline"),
}
"""A table -> its words; a collective's table is called like the collective."""
PARTS = {
    "device": to_say("One device alone"),
    "collectives": to_say("Collectives"),
    "data_parallel": to_say("Data parallelism"),
    "sharding": to_say("Sharded states: FSDP beside DDP"),
    "pipeline": to_say("The pipeline's bubble"),
}
"""A part -> its words."""
RUNGS = {
    "cuda": to_say("a GPU each"),
    "shared": to_say("a shared GPU"),
    "pretend": to_say("pretend devices"),
    "cpu": to_say("the CPU"),
}
"""A rung -> its words."""
MOST_OTHERS = 2
"""Surveys from elsewhere beside one's own, at most: a page is only so wide."""


class Found(NamedTuple):
    """An experiment that was taken, and what came of it."""

    experiment: Experiment
    """what was run"""
    predicted: Any
    """by theory"""
    measured: Any
    """by its run"""


Others = Mapping[str, Sequence[Number]]
"""A machine's name -> the numbers recorded on it."""


def written(number: Number) -> str:
    """A number with its unit."""
    if number.unit == "gb_per_s":
        return f"{format_number(number.value)} GB/s"
    if number.unit == "tflop_per_s":
        return f"{format_number(number.value)} TFLOP/s"
    return format_number(number.value, number.unit)


def tables(numbers: Sequence[Number], others: Others) -> list[Table]:
    """The tables of a part: one per group, a row per case."""
    groups: dict[str, list[Number]] = {}
    for each in numbers:
        groups.setdefault(each.group, []).append(each)
    found = []
    for group, own in groups.items():
        title = say(GROUPS.get(group, group))
        found.append(_table(title, own, others))
    return found


def headlines(numbers: Iterable[Number], others: Others) -> Table:
    """The numbers at the top of the page: a row each."""
    own = [each for each in numbers if each.headline]
    rows: dict[tuple, list[Number]] = {}
    for each in own:
        rows.setdefault((each.part, each.group, each.what, each.case), []).append(each)
    shown = _known(others, own)
    cells = []
    for (part, group, what, case), same in rows.items():
        name = [WHATS[what], *case]
        cells.append(
            (
                _in_words([group, *name] if part == "collectives" else name),
                _cell([each for each in same if each.origin == "predicted"]),
                _cell([each for each in same if each.origin != "predicted"]),
                *(_recorded(same[0], others[machine]) for machine in shown),
                _stood(same[0]),
            )
        )
    is_recorded = any(each.origin == "recorded" for each in own)
    heads = ["predicted", "recorded" if is_recorded else "measured", *shown, to_say("ran on")]
    return Table(
        heads=("", *(worded(each) for each in heads)),
        cells=tuple(cells),
        numeric=(False, *(each != heads[-1] for each in heads)),
        title=say("In short"),
        language=language(),
    )


def _table(title: str, numbers: list[Number], others: Others) -> Table:
    """A row per case, a column for each thing and where it comes from."""
    columns: dict[tuple[str, str], None] = {}
    for what in dict.fromkeys(each.what for each in numbers):
        same = [each for each in numbers if each.what == what]
        columns |= dict.fromkeys((what, each.origin) for each in same)
        columns |= {(what, machine): None for machine in _known(others, same)}
    rows: dict[tuple, list[Number]] = {}
    for each in numbers:
        rows.setdefault((each.case, each.rung, each.ranks), []).append(each)
    cells = []
    for (case, _, _), row in rows.items():
        texts = [_at(row, what, origin, others) for what, origin in columns]
        cells.append((_in_words(case), *texts, _stood(row[0])))
    heads = [f"{say(WHATS[what])}, {worded(of)}" for what, of in columns]
    return Table(
        heads=("", *heads, say("ran on")),
        cells=tuple(cells),
        numeric=(False, *(True for _ in heads), False),
        title=title,
        language=language(),
    )


def _known(others: Others, numbers: Iterable[Number]) -> list[str]:
    """The machines that have some of these numbers, as many as there is room for."""
    found = []
    for machine, theirs in others.items():
        if any(beside(each, theirs) for each in numbers):
            found.append(machine)
    return found[:MOST_OTHERS]


def _at(row: list[Number], what: str, origin: str, others: Others) -> str:
    """The cell of a row in a column: one's own number, or another machine's."""
    same = [each for each in row if each.what == what]
    if origin in others:
        return _recorded(same[0], others[origin]) if same else ""
    return _cell([each for each in same if each.origin == origin])


def _cell(numbers: Sequence[Number]) -> str:
    return written(numbers[0]) if numbers else ""


def _recorded(number: Number, theirs: Sequence[Number]) -> str:
    """Another machine's number, and on how many ranks where those are not as many."""
    other = beside(number, theirs)
    if other is None:
        return ""
    if other.ranks == number.ranks:
        return written(other)
    return f"{written(other)} (N = {other.ranks})"


def _stood(number: Number) -> str:
    """What it ran on, in words."""
    if number.ranks == 1:
        return say(RUNGS[number.rung])
    return say("{rung}, {ranks} ranks", rung=say(RUNGS[number.rung]), ranks=number.ranks)


def _in_words(texts: Iterable[str]) -> str:
    return WORDS[language()]["comma"].join(map(say, texts))


# --- pictures ---


def pictures(
    part: str, numbers: Sequence[Number], found: Sequence[Found], badge: str
) -> list[Picture]:
    """The pictures of a part; none where nothing came of it."""
    drawn = []
    if numbers and part in _CURVES:
        drawn.append(_CURVES[part](numbers, badge))
    for each in found[:1] if part in ("data_parallel", "sharding", "pipeline") else ():
        drawn.append(each.experiment.drawn(each.predicted, each.measured))
    return drawn


def _bandwidths(numbers: Sequence[Number], badge: str) -> Picture:
    """Bus bandwidth by size, every collective."""
    same = [each for each in numbers if each.what == "bus_bandwidth" and each.at is not None]
    return curves.curves(
        _series(same, [each.group for each in same]),
        title=both("Bus bandwidth by size"),
        badge=badge,
        x_name=both("size of the collective"),
        y_name=both("bus bandwidth, GB/s"),
        x_format=format_bytes,
        log_x=True,
        log_y=True,
    )


def _bubbles(numbers: Sequence[Number], badge: str) -> Picture:
    """The bubble by microbatches, every schedule."""
    same = [each for each in numbers if each.what == "bubble"]
    return curves.curves(
        _series(same, [each.case[0] for each in same]),
        title=both("Bubble by microbatches"),
        badge=badge,
        x_name=both("microbatches"),
        y_name=both("bubble"),
        y_format=lambda share: format_number(share, "share"),
    )


def _series(numbers: Sequence[Number], names: Sequence[str]) -> list[curves.Series]:
    """A line of predictions and dots of what was measured for each name, from left to right."""
    points: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for each, name in zip(numbers, names, strict=True):
        points.setdefault((name, each.origin != "predicted"), []).append((each.at, each.value))
    found = []
    for (name, is_dots), pairs in points.items():
        found.append(curves.Series(name, *zip(*sorted(pairs), strict=True), points=is_dots))
    return found


def _rates(numbers: Sequence[Number], badge: str) -> Picture:
    """How fast matrices are multiplied."""
    same = [each for each in numbers if each.what == "throughput"]
    return curves.bars(
        [(", ".join(each.case), each.value) for each in same],
        title=both("Square matrices multiplied"),
        badge=badge.partition(" / ")[0],
        unit_format=lambda rate: f"{format_number(rate)} TFLOP/s",
    )


def _states(numbers: Sequence[Number], badge: str) -> Picture:
    """The bytes of a rank between two microbatches, engine by engine."""
    rows: dict[str, dict[str, float]] = {}
    for each in numbers:
        if each.what == "held":
            rows.setdefault(each.case[0], {})[worded(each.origin)] = each.value
    return curves.bars(
        list(rows.items()),
        title=both("Bytes of a rank between two microbatches"),
        badge=badge,
        unit_format=format_bytes,
    )


_CURVES = {
    "device": _rates,
    "collectives": _bandwidths,
    "sharding": _states,
    "pipeline": _bubbles,
}
