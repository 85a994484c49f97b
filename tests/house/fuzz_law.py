"""The law that every call is held to: it returns, or refuses in words; in bounded time."""

import dataclasses
import dis
import itertools
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_walk import PACKAGE

SECONDS = 2.0
MOST_ITEMS = 1000


NOTHING = r"none|\b0\b|\[\]|\(\)|\{\}"
"""How a message says that there was nothing."""


class TooSlow(BaseException):
    """A call ran longer than SECONDS."""


class Started(BaseException):
    """A call got as far as starting ranks."""


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The numbers and words inside a value."""
    if isinstance(value, np.ndarray):
        yield from value.ravel().tolist() or [()]
    elif isinstance(value, dict):
        yield from itertools.chain(
            *(leaves(part, depth + 1) for part in itertools.chain(*value.items()))
        )
        yield value
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain(*(leaves(part, depth + 1) for part in value))
        yield value
    elif dataclasses.is_dataclass(value) and depth < 4:
        yield from itertools.chain(
            *(leaves(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value))
        )
    else:
        yield value


def names_a_value(text: str, given: dict) -> bool:
    """Whether a message shows a part of what was given (or, where that was empty, says so)."""
    parts = [*leaves([*given.values()])]
    forms = []
    for leaf in parts:
        forms += [f"{leaf!r}"[:12], str(leaf)[:12], short(leaf), size(leaf)]
        words = leaf.split() if isinstance(leaf, str) else []
        forms += [repr(word)[1:-1] for word in words if len(repr(word)) > 4]
    nothing = any(size(leaf) == "got 0" for leaf in parts) and re.search(NOTHING, text)
    silent = any(callable(leaf) for leaf in parts)  # what it answered is not seen here
    return silent or bool(nothing) or any(form.strip() and form in text for form in forms)


def short(leaf: Any) -> str:
    """A number as "g" writes it."""
    return f"{leaf:g}" if isinstance(leaf, float) else ""


def size(leaf: Any) -> str:
    """How a message tells how many parts, or words, there were."""
    parts = leaf.split() if isinstance(leaf, str) else leaf
    return f"got {len(parts)}" if isinstance(parts, (list, tuple, dict)) else ""


def is_ours(error: BaseException) -> bool:
    """Whether a ``raise`` of labkit's raised it, and not something that labkit called."""
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    return (
        PACKAGE in Path(code.co_filename).parents
        and dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    )


def fault(thunk: Callable, given: dict, strict: bool) -> str | None:
    """What is wrong with a call; None where it keeps the law."""

    def stop(*_: object) -> None:
        raise TooSlow

    timers = {  # of its own work; and on the clock, for one that waits
        signal.ITIMER_PROF: (signal.SIGPROF, SECONDS),
        signal.ITIMER_REAL: (signal.SIGALRM, 10 * SECONDS),
    }
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (_, seconds) in timers.items():
        signal.setitimer(timer, seconds)
    try:
        result = thunk()
        if isinstance(result, Iterator):
            list(itertools.islice(result, MOST_ITEMS))
    except Started:
        return None
    except (ValueError, TypeError) as error:
        text = str(error)
        if len(text.split()) < (5 if strict else 3):
            return f"{type(error).__name__} says too little: {text!r}"
        if strict and not is_ours(error):
            return f"not our words: {type(error).__name__}: {text[:200]}"
        if strict and not names_a_value(text, given):
            return f"names no value given: {text[:200]}"
    except OSError as error:
        if not any(isinstance(leaf, (str, Path)) for leaf in leaves([*given.values()])):
            return repr(error)
    except TooSlow:
        return f"takes longer than {SECONDS:g} s"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    return None
