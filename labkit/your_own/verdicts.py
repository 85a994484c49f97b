"""What a second recording shows beside the first, and a forecast beside its test: a table under
the one sentence that applies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.profiling.shares import NAMES
from labkit.tables import table
from labkit.units import brief, check_real, check_whole, format_share
from labkit.words import say

if TYPE_CHECKING:
    from labkit.tables import Table

NEAR = 0.1
"""as a share: what counts as the same time, and how far off a clock or a fit may be"""
MOST_US = 1e15


def paced(
    before_us: Mapping[str, float], after_us: Mapping[str, float], *, readers: int
) -> "Table":
    """What sets the pace once so many readers load the batches; both steps as ``parts_us()`` of a
    record gives them. A wait for another rank, which may be reading, isn't the step's own work.
    Raises ValueError for what are no parts of a step, and for a step before
    that did not wait for data."""
    check_whole(1, 100_000, readers=readers)
    waiting = say(NAMES["input"])
    for parts in (before_us, after_us):
        _check(parts)
    if not before_us.get(waiting):
        raise ValueError(f"a step before has a part {waiting!r} above 0; got {brief(before_us)}")
    others = say(NAMES["waiting"])
    share_us = before_us[waiting] / readers
    step_us = sum(after_us.values())
    rest_us = [sum(parts.values()) - parts.get(waiting, 0.0) for parts in (before_us, after_us)]
    if rest_us[1] - after_us.get(others, 0.0) > share_us:
        told = say("The rest of the step takes longer than the readers need: now it sets the pace.")
    elif step_us < (1 + NEAR) * share_us:
        told = say("The readers set the pace: only batches that come faster make a step shorter.")
    else:
        told = say("Neither sets the pace alone: batches come late, or in bursts.")
    row = {
        say("a step now"): step_us,
        say("the old wait over {readers}", readers=readers): share_us,
        say("the rest before"): rest_us[0],
        say("the rest now"): rest_us[1],
        say("of it waiting for other ranks"): after_us.get(others, 0.0),
    }
    return table([row], title=told, units=dict.fromkeys(row, "us"))


def judged(
    forecasts_us: Mapping[str, Sequence[float]],
    clock_us: Sequence[float],
    *,
    again_us: float,
) -> "Table":
    """How far forecasts are off the clock, on the steps that they were fitted to and on the last,
    which they hadn't seen; times in microseconds, the sentence about the first forecast.
    ``again_us``: a second clocking of the first step, which says how far off the clock is. Raises
    ValueError for fewer than two steps, no forecast, another number of times, and no times."""
    _check_times(clock_us, "clock_us")
    check_real(1e-9, MOST_US, again_us=again_us)
    if not isinstance(forecasts_us, Mapping) or not forecasts_us:
        raise ValueError(
            f"forecasts_us is {{name: a time of each step}}; got {brief(forecasts_us)}"
        )
    rows = []
    found = []
    for name, times_us in forecasts_us.items():
        _check_times(times_us, brief(name), len(clock_us))
        off = [told / took - 1 for told, took in zip(times_us, clock_us, strict=True)]
        found.append((max(off[:-1], key=abs), off[-1]))
        row = {say("forecast"): f"{name}", say("worst of the fitted steps"): found[-1][0]}
        rows.append(row | {say("on the larger step"): found[-1][1]})
    noise = again_us / clock_us[0] - 1
    rows.append({say("forecast"): say("clock, one step twice"), [*rows[0]][1]: noise})
    title = _verdict(f"{next(iter(forecasts_us))}", abs(noise), *map(abs, found[0]))
    return table(rows, title=title, units=dict.fromkeys([*rows[0]][1:], "share"))


def _verdict(name: str, noise: float, worst: float, last: float) -> str:
    """The sentence that applies, of shares by which clock, fit and forecast are off."""
    if max(noise, worst) > NEAR:
        return say(
            "Nothing shown: clock or fit is off by {most}. Something else was running; wait for "
            "it to end, and clock all steps again.",
            most=format_share(max(noise, worst)),
        )
    if last <= max(noise, worst):
        return say(
            "{name}: off by {last} on the larger step, no more than clock and fit are.",
            name=name,
            last=format_share(last),
        )
    return say(
        "{name}: within {worst} on the steps that it was fitted to, but off by {last} on the "
        "larger one.",
        name=name,
        worst=format_share(worst),
        last=format_share(last),
    )


def _check(parts_us: Mapping[str, float]) -> None:
    """Raises ValueError for what are no parts of a step."""
    if not isinstance(parts_us, Mapping) or not parts_us:
        raise ValueError(f"a step is {{part: microseconds}}, one or more; got {brief(parts_us)}")
    for name, part_us in parts_us.items():
        if not isinstance(name, str):
            raise ValueError(f"a part of a step has a name; got {brief(name)}")
        check_real(0.0, MOST_US, **{f"{name}": part_us})


def _check_times(times_us: Sequence[float], name: str, count: int | None = None) -> None:
    """Raises ValueError for what is no list of so many times, or of two or more."""
    is_list = isinstance(times_us, (list, tuple))
    if not is_list or len(times_us) < 2 or count not in (None, len(times_us)):
        wanted = "two or more" if count is None else f"{count}"
        raise ValueError(f"{name} is a list of {wanted} times; got {brief(times_us)}")
    for time_us in times_us:
        least = 1e-9 if count is None else -MOST_US  # a fit may be below zero
        check_real(least, MOST_US, **{f"a time of {name}": time_us})
