"""What a learner who opted in shows to the instructor: the content of one file, written and read.

It holds a name, and for each exercise what became of it, how often, since when, and which mistakes
(``mistakes``: sentences of labkit's own, so that no file can bring a text of its own but the name);
of the guesses of a chapter how many were close, not far or far. It holds no answer, no line of
code, no guess and no question. Whoever can write such a file may write anything into it: ``read``
takes what ``written`` could have written, and raises ValueError for all else.
"""

import itertools
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.check import chapters
from labkit.check.shared import mistakes
from labkit.units import check_whole

VARIABLE = "LABKIT_BOARD"
"""The environment variable that names the folder of a classroom's board; empty: there is none."""
FOLDER_MODE = 0o3733
"""of the board's folder: setgid and sticky; its owner does all, others lay files into it and see
none"""
SUFFIX = ".progress"
TOKEN_LETTERS = 32
"""of a file's name before its suffix, hexadecimal: 128 random bits"""
HEX = frozenset("0123456789abcdef")
MOST_BYTES = 128 * 1024
"""of a file; a longer one is none"""
MOST_LETTERS = 40
"""of a name"""
MOST_ATTEMPTS = 10**6
MOST_MISTAKES = 3
"""of an exercise, the commonest"""
GRADES = ("close", "near", "far", "")
"""of a guess; "": it waits for its answer"""
STATES = ("wrong", "over budget", "passed")
"""of an exercise that was tried"""
_VERSION = 1
_LATEST_S = 4 * 10**9
_MARKS = ("Mn", "Me")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One exercise of one learner."""

    state: str
    """the best that came of it: "wrong", "over budget" or "passed\""""
    attempts: int
    """how many there were"""
    began_s: int
    """when the first was, in seconds since 1970"""
    last_s: int
    """when the last was"""
    mistakes: Mapping[str, int]
    """which mistakes were made, and how often: the commonest first"""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """One learner, as the instructor may see them."""

    name: str
    """as they want to be called"""
    exercises: Mapping[str, Tried]
    """those that were tried"""
    guesses: Mapping[str, Mapping[str, int]]
    """chapter ("08") -> grade -> how many"""


def checked_name(name: object) -> str:
    """A name without what could disguise it or disturb a page. Raises ValueError, which says what a
    name is."""
    told = unicodedata.normalize("NFC", name).strip() if isinstance(name, str) else ""
    if not 1 <= len(told) <= MOST_LETTERS or not told.isprintable() or not _is_readable(told):
        shown = ascii(name[: 2 * MOST_LETTERS] if isinstance(name, str) else name)
        raise ValueError(
            f"a name on the board has 1 to {MOST_LETTERS} letters, digits, signs or spaces, a "
            "letter or digit among them, none that is invisible or turns the direction of the "
            f'text; got {shown:.120}. For example lab.progress(share="Ada")'
        )
    return told


def _is_readable(name: str) -> bool:
    """Whether it has a letter or digit, and no letter carries more than two marks."""
    marks = 0
    for letter in name:
        marks = marks + 1 if unicodedata.category(letter) in _MARKS else 0
        if marks > 2:
            return False
    return any(map(str.isalnum, name))


def written(shared: Shared) -> bytes:
    """The file's content."""
    exercises = {}
    for name, tried in shared.exercises.items():
        exercises[name] = {
            "state": tried.state,
            "attempts": tried.attempts,
            "began_s": tried.began_s,
            "last_s": tried.last_s,
            "mistakes": dict(tried.mistakes),
        }
    content = {
        "version": _VERSION,
        "name": shared.name,
        "exercises": exercises,
        "guesses": {chapter: dict(grades) for chapter, grades in shared.guesses.items()},
    }
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


def read(content: bytes) -> Shared:
    """The same back. An exercise that this labkit does not know is left out; for anything else that
    ``written`` would not write it raises ValueError."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        found = json.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if _of(_of(found, dict).get("version"), int) != _VERSION:
        raise ValueError(f"it is not of version {_VERSION}")
    known = set(itertools.chain.from_iterable(chapters.exercises().values()))
    exercises = {}
    for name, entry in _of(found.get("exercises"), dict).items():
        if name in known:
            exercises[name] = _tried(_of(entry, dict))
    numbers = {place[:2] for place in chapters.exercises()}
    guesses = {}
    for chapter, grades in _of(found.get("guesses"), dict).items():
        if chapter in numbers:
            guesses[chapter] = _counts(grades, set(GRADES), len(GRADES))
    return Shared(name=checked_name(found.get("name")), exercises=exercises, guesses=guesses)


def _tried(entry: dict) -> Tried:
    state = entry.get("state")
    if not isinstance(state, str) or state not in STATES:
        raise ValueError("an exercise that was tried is wrong, over budget or passed")
    attempts = _of(entry.get("attempts"), int)
    began_s = _of(entry.get("began_s"), int)
    last_s = _of(entry.get("last_s"), int)
    check_whole(1, MOST_ATTEMPTS, attempts=attempts)
    check_whole(0, _LATEST_S, began_s=began_s, last_s=last_s)
    return Tried(
        state=state,
        attempts=attempts,
        began_s=began_s,
        last_s=last_s,
        mistakes=_counts(entry.get("mistakes"), None, MOST_MISTAKES),
    )


def _counts(found: object, allowed: set[str] | None, most: int) -> dict[str, int]:
    """How often each of a few things was; a mistake that this labkit does not know is left out."""
    counts = _of(found, dict)
    if len(counts) > most or (allowed is not None and not allowed.issuperset(counts)):
        raise ValueError("it counts things that there are not")
    for count in counts.values():
        check_whole(1, MOST_ATTEMPTS, count=_of(count, int))
    if allowed is None:
        return {name: count for name, count in counts.items() if mistakes.is_known(name)}
    return counts


def _of(found: object, kind: type) -> object:
    """The value itself, if it is exactly of a type. Raises ValueError otherwise."""
    if type(found) is not kind:
        raise ValueError(f"it has a {type(found).__name__} where a {kind.__name__} belongs")
    return found
