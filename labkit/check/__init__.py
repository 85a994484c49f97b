"""Exercises and their verdicts. A notebook opens its chapter's file: ``from labkit.check import
pipeline as check``.

Then ``check.<exercise>(answer)`` gives a Verdict and never raises (only the stop button stops it),
``check.hint("<exercise>")`` tells more after each attempt, and ``check.status()`` prints where you
stand.
"""

import contextlib
import functools
import html
import json
import signal
import textwrap
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.launching import diagnosis
from labkit.launching.launcher import launch
from labkit.launching.run import Run
from labkit.launching.verdict import LaunchError

if TYPE_CHECKING:
    from torch import Tensor

_STATES = {  # worst first: sign, colour, Chinese name, what it means in English and Chinese
    "not attempted": (
        "○",
        "#8a8f98",
        "未作答",
        "Replace the stub's line by your own.",
        "请把占位的那一行换成你的。",
    ),
    "wrong": ("✗", "#d9534f", "不对", "This case goes wrong:", "下面的情形不对："),
    "over budget": (
        "△",
        "#d98e04",
        "超出预算",
        "Right, but it costs more than it must:",
        "正确，但代价超出必要：",
    ),
    "passed": (
        "✓",
        "#2e9e6b",
        "通过",
        "Right, and within budget, in all hidden cases.",
        "所有情形都正确且不超预算。",
    ),
}
_HINTS = {
    name: both
    for file in sorted(Path(__file__).parents[1].glob("*/*hints.json"))
    for name, both in json.loads(file.read_text(encoding="utf-8")).items()
}
Grade = Callable[
    ..., Iterator[tuple[str, str]]
]  # answer -> ("wrong" or "over budget", the case) ...
_history: dict[str, list[str]] = {}  # per exercise, the states of its verdicts
_language = "en"


@dataclass(frozen=True, kw_only=True, repr=False)
class Verdict:
    """What became of an answer."""

    state: str
    """"not attempted", "wrong", "over budget" (correct, but it costs more than it must) or
    "passed\""""
    message: str = ""
    """what the state means, if nothing else is said"""
    counterexample: str = ""
    """the first case in which the answer falls short, as text of fixed width"""
    hint: str = ""
    """a little more with each attempt"""

    def __post_init__(self) -> None:
        if not self.message:
            object.__setattr__(self, "message", say(*_STATES[self.state][3:]))

    def __repr__(self) -> str:
        tip = f"{say('hint', '提示')}: {self.hint}" if self.hint else ""
        return "\n".join(
            filter(None, [f"{_title(self.state)}: {self.message}", self.counterexample, tip])
        )

    def _repr_html_(self) -> str:
        """The same for a notebook: words in the page's colour, which every theme can show; the hint
        folded away."""
        colour = _STATES[self.state][1]
        text = html.escape(self.counterexample)
        case = f"<pre style='background:none;color:inherit'>{text}</pre>" if text else ""
        tip = f"<details><summary>{say('hint', '提示')}</summary>{html.escape(self.hint)}</details>"
        return (
            f"<div style='border-left:4px solid {colour};padding:.2em .8em'>"
            f"<b>{_title(self.state)}</b> "
            f"{html.escape(self.message)}{case}{tip if self.hint else ''}</div>"
        )


def language(code: str) -> None:
    """Verdicts and hints speak English ("en") or Chinese ("zh") from now on. Raises ValueError for
    another code."""
    global _language
    if code not in ("en", "zh"):
        raise ValueError(f'verdicts speak "en" or "zh"; got {code!r}')
    _language = code


def say(en: str, zh: str) -> str:
    """The one of two texts that is in the chosen language."""
    return zh if _language == "zh" else en


def exercise(grade: Grade) -> Callable[[Callable], Verdict]:
    """Registers an exercise; its hints stand in hints/<subject>.json. Whatever an answer does
    becomes a Verdict."""
    name = grade.__name__
    _history[name] = []

    @functools.wraps(grade)
    def check(answer: Callable, **claims: object) -> Verdict:
        found = [Verdict(state="passed")]
        try:
            with limit(10.0):
                for state, case in grade(answer, **claims):
                    found.append(Verdict(state=state, counterexample=case))
                    if state == "wrong":
                        break
        except (Exception, SystemExit) as error:
            found.append(_raised(error, answer))
        verdict = min(found, key=lambda verdict: list(_STATES).index(verdict.state))
        _history[name].append(verdict.state)
        return replace(verdict, hint=_earned(name)[-1]) if verdict.counterexample else verdict

    return check


