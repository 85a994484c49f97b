"""``lab.course()``: the map of the course, a row for each question and a box for each chapter,
filled as far as its exercises are passed."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from labkit.check import chapters, record
from labkit.pictures import mime
from labkit.pictures.sketch import Box, Shape, Sketch, Words
from labkit.pictures.style import clipped, text_px
from labkit.shown import Shown
from labkit.words import catalogue, sentence, speaking

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
LANES = {
    "begin": ("00", "01"),
    "copies": ("02", "03", "04", "11"),
    "share": ("05", "06", "07"),
    "cut": ("08", "09", "10"),
    "large": ("12", "15", "16", "17"),
    "weeks": ("13", "14"),
    "choose": ("18", "19", "20"),
    "own": ("21", "22"),
}
"""Question -> the chapters that answer it; a chapter that is in none comes last."""
_WORDS = catalogue(
    [
        ("heading", "The course"),
        ("badge", "{} chapters"),
        ("begin", "Why is one GPU not enough?"),
        ("copies", "Every GPU has the model. How do they agree?"),
        ("share", "It does not fit. What can be left out, or dealt out?"),
        ("cut", "Still too large. How is the model itself cut?"),
        ("large", "More GPUs. What is gained, and what is lost?"),
        ("weeks", "It runs for weeks. What breaks, and what then?"),
        ("choose", "Which of all this, for my model and my GPUs?"),
        ("own", "And with a model and a machine of my own?"),
        ("other", "And more"),
        ("minutes", "{} minutes"),
        ("passed", "{} min, {} of {} exercises"),
        ("chapter", "chapter"),
        ("question", "question"),
    ]
)
_LEFT_PX = 204.0
_BOX_PX = 166.0
_BOLD = 1.1
"""how much wider bold letters are"""
_GAP_PX = 8.0
_MOST_LINES = 3
"""of a chapter's title"""
_ROW_PX = 70.0
_TOP_PX = 56.0
_COLOURS = ("#4f9fe3", "#2e9e6b", "#f2954b", "#b58be0", "#d9b13b", "#e07a7a", "#58b7b1", "#9aa3ad")


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A chapter on the map."""

    number: str
    """"08\""""
    titles: Mapping[str, str]
    """language -> its title"""
    minutes: int
    """how long it takes to read and do"""
    exercises: int
    """how many it has"""
    passed: int
    """how many of them have been passed, in any kernel so far"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Course(Shown):
    """The chapters there are, by the question they answer. Shows itself in a notebook."""

    lanes: Mapping[str, tuple[Stop, ...]]
    """question -> its chapters"""

    def __repr__(self) -> str:
        stops = chain.from_iterable(self.lanes.values())
        numbers = [stop.number for stop in stops]
        return f"Course({', '.join(numbers)})"

    def _picture(self, language: str) -> Sketch:
        return speaking(language, lambda words: _drawn(self, words["code"]))


def course() -> Course:
    """The map of the course: what there is to read, how long it takes, and what has been done."""
    return Course(lanes=in_lanes(_stops(NOTEBOOKS)))


def in_lanes(stops: Iterable[Stop]) -> dict[str, tuple[Stop, ...]]:
    """Chapters by the question that they answer; those that answer none come last."""
    rest = {stop.number: stop for stop in stops}
    lanes = {}
    for name, numbers in LANES.items():
        if found := tuple(rest.pop(number) for number in numbers if number in rest):
            lanes[name] = found
    if rest:
        lanes["other"] = tuple(rest.values())
    return lanes


def _stops(folder: Path) -> Iterator[Stop]:
    """The chapters that lie in a folder, as their notebooks name themselves. For the book nothing
    is passed: what passed there are our solutions."""
    tried = {} if mime.book() else record.entries("exercises")
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        about = json.loads(path.read_text(encoding="utf-8"))["metadata"]["labkit"]
        names = _exercises(about["chapter"])
        done = [name for name in names if tried.get(name, {}).get("passed")]
        yield Stop(
            number=about["chapter"],
            titles={"en": about["title"], "zh": about["title_zh"]},
            minutes=about["minutes"],
            exercises=len(names),
            passed=len(done),
        )


def _exercises(number: str) -> list[str]:
    """Those of a chapter, of all its subjects."""
    found = []
    for place, names in chapters.exercises().items():
        if place[:2] == number:
            found += names
    return found


def _drawn(told: Course, code: str) -> Sketch:
    """A row per question: its words at the left, its chapters at the right."""
    say = _WORDS[code]
    shapes: list[Shape] = []
    table = [(say["question"], say["chapter"], "")]
    for row, (lane, stops) in enumerate(told.lanes.items()):
        y = _TOP_PX + _ROW_PX * row
        for number, line in enumerate(_wrapped(say[lane], _LEFT_PX - 12, 12.0)):
            shapes.append(Words(0, y + 22 + 16 * number, line))
        for place, stop in enumerate(stops):
            x = _LEFT_PX + place * (_BOX_PX + _GAP_PX)
            shapes += _box(stop, x, y, _COLOURS[row % len(_COLOURS)], code)
            table.append((say[lane], f"{stop.number} {stop.titles[code]}", _below(stop, say)))
    badge = say["badge"].format(sum(map(len, told.lanes.values())))
    return Sketch(
        shapes=tuple(shapes),
        height_px=_TOP_PX + _ROW_PX * len(told.lanes),
        heading=say["heading"],
        badge=badge,
        summary=sentence(say["heading"], table[1:], badge, code),
        table=tuple(table),
        language=code,
    )


def _box(stop: Stop, x: float, y: float, colour: str, code: str) -> list[Shape]:
    """One chapter: its number, its title in three lines at most, what it takes."""
    done = stop.passed / stop.exercises if stop.exercises else 0.0
    edge = Box(x, y, _BOX_PX, _ROW_PX - 14, "")
    strip = Box(x, y, 26, _ROW_PX - 14, colour, "", (stop.number,), done)
    shapes: list[Shape] = [edge, strip]
    room_px = _BOX_PX - 40
    lines = _wrapped(stop.titles[code], room_px, 12.0 * _BOLD)
    if len(lines) > _MOST_LINES:
        rest = " ".join(lines[_MOST_LINES - 1 :])
        lines[_MOST_LINES - 1 :] = [clipped(rest, room_px, 12.0 * _BOLD)]
    top_px, pitch_px = (17, 15) if len(lines) < _MOST_LINES else (13, 12.5)
    for number, line in enumerate(lines):
        shapes.append(Words(x + 33, y + top_px + pitch_px * number, line, bold=True))
    below = clipped(_WORDS[code]["minutes"].format(stop.minutes), room_px, 11)
    shapes.append(Words(x + 33, y + 51, below, size_px=11, opacity=0.8))
    return shapes


def _below(stop: Stop, say: Mapping[str, str]) -> str:
    """What a chapter takes, and how much of it is done."""
    if not stop.exercises:
        return say["minutes"].format(stop.minutes)
    return say["passed"].format(stop.minutes, stop.passed, stop.exercises)


def _wrapped(text: str, room_px: float, size_px: float) -> list[str]:
    """Lines that fit, broken between words, and between Chinese characters."""
    lines = [""]
    for piece in re.findall(r"[!-~]+ ?[，。？：；、）]*|.[，。？：；、）]*", text):
        if lines[-1] and text_px((lines[-1] + piece).rstrip(), size_px) > room_px:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]
