"""Exercises: registered by their graders, tried, and remembered; hints are earned by attempts."""

import functools
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from labkit.check import chapters, record
from labkit.check.grading import limit
from labkit.check.shared import mistakes
from labkit.check.verdict import STATES, Verdict, spoken, titled
from labkit.launching.verdicts.verdict import LaunchError
from labkit.words import say

Grade = Callable[..., Iterator[tuple[str, str]]]
"""Takes an answer; yields "wrong" or "over budget", and the case"""
LIMIT_S = 10.0
"""how long an answer may take, where its exercise says nothing else"""

_HINTS = chapters.hints()
_history: dict[str, list[str]] = {}  # per exercise, the states of its verdicts


def exercise(grade: Grade | None = None, *, limit_s: float = LIMIT_S) -> Callable[..., Any]:
    """Registers an exercise; its hints stand in a hints.json beside it. Whatever an answer does
    becomes a Verdict, and so does an answer that takes longer than ``limit_s``."""
    if grade is None:
        return functools.partial(exercise, limit_s=limit_s)
    name = grade.__name__
    _history[name] = []

    @functools.wraps(grade)
    def check(answer: Callable, **claims: object) -> Verdict:
        verdict = _graded(grade, answer, claims, limit_s)
        _history[name].append(verdict.state)
        if verdict.state != "not attempted":
            record.change("exercises", name, functools.partial(_attempted, verdict))
        return replace(verdict, hint=_earned(name)[-1]) if verdict.counterexample else verdict

    return check


def _attempted(verdict: Verdict, before: record.Entry) -> record.Entry:
    """What is kept of an exercise after one more attempt; once passed, it stays so."""
    attempts = before.get("attempts")
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    return {
        "state": verdict.state,
        "passed": verdict.state == "passed" or before.get("passed") is True,
        "attempts": 1 + (attempts if isinstance(attempts, int) else 0),
        "began": before.get("began") or before.get("when") or now,
        "when": now,
        "mistakes": mistakes.counted(before.get("mistakes"), verdict.mistake),
    }


def _graded(
    grade: Grade, answer: Callable, claims: dict[str, object], limit_s: float = LIMIT_S
) -> Verdict:
    """The worst of what a grader finds, up to the first case that is wrong."""
    found = [Verdict(state="passed")]
    try:
        with limit(limit_s):
            for state, case in grade(answer, **claims):
                mistake = mistakes.mistake(case)
                found.append(Verdict(state=state, counterexample=case, mistake=mistake))
                if state == "wrong":
                    break
    except KeyboardInterrupt:  # also what a launch raises after the stop button
        raise
    except (Exception, SystemExit) as error:
        found.append(_raised(error, answer))
    worst_first = list(STATES)
    return min(found, key=lambda verdict: worst_first.index(verdict.state))


def hint(name: str) -> None:
    """Prints an exercise's hints so far: the first is free, each further one is earned by a failed
    attempt."""
    if name not in _history:
        raise ValueError(f"the exercises are {', '.join(_here())}; got {name!r}")
    width = 60 if spoken() == "zh" else 100
    for number, text in enumerate(_earned(name), start=1):
        count = f"{number}/{len(_HINTS[name]['en'])}"
        line = count + say(": ") + text
        print(textwrap.fill(line, width, subsequent_indent="     ", break_on_hyphens=False))


def status() -> None:
    """Prints a line per exercise and, last, how many are passed: the exercises of the chapter that
    ``lab.begin`` has named, else of every subject that the kernel has loaded."""
    last = {name: (_history[name] or ["not attempted"])[-1] for name in _here()}
    num_passed = sum(state == "passed" for state in last.values())
    for name, state in last.items():
        print(f"{name:<24} {titled(state)}")
    print(say("{passed} of {exercises} passed", passed=num_passed, exercises=len(last)))


def _here() -> list[str]:
    """The loaded exercises of the chapter being read; all that are loaded, where it has none."""
    mine: set[str] = set()
    for place, names in chapters.exercises().items():
        if place[:2] == chapters.current():
            mine.update(names)
    return [name for name in _history if name in mine] or [*_history]


def _earned(name: str) -> list[str]:
    """The hints of an exercise that may be read by now."""
    num_attempts = sum(state != "not attempted" for state in _history[name])
    return _HINTS[name][spoken()][: max(1, num_attempts)]


def _raised(error: BaseException, answer: Callable) -> Verdict:
    """The verdict on an answer that raised, here or in a rank: the last line of it, and the line it
    came from."""
    raised_by_ranks = _errors_of_ranks(error)
    if ("NotImplementedError", "your turn") in {_name_of(error), *raised_by_ranks}:
        return Verdict(state="not attempted")
    file = getattr(getattr(answer, "__code__", None), "co_filename", None)
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename == file]
    if mine or raised_by_ranks:
        message = say("Your function did not reach its end.")
    else:
        message = say("The check takes a function, and can't use this one or its result.")
    case = traceback.format_exception_only(error)[-1].strip()
    if raised_by_ranks:
        case = str(error)
    if mine:
        last = mine[-1]
        case += "\n" + say("line {number}: {text}", number=last.lineno, text=last.line)
    kind = mistakes.raised(error)
    return Verdict(state="wrong", message=message, counterexample=case, mistake=kind)


def _name_of(error: BaseException) -> tuple[str, str]:
    """An error's type and the first letters of what it says: as long as "your turn"."""
    return type(error).__name__, str(error)[:9]


def _errors_of_ranks(error: BaseException) -> set[tuple[str | None, str]]:
    """The same of each rank's error, where a launch failed."""
    if not isinstance(error, LaunchError):
        return set()
    told = [ending.error for ending in error.outcomes]
    return {(each.get("type"), each.get("message", "")[:9]) for each in told}
