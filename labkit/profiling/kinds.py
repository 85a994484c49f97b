"""Ten ways to be slow, each with its cure: one change of the step."""

from collections.abc import Callable
from typing import NamedTuple

from labkit.profiling.step import Step
from labkit.units import check_real, check_word
from labkit.words import to_say

MERGED = 8
"""messages that the cure of "messages" makes one of"""


class Slow(NamedTuple):
    """A slow step and the same one cured."""

    step: Step
    """slow"""
    cured: Step
    """with one change"""


def _input(severity: float) -> Slow:
    step = Step(prefetch=False, input_ms=8 + 22 * severity)
    return Slow(step, step.but(prefetch=True))


def _link(severity: float) -> Slow:
    step = Step(link_ms=40 + 60 * severity)
    return Slow(step, step.but(link_ms=step.link_ms / 2, gradient_kb=step.gradient_kb / 2))


def _bubble(severity: float) -> Slow:
    step = Step(layout="pipeline", forward_ms=12.0, microbatches=4 - round(2 * severity))
    return Slow(step, step.but(microbatches=2 * step.microbatches))


def _straggler(severity: float) -> Slow:
    step = Step(slow=((2, 1.4 + 1.2 * severity),))
    return Slow(step, step.but(slow=()))


def _messages(severity: float) -> Slow:
    step = Step(messages=48 + 16 * round(3 * severity), latency_ms=1.0, gradient_kb=32.0)
    return Slow(step, step.but(messages=step.messages // MERGED))


def _overlap(severity: float) -> Slow:
    step = Step(overlap=False, link_ms=10 + 16 * severity)
    return Slow(step, step.but(overlap=True))


def _stages(severity: float) -> Slow:
    heavy = 1.4 + 0.8 * severity
    light = (4 - heavy) / 3
    step = Step(layout="pipeline", forward_ms=14.0, weights=(light, light, heavy, light))
    return Slow(step, step.but(weights=()))


def _serial(severity: float) -> Slow:
    step = Step(optimizer="one", optimizer_ms=12 + 24 * severity)
    return Slow(step, step.but(optimizer="shared"))


def _gaps(severity: float) -> Slow:
    step = Step(gap_ms=1.0 + 2.0 * severity)
    return Slow(step, step.but(gap_ms=0.0))


def _save(severity: float) -> Slow:
    step = Step(save_ms=10 + 20 * severity)
    return Slow(step, step.but(save_behind=True))


_MAKERS: dict[str, Callable[[float], Slow]] = {
    "input": _input,
    "link": _link,
    "bubble": _bubble,
    "straggler": _straggler,
    "messages": _messages,
    "overlap": _overlap,
    "stages": _stages,
    "serial": _serial,
    "gaps": _gaps,
    "save": _save,
}
KINDS = tuple(_MAKERS)
NAMES = {
    "input": to_say("waits for data"),
    "link": to_say("slow link"),
    "bubble": to_say("pipeline bubble"),
    "straggler": to_say("one slow rank"),
    "messages": to_say("many small messages"),
    "overlap": to_say("messages not under the backward"),
    "stages": to_say("uneven stages"),
    "serial": to_say("work on one rank only"),
    "gaps": to_say("gaps in which nobody works"),
    "save": to_say("waits for a checkpoint"),
}
"""kind -> what it is called"""


def slow(kind: str, severity: float = 0.5) -> Slow:
    """A slow step of a kind, and its cure. ``severity`` is from 0 (just felt) to 1. Raises
    ValueError for another kind."""
    check_word(kind, KINDS, "a kind of slow step")
    check_real(0.0, 1.0, severity=severity)
    return _MAKERS[kind](severity)
