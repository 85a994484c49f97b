"""A classroom as its board shows it: chapters by learners, exercises, and where people are stuck.
Made of what learners share (``labkit.check.shared.content``) and the time; it reads no file."""

import collections
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labkit.check import chapters
from labkit.check.shared.content import Shared, Tried

STUCK_ATTEMPTS = 3
"""who has not passed after so many is stuck"""
LATELY_S = 12 * 3600
"""who tried within this time; who gave up last week is stuck no more"""
MOST_GUESSES = 20
"""of one grade, that one learner counts in a chapter: no chapter has more"""
NOT_ATTEMPTED = "not attempted"


@dataclass(frozen=True, kw_only=True)
class Learner:
    """One file that a learner shares."""

    key: str
    """what tells two learners of one name apart: the file's name"""
    account: str
    """whose file it is"""
    shared: Shared
    """its content"""


@dataclass(frozen=True, kw_only=True)
class Left:
    """Files of one account that the board does not show."""

    account: str
    """whose they are"""
    strange: int
    """that are no progress: of another kind, size or content"""
    many: int
    """that are more than one account may have, or than can be read in time"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One learner in one chapter."""

    states: tuple[str, ...]
    """of its exercises, in order"""
    attempts: int
    """in all of them"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One learner."""

    name: str
    """as they want to be called; told apart from others of that name"""
    cells: tuple[Cell, ...]
    """one per chapter"""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise in the whole room."""

    place: str
    """chapter and subject, "08 pipeline\""""
    name: str
    """what its check is called"""
    tried: int
    """how many learners have"""
    passed: int
    """how many of them have passed"""
    attempts: float
    """the median"""
    mistake: str
    """the commonest, by the number of learners who made it; "" for none"""
    mistaken: int
    """how many did"""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """One learner who is stuck."""

    name: str
    """as in the rows"""
    attempts: int
    """so many"""
    since_s: int
    """how long ago the first was, in seconds"""


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """An exercise that people do not get past."""

    exercise: Exercise
    """which"""
    learners: tuple[Waiting, ...]
    """who, the most attempts first"""


@dataclass(frozen=True, kw_only=True)
class Room:
    """All that the board shows."""

    chapters: Mapping[str, tuple[str, ...]]
    """those that somebody has begun -> their exercises"""
    rows: tuple[Row, ...]
    """by name"""
    exercises: tuple[Exercise, ...]
    """those that somebody has tried, in the order of the chapters"""
    stuck: tuple[Stuck, ...]
    """where most people are stuck, first"""
    guesses: Mapping[str, Mapping[str, int]]
    """chapter ("08") -> grade -> how many, of the whole room: a far guess is no mistake"""
    left: tuple[Left, ...]
    """what is not shown"""
    crowded: bool
    """whether the folder has more files than are looked at"""


def room(
    learners: Iterable[Learner],
    now_s: float,
    *,
    left: Iterable[Left] = (),
    crowded: bool = False,
) -> Room:
    """What the board shows at a time (seconds since 1970)."""
    seen = sorted(learners, key=lambda each: (each.shared.name.casefold(), each.key))
    names = _told_apart(seen)
    begun = _begun(seen)
    exercises = tuple(_exercises(seen, begun))
    return Room(
        chapters=begun,
        rows=tuple(_row(each, names[each.key], begun) for each in seen),
        exercises=exercises,
        stuck=_stuck(seen, names, exercises, int(now_s)),
        guesses=_guesses(seen),
        left=tuple(left),
        crowded=crowded,
    )


def _told_apart(learners: Sequence[Learner]) -> dict[str, str]:
    """File -> name: "Ada", and where there are two of them "Ada (account)", else "Ada (2)"."""
    same = collections.defaultdict(list)
    for each in learners:
        same[each.shared.name.casefold()].append(each)
    names = {}
    for group in same.values():
        accounts = {each.account for each in group}
        for number, each in enumerate(group, start=1):
            mark = each.account if len(accounts) == len(group) else str(number)
            more = f" ({mark})" if len(group) > 1 else ""
            names[each.key] = each.shared.name + more
    return names


def _begun(learners: Sequence[Learner]) -> dict[str, tuple[str, ...]]:
    tried: set[str] = set()
    for each in learners:
        tried.update(each.shared.exercises)
    places = chapters.exercises()
    return {place: names for place, names in places.items() if tried.intersection(names)}


def _row(learner: Learner, name: str, begun: Mapping[str, tuple[str, ...]]) -> Row:
    cells = []
    for names in begun.values():
        found = [learner.shared.exercises.get(each) for each in names]
        states = tuple(each.state if each else NOT_ATTEMPTED for each in found)
        cells.append(Cell(states=states, attempts=sum(each.attempts for each in found if each)))
    return Row(name=name, cells=tuple(cells))


def _exercises(
    learners: Sequence[Learner], begun: Mapping[str, tuple[str, ...]]
) -> Iterable[Exercise]:
    for place, names in begun.items():
        for name in names:
            found = [each.shared.exercises.get(name) for each in learners]
            tried = [each for each in found if each]
            if tried:
                yield _exercise(place, name, tried)


def _exercise(place: str, name: str, tried: Sequence[Tried]) -> Exercise:
    made = collections.Counter()
    for each in tried:
        made.update(each.mistakes.keys())  # each learner once: nobody decides for the room
    mistake, mistaken = made.most_common(1)[0] if made else ("", 0)
    return Exercise(
        place=place,
        name=name,
        tried=len(tried),
        passed=sum(each.state == "passed" for each in tried),
        attempts=statistics.median(each.attempts for each in tried),
        mistake=mistake,
        mistaken=mistaken,
    )


def _stuck(
    learners: Sequence[Learner],
    names: Mapping[str, str],
    exercises: Sequence[Exercise],
    now_s: int,
) -> tuple[Stuck, ...]:
    found = []
    for exercise in exercises:
        waiting = []
        for each in learners:
            tried = each.shared.exercises.get(exercise.name)
            if tried and _is_stuck(tried, now_s):
                since_s = max(0, now_s - tried.began_s)
                name = names[each.key]
                waiting.append(Waiting(name=name, attempts=tried.attempts, since_s=since_s))
        if waiting:
            waiting.sort(key=lambda each: -each.attempts)
            found.append(Stuck(exercise=exercise, learners=tuple(waiting)))
    return tuple(sorted(found, key=lambda each: -len(each.learners)))


def _is_stuck(tried: Tried, now_s: int) -> bool:
    late = now_s - tried.last_s > LATELY_S
    return tried.state != "passed" and tried.attempts >= STUCK_ATTEMPTS and not late


def _guesses(learners: Sequence[Learner]) -> dict[str, dict[str, int]]:
    """The whole room's; one learner counts at most MOST_GUESSES of a kind."""
    found: dict[str, dict[str, int]] = {}
    for each in learners:
        for chapter, grades in each.shared.guesses.items():
            sums = found.setdefault(chapter, {})
            for grade, count in grades.items():
                sums[grade] = sums.get(grade, 0) + min(count, MOST_GUESSES)
    return dict(sorted(found.items()))
