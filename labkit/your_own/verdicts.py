"""What a forecast shows beside its test: a table under the one sentence that applies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.tables import table
from labkit.units import brief, check_real, format_share
from labkit.words import say

if TYPE_CHECKING:
    from labkit.tables import Table

NEAR = 0.1
"""as a share: how far off a clock or a fit may be"""
MOST_US = 1e15


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


def _check_times(times_us: Sequence[float], name: str, count: int | None = None) -> None:
    """Raises ValueError for what is no list of so many times, or of two or more."""
    is_list = isinstance(times_us, (list, tuple))
    if not is_list or len(times_us) < 2 or count not in (None, len(times_us)):
        wanted = "two or more" if count is None else f"{count}"
        raise ValueError(f"{name} is a list of {wanted} times; got {brief(times_us)}")
    for time_us in times_us:
        least = 1e-9 if count is None else -MOST_US  # a fit may be below zero
        check_real(least, MOST_US, **{f"a time of {name}": time_us})