def hint(name: str) -> None:
    """Prints an exercise's hints so far: the first is free, each further one is earned by a failed
    attempt."""
    if name not in _history:
        raise ValueError(f"the exercises are {', '.join(_history)}; got {name!r}")
    for number, text in enumerate(_earned(name), start=1):
        begin, width = (
            f"{number}/{len(_HINTS[name]['en'])}" + say(": ", "："),
            60 if _language == "zh" else 100,
        )
        print(textwrap.fill(begin + text, width, subsequent_indent="     ", break_on_hyphens=False))


def status() -> None:
    """Prints a line per exercise and, last, how many are passed."""
    last = {name: (history or ["not attempted"])[-1] for name, history in _history.items()}
    num_passed = sum(state == "passed" for state in last.values())
    print(
        *(f"{name:<24} {_title(state)}" for name, state in last.items()),
        say(f"{num_passed} of {len(last)} passed", f"通过 {num_passed} / {len(last)}"),
        sep="\n",
    )


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError when the block takes longer. Only a main thread has an alarm; elsewhere
    there is no limit."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"no answer within {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        return (yield)
    handler, timer = (
        signal.signal(signal.SIGALRM, ring),
        signal.setitimer(signal.ITIMER_REAL, seconds),
    )
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def on_ranks(num_ranks: int, work: Callable, *args: object, hang_s: float = 4.0) -> Run:
    """Runs the ranks' side of an exercise on the CPU; what an answer leaves waiting is noticed
    after ``hang_s``."""
    with limit(120.0):  # launch has its own
        return launch(work, *args, ranks=num_ranks, backend="gloo", hang_s=hang_s, timeout_s=30)


def trace(run: Run) -> Verdict:
    """Whether all ranks of a run made the same collective calls in the same order: what no error
    tells, as long as op and shape agree. The verdict names the first call that is out of order, on
    each rank, with its line."""
    found = diagnosis.swapped(run.calls())
    if found is None:
        num_calls = max(map(len, run.calls()), default=0)
        return Verdict(
            state="passed",
            message=say(
                f"The ranks made the same {num_calls} calls in the same order.",
                f"各 rank 以相同的顺序做了相同的 {num_calls} 次调用。",
            ),
        )
    return Verdict(state="wrong", counterexample=found.text)


def faults(case: str, run: Run) -> Iterator[tuple[str, str]]:
    """Each rank's fault, where it has one: what it returned first."""
    yield from (
        ("wrong", f"{case}, rank {rank}: {fault}") for rank, (fault, *_) in enumerate(run) if fault
    )


def unlike(mine: "Tensor", right: "Tensor", what: str) -> str:
    """What a gradient is not, if it is not ``right``; and by which factor it is off, if it is one.
    Else nothing."""
    import torch

    if torch.allclose(mine, right, rtol=1e-4, atol=1e-6):
        return ""
    factor = float((mine * right).sum() / right.square().sum())
    exact = torch.allclose(mine, factor * right, rtol=1e-3, atol=1e-5)
    return f"is not {what}" + (f", it is {factor:.3g} times that" if exact else "")


def _raised(error: BaseException, answer: Callable) -> Verdict:
    """The verdict on an answer that raised, here or in a rank: the last line of it, and the line it
    came from."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    ranks = (
        {
            (ending.error.get("type"), ending.error.get("message", "")[:9])
            for ending in error.outcomes
        }
        if isinstance(error, LaunchError)
        else set()
    )
    if ("NotImplementedError", "your turn") in {(type(error).__name__, str(error)[:9]), *ranks}:
        return Verdict(state="not attempted")
    file = getattr(getattr(answer, "__code__", None), "co_filename", None)
    mine = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file][
        -1:
    ]
    what = str(error) if ranks else traceback.format_exception_only(error)[-1].strip()
    message = (
        say("Your function did not reach its end.", "你的函数没有运行到底。")
        if mine or ranks
        else say(
            "The check takes a function, and can't use this one or its result.",
            "请传入函数；这个函数或它的结果无法检查。",
        )
    )
    where = "".join(f"\nline {frame.lineno}: {frame.line}" for frame in mine)
    return Verdict(state="wrong", message=message, counterexample=what + where)


def _earned(name: str) -> list[str]:
    num_attempts = sum(state != "not attempted" for state in _history[name])
    return _HINTS[name][_language][: max(1, num_attempts)]


def _title(state: str) -> str:
    return f"{_STATES[state][0]} {say(state, _STATES[state][2])}"
