"""The reader's guess: made before the answer is there, kept, and held beside it afterwards."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from reprlib import repr as brief

from labkit import words
from labkit.check import chapters, record
from labkit.pictures import mime
from labkit.pictures.sketch import said, short
from labkit.shown import Said
from labkit.tables import worded
from labkit.units import UNITS, check_word, format_number, format_share
from labkit.words import say

CLOSE, NEAR, FAR = "close", "near", "far"
COLOURS = {CLOSE: "#2e9e6b", NEAR: "#4f9fe3", FAR: "#d98e04", "": "#8a8f98"}
"""Of the edge beside a score; none is the red of what is wrong"""


class Guess:
    """A question and what the reader expects. ``score`` holds it beside the answer."""

    def __init__(
        self,
        question: str,
        *,
        between: tuple[float, float] | None,
        choices: tuple[str, ...],
        unit: str,
        key: str,
    ) -> None:
        self.question = question
        self.between = between
        self.choices = choices
        self.unit = unit
        self.key = key
        self.value: float | str | None = None

    def __repr__(self) -> str:
        guessed = self.written(self.value) or say("no guess yet")
        return f"{self.question}{say(': ')}{guessed}"

    def written(self, value: float | str | None) -> str:
        """A guess or an answer as text; "" for none."""
        if value is None or isinstance(value, str):
            return value or ""
        return format_number(value, self.unit)

    def range(self) -> str:
        """What may be guessed, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.between is None:
            return say("a number")
        low, high = (short(self.written(end)) for end in self.between)
        return say("{low} to {high}", low=low, high=high)

    def read(self, given: object) -> float | str:
        """What was typed or given, as a value: "27 %", "1/4" and "0.27" are numbers. Raises
        ValueError for what can't be guessed here."""
        value = given
        if self.choices:
            check_word(given, self.choices, say("a guess here"))
            return given
        if isinstance(given, str):
            value = _number(given)
        value = _plain(value)
        low, high = self.between or (-math.inf, math.inf)
        if value is None or not math.isfinite(value) or not low <= value <= high:
            raise ValueError(
                say(
                    "the guess is a number, {range}; got {got}",
                    range=self.range(),
                    got=brief(given),
                )
            )
        return value

    def put(self, given: object) -> None:
        """Makes the guess, and keeps it for the next kernel. Raises ValueError as ``read`` does."""
        self.value = self.read(given)
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        about = {"chapter": chapters.current(), "question": self.question}
        guessed = {**about, "guess": self.value, "unit": self.unit, "when": now}
        record.change("guesses", self.key, lambda _: guessed)

    def score(self, answer: object) -> "Score":
        """How far the guess was from the answer. Without a guess it only says the answer."""
        right = self._answer(answer)
        grade, off = "", ""
        if self.value is not None:
            grade, off = distance(self.value, right, self.unit)
            scored = {"answer": right, "grade": grade}
            record.change("guesses", self.key, lambda entry: {**entry, **scored})
        return Score(
            question=self.question,
            guess=self.written(self.value),
            answer=self.written(right),
            off=off,
            grade=grade,
        )

    def _answer(self, answer: object) -> float | str:
        if self.choices:
            check_word(answer, self.choices, say("the answer"))
            return answer
        value = _plain(answer)
        if value is None or not math.isfinite(value):
            raise ValueError(say("the answer is a number; got {got}", got=brief(answer)))
        return value

    def _ipython_display_(self) -> None:
        """Its field; ``guess`` has shown it already where this is the same cell."""
        from labkit.check import guess_field

        guess_field.display_once(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class Score:
    """A guess beside the answer."""

    question: str
    """what was asked"""
    guess: str
    """what was guessed, as text; "" where nothing was"""
    answer: str
    """what it is"""
    off: str
    """how far the guess was, in words"""
    grade: str
    """"close", "near", "far", or "" without a guess"""

    def __repr__(self) -> str:
        gap = "" if words.language() == "zh" else " "
        parts = (f"{self.question}{say(':')}", self._compared(), self._comment())
        return gap.join(filter(None, parts))

    def _compared(self) -> str:
        if not self.grade:
            return say("it is {answer}.", answer=self.answer)
        if not self.off:
            return say("you guessed {guess}, and so it is.", guess=self.guess)
        return say(
            "you guessed {guess}, it is {answer}: {off}.",
            guess=self.guess,
            answer=self.answer,
            off=self.off,
        )

    def _comment(self) -> str:
        comments = {
            CLOSE: say("Close.") if self.off else "",
            NEAR: say("Not far."),
            FAR: say("That is a surprise, and what guessing is for."),
            "": ""
            if mime.book()
            else say("You made no guess. You can still make one above, and run this cell again."),
        }
        return comments[self.grade]

    def _repr_html_(self) -> str:
        edge = f"border-left:4px solid {COLOURS[self.grade]};padding:.2em .8em"
        question = f"{escape(self.question)}{say(': ')}"
        gap = "" if words.language() == "zh" else " "
        compared = f"<b>{escape(self._compared())}</b>{gap}{escape(self._comment())}"
        return f'<div style="{edge}">{question}{compared}</div>'


def guess(
    question: Said,
    *,
    between: tuple[float, float] | None = None,
    choices: Sequence[str] = (),
    unit: str = "",
    value: float | str | None = None,
) -> Guess:
    """Asks the reader for a guess, and keeps it: in a notebook by a field under the cell, anywhere
    by ``value``.

    The guess is a number, of a range if ``between`` says so and in a ``unit`` ("us", "bytes",
    "share": what ``labkit.units.UNITS`` has; a number from 0 to 1 is a share), or one of
    ``choices``. ``guess.score(answer)`` holds it beside the answer. What was guessed in an earlier
    kernel still counts. Raises ValueError for a question that can't be asked so.
    """
    pair = _checked_range(between)
    if choices and (pair or unit):
        raise ValueError(
            f"a guess is a number or one of some choices; got between={between}, unit={unit!r} and "
            f"choices={brief(choices)}"
        )
    names = _checked_choices(choices)
    if unit or not pair:
        check_word(unit, (*UNITS, ""), "a unit")
    elif pair == (0, 1):
        unit = "share"
    english = said(question, "en") if isinstance(question, dict) else question
    shown = said(question, words.language()) if isinstance(question, dict) else worded(question)
    key = f"{chapters.current()}: {english}"
    made = Guess(shown, between=pair, choices=names, unit=unit, key=key)
    if value is not None:
        made.put(value)
    else:
        _remember(made)
    from labkit.check import guess_field

    guess_field.display_once(made)
    return made


def _remember(made: Guess) -> None:
    """The guess of an earlier kernel, where it can still be one."""
    before = record.entries("guesses").get(made.key, {}).get("guess")
    try:
        made.value = None if before is None else made.read(before)
    except ValueError:
        made.value = None


def _checked_range(between: object) -> tuple[float, float] | None:
    if between is None:
        return None
    ends = [_plain(end) for end in between] if isinstance(between, (tuple, list)) else []
    if len(ends) != 2 or None in ends or not ends[0] < ends[1] or not all(map(math.isfinite, ends)):
        raise ValueError(
            f"between is the lowest and the highest guess, (0, 1); got {brief(between)}"
        )
    return ends[0], ends[1]


def _checked_choices(choices: Sequence[str]) -> tuple[str, ...]:
    fine = isinstance(choices, (tuple, list)) and all(isinstance(each, str) for each in choices)
    if not fine or len(set(choices)) != len(choices) or len(choices) == 1:
        raise ValueError(f"choices are two words or more, all different; got {brief(choices)}")
    return tuple(choices)


def _plain(value: object) -> float | None:
    """A number of ours, numpy's or torch's; None for anything else."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, Real) and not isinstance(value, bool) else None


def _number(text: str) -> float | None:
    """A number as people type it: "0.27", "27 %", "3/11", "1,000"; None where it is none."""
    text = text.strip().replace(",", "").replace("\uff0c", "").replace("\uff05", "%")
    factor = 0.01 if text.endswith("%") else 1.0
    above, slash, below = text.rstrip("% ").partition("/")
    try:
        return factor * float(above) / (float(below) if slash else 1.0)
    except (ValueError, ZeroDivisionError):
        return None


def distance(guessed: float | str, right: float | str, unit: str) -> tuple[str, str]:
    """How good a guess is, and how far it was in words: points of a share, the ratio of what has a
    size, else the difference. "" where it is right."""
    if isinstance(right, str):
        return (CLOSE, "") if guessed == right else (FAR, say("another one"))
    if format_number(guessed, unit) == format_number(right, unit):
        return CLOSE, ""
    high = guessed > right
    if unit == "share":
        points = f"{100 * abs(guessed - right):.1f}"
        more = say("{points} points too high", points=points)
        less = say("{points} points too low", points=points)
        return _grade(abs(guessed - right), 0.03, 0.1), more if high else less
    if guessed > 0 and right > 0:
        ratio = guessed / right
        return _grade(max(ratio, 1 / ratio), 1.1, 2.0), _ratio_words(ratio)
    gap = abs(guessed - right)
    shown = format_number(gap, unit)
    more = say("{shown} too high", shown=shown)
    less = say("{shown} too low", shown=shown)
    return _grade(gap / (abs(right) or abs(guessed)), 0.1, 0.5), more if high else less


def _ratio_words(ratio: float) -> str:
    """A ratio as a share where it is small, as a factor where it is large."""
    if 0.5 < ratio < 2:
        share = format_share(abs(ratio - 1))
        return say("{share} too high", share=share) if ratio > 1 else _less(share)
    factor = format_number(max(ratio, 1 / ratio))
    more = say("{factor} times too high", factor=factor)
    less = say("{factor} times too low", factor=factor)
    return more if ratio > 1 else less


def _less(share: str) -> str:
    return say("{share} too low", share=share)


def _grade(distance: float, close: float, near: float) -> str:
    if distance <= close:
        return CLOSE
    return NEAR if distance <= near else FAR
