"""``lab.ladder()``: what a rank may stand on, from a GPU of its own down to the CPU, with the rung
that this machine's launches take marked."""

from collections.abc import Mapping
from dataclasses import dataclass

from labkit.devices import place
from labkit.pictures.sketch import Box, Shape, Sketch, Words
from labkit.shown import Shown
from labkit.words import catalogue, sentence, speaking

RUNGS = ("cuda", "shared", "pretend", "cpu")
"""From the top down."""
ASKED_FOR = "shared"
"""the rung that is drawn only where it is taken: nobody stands on it who hasn't asked for it"""
COLUMNS = ("who", "memory", "rules", "speed", "messages")
_WORDS = catalogue(
    [
        ("heading", "What a rank stands on"),
        ("badge", "here: {}"),
        ("who", "a rank has"),
        ("memory", "tensors lie in"),
        ("rules", "a tensor left on the CPU"),
        ("speed", "speed"),
        ("messages", "messages"),
        ("cuda", "a GPU of its own"),
        ("cuda memory", "the GPU's memory"),
        ("cuda rules", "CUDA refuses it"),
        ("cuda speed", "a GPU's"),
        ("cuda messages", "NCCL"),
        ("shared", "a shared GPU, if asked for"),
        ("shared memory", "the GPU's memory, shared"),
        ("shared rules", "CUDA refuses it"),
        ("shared speed", "a part of a GPU's"),
        ("shared messages", "gloo, through the host"),
        ("pretend", "a pretend device"),
        ("pretend memory", "its own memory"),
        ("pretend rules", "refused, much as by CUDA"),
        ("pretend speed", "the CPU's"),
        ("pretend messages", "gloo, through the host"),
        ("cpu", "the CPU"),
        ("cpu memory", "the machine's memory"),
        ("cpu rules", "forgiven"),
        ("cpu speed", "the CPU's"),
        ("cpu messages", "gloo"),
    ]
)
_COLOURS = ("#2e9e6b", "#58b7b1", "#4f9fe3", "#9aa3ad")
_LEFTS_PX = (0.0, 236.0, 408.0, 598.0, 730.0)
_STEP_PX = 12.0
_ROW_PX = 36.0
_TOP_PX = 76.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Ladder(Shown):
    """The rungs, and the one taken here. Shows itself in a notebook."""

    here: str
    """the rung of a usual launch on this machine, one of RUNGS"""

    def __repr__(self) -> str:
        return f"Ladder(here={self.here!r})"

    def _picture(self, language: str) -> Sketch:
        return speaking(language, lambda words: _drawn(self, words["code"]))


def ladder(ranks: int = 2) -> Ladder:
    """What ranks may stand on, and what a launch of so many takes here. Raises ValueError for a
    number of ranks that can't be."""
    return Ladder(here=place.choose(ranks).name)


def _drawn(told: Ladder, code: str) -> Sketch:
    """A row per rung, each a step further to the right than the one above it."""
    say = _WORDS[code]
    shapes: list[Shape] = []
    for column, left in zip(COLUMNS, _LEFTS_PX, strict=True):
        shapes.append(Words(left + 8 + _shift(column, 0), _TOP_PX - 10, say[column], opacity=0.8))
    table = [tuple(say[column] for column in COLUMNS)]
    rungs = [name for name in RUNGS if name != ASKED_FOR or name == told.here]
    for row, name in enumerate(rungs):
        shapes += _rung(name, row, name == told.here, say)
        table.append(_texts(name, say))
    badge = say["badge"].format(say[told.here])
    return Sketch(
        shapes=tuple(shapes),
        height_px=_TOP_PX + _ROW_PX * len(rungs),
        heading=say["heading"],
        badge=badge,
        summary=sentence(say["heading"], table[1:], badge, code),
        table=tuple(table),
        language=code,
    )


def _shift(column: str, row: int) -> float:
    """How far to the right a column of a row begins: only the names are steps."""
    return _STEP_PX * row if column == "who" else 0.0


def _texts(name: str, say: Mapping[str, str]) -> tuple[str, ...]:
    """What is said of a rung, column by column."""
    return (say[name], *(say[f"{name} {column}"] for column in COLUMNS[1:]))


def _rung(name: str, row: int, here: bool, say: Mapping[str, str]) -> list[Shape]:
    """One row: its name in a coloured box, what it has beside that."""
    y = _TOP_PX + _ROW_PX * row
    first, *others = _texts(name, say)
    x = _shift("who", row)
    shapes: list[Shape] = [
        Box(x, y, 184, _ROW_PX - 8, _COLOURS[RUNGS.index(name)], "", (first,), float(here), here)
    ]
    for left, text in zip(_LEFTS_PX[1:], others, strict=True):
        shapes.append(Words(left + 8, y + 18, text))
    return shapes
