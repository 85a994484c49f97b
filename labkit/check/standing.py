"""``lab.progress()``: where the reader stands, chapter by chapter, in all kernels so far."""

from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from labkit import tables, words
from labkit.check import chapters, record
from labkit.check.guesses import CLOSE, FAR, NEAR, distance
from labkit.check.shared import opting
from labkit.check.verdict import STATES, titled
from labkit.pictures.sketch import Said, said
from labkit.units import UNITS, format_number
from labkit.words import both, say

_NONE = "not attempted"


@dataclass(frozen=True, kw_only=True, repr=False)
class Standing:
    """A table of the chapters, and the details of those that have been begun."""

    chapters: tables.Table
    """a row per chapter"""
    exercises: tables.Table
    """a row per exercise that was tried"""
    guesses: tables.Table
    """a row per guess"""
    note: str
    """what the signs mean, and where all this is kept"""

    def __repr__(self) -> str:
        shown = [self.chapters, *(each for each in self._details() if each.cells)]
        return "\n\n".join([*map(str, shown), self.note])

    def _details(self) -> tuple[tables.Table, tables.Table]:
        return self.exercises, self.guesses

    def _repr_html_(self) -> str:
        parts = [self.chapters._repr_html_(), f"<div>{escape(self.note)}</div>"]
        for table in self._details():
            if table.cells:
                inner = table.bundle()["text/html"]
                title = escape(table.title)
                parts.append(f"<details><summary>{title}</summary>{inner}</details>")
        return "".join(parts)

    def bundle(self, *, title: Said = "") -> dict[str, str]:
        """By mime type, under another title if one is given."""
        heading = said(title or self.chapters.title, self.chapters.language)
        named = replace(self, chapters=replace(self.chapters, title=heading))
        return {"text/html": named._repr_html_(), "text/plain": repr(named)}


def progress(*, reset: bool = False, share: str | bool | None = None) -> Standing:
    """Which exercises are passed and how good the guesses were, in every chapter.

    With ``reset`` everything starts anew; what was reached so far is kept as a file beside the
    record, and its name is said.

    Nobody else sees any of it, unless you say so: in a classroom that has a board
    ``share="Ada"`` shows the instructor, under a name of your choosing, how far you are (the note
    below the tables says what), from now on in every kernel. ``share=False`` takes it back. Raises
    ValueError where there is no board, or for what is no name.
    """
    if share is False:
        opting.opt_out()
    elif share is not None:
        opting.opt_in(share)
    if reset:
        kept = record.clear()
        if kept is not None:
            print(say("What was reached so far is kept in {kept}", kept=kept))
    tried = record.entries("exercises")
    guessed = record.entries("guesses")
    return Standing(
        chapters=_chapters(tried, guessed),
        exercises=_exercises(tried),
        guesses=_guesses(guessed),
        note=_note(),
    )


def _state(entry: dict) -> str:
    """An exercise's best: once passed, it stays so."""
    state = entry.get("state")
    if entry.get("passed"):
        return "passed"
    return state if state in STATES else _NONE


def _chapters(tried: dict[str, dict], guessed: dict[str, dict]) -> tables.Table:
    rows = []
    for place, names in chapters.exercises().items():
        states = [_state(tried.get(name, {})) for name in names]
        mine = [each for each in guessed.values() if each.get("chapter") == place[:2]]
        grades = [each.get("grade") for each in mine]
        rows.append(
            {
                "chapter": place,
                "exercises": " ".join(STATES[state].sign for state in states),
                "passed": f"{states.count('passed')} / {len(states)}",
                "guesses": _told(grades),
            }
        )
    heads = {
        "exercises": both("exercises"),
        "passed": both("passed"),
        "guesses": both("guesses"),
    }
    return tables.table(rows, heads=heads, title=both("Your progress"))


def _told(grades: list) -> str:
    """How good guesses were: "3: 1 close, 1 not far"."""
    if not grades:
        return ""
    names = {
        CLOSE: say("close"),
        NEAR: say("not far"),
        FAR: say("far"),
    }
    parts = [f"{grades.count(grade)} {name}" for grade, name in names.items() if grade in grades]
    waiting = sum(grade not in names for grade in grades)
    if waiting:
        parts.append(f"{waiting} {say('to be scored')}")
    return say(", ").join(parts)


def _exercises(tried: dict[str, dict]) -> tables.Table:
    rows = []
    for place, names in chapters.exercises().items():
        for name in names:
            if name in tried:
                state = titled(_state(tried[name]))
                attempts = tried[name].get("attempts", 0)
                rows.append(
                    {"chapter": place[:2], "exercise": name, "state": state, "attempts": attempts}
                )
    return tables.table(rows, title=both("Exercises"))


def _guesses(guessed: dict[str, dict]) -> tables.Table:
    rows = []
    for entry in guessed.values():
        rows.append(
            {
                "chapter": str(entry.get("chapter", "")),
                "question": str(entry.get("question", "")),
                "guess": _written(entry, "guess"),
                "answer": _written(entry, "answer"),
                "off by": _off(entry),
            }
        )
    return tables.table(rows, title=both("Guesses"))


def _written(entry: dict, name: str) -> str:
    value = entry.get(name)
    if isinstance(value, (int, float)):
        return format_number(value, _unit(entry))
    return "" if value is None else str(value)


def _off(entry: dict) -> str:
    """How far a guess was, in the language in use."""
    two = entry.get("guess"), entry.get("answer")
    if {type(value) for value in two} <= {int, float} or {type(value) for value in two} == {str}:
        return distance(*two, _unit(entry))[1]
    return ""


def _unit(entry: dict) -> str:
    return entry["unit"] if entry.get("unit") in UNITS else ""


def _note() -> str:
    signs = say(", ").join(titled(state) for state in reversed(STATES))
    folder = record.home()
    if folder is None:
        kept = say("Kept in this kernel only.")
    else:
        where = str(folder).replace(str(Path.home()), "~", 1)
        kept = say("Kept in {where}.", where=where)
    return signs + say(". ") + kept + _shown()


def _shown() -> str:
    """What the instructor sees; "" where nothing is shared."""
    name = opting.sharing_as()
    if not name:
        return ""
    gap = "" if words.language() == "zh" else " "
    return gap + say(
        "On the board of your classroom you are {name}: your instructor sees, for each exercise, "
        "whether it is passed, how many attempts it took and when, and which kind of mistake was "
        "made; and for each chapter how many guesses were close, not far or far. Your code, your "
        "answers and the guesses themselves stay with you. lab.progress(share=False) takes it "
        "back.",
        name=name,
    )
