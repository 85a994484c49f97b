"""Which mistake an answer made, in words that hold nothing of the answer: the sentence of labkit's
catalogue that a counterexample was made of, its places left open, or the name of an exception."""

import builtins
import re
import string
from functools import cache

from labkit import words
from labkit.launching.verdicts import verdict
from labkit.words import say

MOST_LETTERS = 200
"""of a mistake as it is shown"""
_FEWEST_LETTERS = 8
"""of a sentence without its places; a shorter one says nothing"""
_MOST = 8
"""of an exercise that are remembered"""
_READ = 2000
"""so much of a counterexample is looked at"""


def mistake(counterexample: str) -> str:
    """The English sentence, its places open, that says most of a counterexample; "" where none
    does. The first line counts before what is drawn below it."""
    text = counterexample[:_READ]
    first, _, rest = text.partition("\n")
    for part in (first, rest):
        found = [each for each, pieces in _sentences(words.language()) if _is_in(pieces, part)]
        if found:
            return max(found, key=_letters)
    return ""


def raised(error: BaseException) -> str:
    """The name of an exception, or of the nearest kind of it that Python or labkit has: a class of
    the learner's own tells nothing of its name. Of a failed launch, its first rank's."""
    if isinstance(error, verdict.LaunchError):
        told = [ending.error.get("type") for ending in error.outcomes if ending.error]
        return next((name for name in told if name in _exceptions()), _nearest(error))
    return _nearest(error)


def counted(before: object, name: str) -> dict[str, int]:
    """The mistakes made so far, and one more (""; none); the commonest eight are kept."""
    found = before if isinstance(before, dict) else {}
    counts = {each: count for each, count in found.items() if isinstance(count, int)}
    if name:
        counts[name] = counts.get(name, 0) + 1
    first = sorted(counts, key=lambda each: (each != name, -counts[each]))
    return {each: counts[each] for each in first[:_MOST]}


def is_known(name: object) -> bool:
    """Whether it is one that ``mistake`` or ``raised`` gives."""
    return isinstance(name, str) and (name in _exceptions() or name in _english())


def worded(name: str) -> str:
    """A mistake in the language in use, "…" in its open places."""
    if name in _exceptions():
        return say("it raised {name}", name=name)
    lines = words.translated(name, words.language()).splitlines()
    told = " / ".join(filter(None, (_trimmed(line) for line in lines)))
    return told if len(told) <= MOST_LETTERS else told[: MOST_LETTERS - 1] + "…"


def _trimmed(line: str) -> str:
    """A line with its places as "…", without those that open or close it."""
    told = " ".join("…".join(_literals(line)).split())
    return re.sub(r"^(…[,:; ，：；]*)+", "", told)


def _nearest(error: BaseException) -> str:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return next((name for name in kinds if name in _exceptions()), "Exception")


@cache
def _exceptions() -> frozenset[str]:
    found = set()
    for room in (builtins, verdict):
        for name, each in vars(room).items():
            if isinstance(each, type) and issubclass(each, BaseException):
                found.add(name)
    return frozenset(found)


@cache
def _english() -> frozenset[str]:
    """Every sentence that says something."""
    pairs = words.entries(words.CATALOGUE.read_text(encoding="utf-8"))
    return frozenset(english for english, _ in pairs if _letters(english) >= _FEWEST_LETTERS)


@cache
def _sentences(language: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(English sentence, what stands between its places in a language) of each."""
    return tuple((text, _pieces(words.translated(text, language))) for text in sorted(_english()))


@cache
def _letters(sentence: str) -> int:
    """How many letters it has between its places."""
    return sum(map(str.isalpha, "".join(_pieces(words.translated(sentence, "en")))))


def _pieces(sentence: str) -> tuple[str, ...]:
    """What stands between the places, as far as its first line reaches."""
    return tuple(filter(None, _literals(sentence.partition("\n")[0])))


def _literals(line: str) -> list[str]:
    """What stands before, between and after the places of a line."""
    try:
        parts = list(string.Formatter().parse(line))
    except ValueError:  # a brace of its own: no text with places
        return [line]
    literals = [""]
    for literal, place, *_ in parts:
        literals[-1] += literal
        if place is not None:
            literals.append("")
    return literals


def _is_in(pieces: tuple[str, ...], text: str) -> bool:
    """Whether all pieces stand in a text, one behind the other."""
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return bool(pieces)
