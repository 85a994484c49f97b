"""What a forecast shows beside its test: the curves of the fit, and a table under the one sentence
that applies."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.tables import table
from labkit.units import brief, check_real, check_whole, format_share
from labkit.words import say

if TYPE_CHECKING:
    from labkit.tables import Table

NEAR = 0.1
"""as a share: how far off a clock or a fit may be"""
MOST_US = 1e15
MOST = 1_000_000
"""layers or sequences of a step"""
Size = tuple[int, int]
"""(layers, sequences) of a step"""


def fit_lines(
    three_us: Sequence[float],
    clock_us: Mapping[Size, float],
    planned_us: Mapping[Size, float],
) -> dict[str, Any]:
    """For ``lab.curves(**...)``: steps as they were clocked, the last of which the fit hasn't seen;
    a line for each number of layers, fixed time + layers * (time of a layer + sequences * time of a
    sequence), by ``three_us``; and the plan's own times. All by (layers, sequences), in
    microseconds. Raises ValueError for no three times, fewer than two steps, and what are none."""
    _check_times(three_us, "three_us", 3)
    fixed_us, layer_us, sequence_us = three_us
    clocked = _by_layers(clock_us, "clock_us")
    planned = _by_layers(planned_us, "planned_us")
    if len(clock_us) < 2:
        raise ValueError(f"clock_us has two steps or more; got {brief(clock_us)}")
    *_, (last, unseen) = clock_us
    ends = {min(s for _, s in clock_us), max(s for _, s in clock_us)}
    lines = {}
    for n in sorted(clocked):
        step_us = {s: fixed_us + n * (layer_us + s * sequence_us) for s in sorted(ends)}
        lines[_layers(n)] = step_us
    lines |= {say("{layers}, planned", layers=_layers(n)): line for n, line in planned.items()}
    kept_us = clocked[last].pop(unseen)
    return {
        "fitted": {_layers(n): line for n, line in sorted(clocked.items()) if line},
        "measured": {_layers(last): {unseen: kept_us}},
        "predicted": lines,
        "x": say("sequences"),
        "y": say("one step"),
        "unit": "us",
        "title": say("A step, fitted and planned"),
    }


def _layers(num_layers: int) -> str:
    """A line's name."""
    return say("1 layer") if num_layers == 1 else say("{n} layers", n=num_layers)


def _by_layers(times_us: Mapping[Size, float], name: str) -> dict[int, dict[int, float]]:
    """{layers: {sequences: time}}. Raises ValueError for other than steps and their times."""
    if not isinstance(times_us, Mapping):
        raise ValueError(f"{name} is {{(layers, sequences): time}}; got {brief(times_us)}")
    found: dict[int, dict[int, float]] = {}
    for size, time_us in times_us.items():
        if not isinstance(size, tuple) or len(size) != 2:
            raise ValueError(f"a step of {name} is (layers, sequences); got {brief(size)}")
        check_whole(1, MOST, layers=size[0], sequences=size[1])
        check_real(1e-9, MOST_US, **{f"a time of {name}": time_us})
        found.setdefault(size[0], {})[size[1]] = time_us
    return found


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
    title = _verdict(f"{next(iter(forecasts_us))}", abs(noise), *map(abs, found[0]))
    return table(rows, title=title, units=dict.fromkeys([*rows[0]][1:], "share"))


def _verdict(name: str, noise: float, worst: float, last: float) -> str:
    """The sentence that applies, of shares by which clock, fit and forecast are off."""
    if max(noise, worst) > NEAR:
        return say(
            "Nothing shown: the clock is off by {noise}, the fit by {worst}. Something else was "
            "running; wait for it to end, and clock all steps again.",
            noise=format_share(noise),
            worst=format_share(worst),
        )
    told = {"name": name, "last": format_share(last), "worst": format_share(worst)}
    if last <= worst:
        return say(
            "{name}: {last} off on the larger step, and up to {worst} on the steps of the fit. "
            "The forecast holds.",
            **told,
        )
    if last <= noise:
        return say(
            "{name}: {last} off on the larger step, no more than the clock, which is off by "
            "{noise}. The forecast holds.",
            noise=format_share(noise),
            **told,
        )
    return say(
        "{name}: {last} off on the larger step, but only up to {worst} on the steps of the fit. "
        "Further out expect more.",
        **told,
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
