"""What a run shows, in the one sentence of a few that its numbers bear out: which part sets the
pace of a step, whether one factor mends a plan, where a plan's line lies beside a fit's, and how
far a forecast holds; and the curves and constants of a fit."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.planner.plan.cluster import Gpu
from labkit.planner.plan.stacks import Stack
from labkit.tables import table
from labkit.units import brief, check_real, check_whole, format_share, format_us
from labkit.words import say, to_say
from labkit.your_own.step import Step

if TYPE_CHECKING:
    from labkit.tables import Table

NEAR = 0.1
"""as a share: how far off a clock or a fit may be"""
HOLDS = 0.05
"""as a share: how far off a forecast may be, unless the clock itself is farther off"""
MOST_US = 1e15
MOST = 1_000_000
"""layers or sequences of a step"""
Size = tuple[int, int]
"""(layers, sequences) of a step"""
SURE = 2
"""so many times the clock's own error is no longer the clock's"""
SAYS = {
    "matmul": (
        to_say("products are faster than planned"),
        to_say("products are slower than planned"),
    ),
    "attention": (
        to_say("attention is faster than planned"),
        to_say("attention is slower than planned"),
    ),
    "nic": (to_say("messages are faster than planned"), to_say("messages are slower than planned")),
    "layer_us": (
        to_say("a layer takes more time beside its work than planned"),
        to_say("a layer takes less time beside its work than planned"),
    ),
}
"""a constant of a plan -> what it says that a fit made it larger, and that it made it smaller"""


def bottleneck(was_us: Sequence[float], now_us: Sequence[float], *, readers: int) -> str:
    """Which part sets the pace of a step with so many readers, in a sentence. ``was_us`` and
    ``now_us``: what a step waits for data and the rest of it, with none and with them, in
    microseconds. Raises ValueError for what are no two times, and for no reader."""
    _check_times(was_us, "was_us", 2)
    _check_times(now_us, "now_us", 2)
    check_whole(1, MOST, readers=readers)
    wait_us, rest_us = was_us
    left_us, now_rest_us = now_us
    batch_us = wait_us / readers
    told = {
        "left": format_us(left_us),
        "was": format_us(rest_us),
        "now": format_us(now_rest_us),
        "batch": format_us(batch_us),
        "readers": readers,
    }
    if now_rest_us > batch_us * (1 + NEAR):
        return say(
            "The rest went from {was} to {now}, longer than {batch}, the old wait over {readers} "
            "readers. So the rest sets the pace now: the bottleneck moved. Of the wait {left} are "
            "left.",
            **told,
        )
    if batch_us > now_rest_us * (1 + NEAR):
        return say(
            "The rest went from {was} to {now}, shorter than {batch}, the old wait over {readers} "
            "readers. So the readers set the pace, as the wait did before. Of the wait {left} are "
            "left.",
            **told,
        )
    return say(
        "The rest went from {was} to {now}, about as long as {batch}, the old wait over {readers} "
        "readers: too close to say which sets the pace. Of the wait {left} are left.",
        **told,
    )


def one_factor(ratios: Sequence[float], *, again: float) -> str:
    """Whether one factor mends a plan, in a sentence: ``ratios`` of measured to planned time, and
    that of the first step clocked ``again``. Raises ValueError for fewer than two, or what are
    none."""
    _check_times(ratios, "ratios")
    check_real(1e-9, MOST_US, again=again)
    noise = _noise((ratios[0], again))
    if noise > NEAR:
        return _clock_again(noise)
    apart = max(ratios) / min(ratios) - 1
    told = {"apart": format_share(apart), "noise": format_share(noise)}
    if apart > SURE * noise:
        return say(
            "The ratios lie up to {apart} apart, and two clockings of one step differ by {noise}: "
            "no single factor mends this plan.",
            **told,
        )
    return say(
        "The ratios lie up to {apart} apart, and two clockings of one step differ by {noise}: too "
        "close to refute that one factor does.",
        **told,
    )


def beside_fit(
    three_us: Sequence[float], planned_us: Mapping[Size, float], *, twice_us: Sequence[float]
) -> str:
    """Where a plan's line lies beside the fit's, in a sentence. The first arguments are those of
    ``fit_lines``, of one number of layers; ``twice_us``: one step, clocked twice, which says how
    far off the clock is. Raises ValueError for another number of times or of layers, and for steps
    of one size."""
    _check_times(three_us, "three_us", 3)
    planned = _by_layers(planned_us, "planned_us")
    if len(planned) != 1 or len(planned_us) < 2:
        raise ValueError(f"planned_us is a line of one number of layers; got {brief(planned_us)}")
    noise = _noise(twice_us)
    if noise > NEAR:
        return _clock_again(noise)
    [(layers, line)] = planned.items()
    line = _from_zero(line)
    last = max(line)
    fit_us = [_fitted_us(three_us, layers, s) for s in (0, last)]
    first_off = line[0] - fit_us[0]
    last_off = line[last] - fit_us[1]
    told = {
        "plan": format_us(line[0]),
        "fit": format_us(fit_us[0]),
        "plan_last": format_us(line[last]),
        "fit_last": format_us(fit_us[1]),
        "last": last,
    }
    if first_off * last_off < 0:
        return say(
            "With 0 sequences: {plan} planned, {fit} by the fit; with {last}: {plan_last} planned, "
            "{fit_last} by the fit. The lines cross near {at}: there two errors cancel, and the "
            "plan is right by luck.",
            at=round(last * first_off / (first_off - last_off)),
            **told,
        )
    return say(
        "With 0 sequences: {plan} planned, {fit} by the fit; with {last}: {plan_last} planned, "
        "{fit_last} by the fit. The lines do not cross: the plan is off to the same side for all "
        "of them.",
        **told,
    )


def _noise(twice_us: Sequence[float]) -> float:
    """How far off a clock is, as a share, of one step that it clocked twice."""
    _check_times(twice_us, "twice_us")
    check_real(1e-9, MOST_US, **{"a time of twice_us": min(twice_us)})
    return abs(twice_us[1] / twice_us[0] - 1)


def _clock_again(noise: float) -> str:
    """What is said in place of a claim."""
    return say(
        "Stop and clock again: one step, clocked twice, differs by {noise}. So these numbers show "
        "nothing yet.",
        noise=format_share(noise),
    )


def fitted(
    steps: Sequence[Step], clock_us: Sequence[float], *, gpu: Gpu, again_us: float
) -> tuple[Stack, "Table"]:
    """The constants of the steps' plans on ``gpu``, moved by ``planner.fit`` toward the times of
    their clock, and a table of those that moved. It says what that means unless the clock is too
    far off by ``again_us``, a second clocking of the first step. Raises ValueError for fewer than
    two steps, and another number of times."""
    from labkit.planner.trust.fit import fit

    if not isinstance(steps, (list, tuple)) or not all(isinstance(each, Step) for each in steps):
        raise ValueError(f"steps are your_own.Step, two or more; got {brief(steps)}")
    _check_times(clock_us, "clock_us")
    _check_times(clock_us, "clock_us", len(steps))
    noise = _noise((clock_us[0], again_us))
    runs = [each.row(us, gpu=gpu) for each, us in zip(steps, clock_us, strict=True)]
    begun = steps[0].plan(gpu=gpu).used
    found = fit(runs, begun=[begun])
    own = found.stack(runs[0])
    rows = []
    for _, name in found.moved:
        before = getattr(begun, name)
        after = getattr(own, name)
        row = {say("constant"): name, say("before"): before, say("after"): after}
        told = _says(name, before, after) if noise <= NEAR else "-"
        rows.append(row | {say("what the plan now assumes"): told})
    return own, table(rows, title=_clock_again(noise) if noise > NEAR else "")


def _says(name: str, before: float, after: float) -> str:
    """What is wrong with a plan, of a constant that a fit moved."""
    if name != "layer_us" and before <= 1 < after:
        return say(
            "above 1 it is no share any more: the speed was measured too low, or it makes up for "
            "an error elsewhere"
        )
    larger, smaller = SAYS[name]
    return say(larger if after > before else smaller)


def _fitted_us(three_us: Sequence[float], layers: int, sequences: int) -> float:
    """The formula of ``fit_lines``."""
    fixed_us, layer_us, sequence_us = three_us
    return fixed_us + layers * (layer_us + sequences * sequence_us)


def _from_zero(line: Mapping[int, float]) -> dict[int, float]:
    """A line by sequences, led on straight from its first two points to none of them."""
    if len(line) < 2:
        return dict(line)
    first, second, *_ = sorted(line)
    slope_us = (line[second] - line[first]) / (second - first)
    return {0: line[first] - first * slope_us, **line}


def fit_lines(
    three_us: Sequence[float],
    clock_us: Mapping[Size, float],
    planned_us: Mapping[Size, float],
) -> dict[str, Any]:
    """For ``lab.curves(**...)``: steps as they were clocked, the last of which the fit hasn't seen;
    a line for each number of layers, fixed time + layers * (time of a layer + sequences * time of a
    sequence), by ``three_us``; and the plan's own times. Lines begin at 0 sequences. All by
    (layers, sequences), in microseconds. Raises ValueError for no three times, fewer than two
    steps, and what are none."""
    _check_times(three_us, "three_us", 3)
    clocked = _by_layers(clock_us, "clock_us")
    planned = _by_layers(planned_us, "planned_us")
    if len(clock_us) < 2:
        raise ValueError(f"clock_us has two steps or more; got {brief(clock_us)}")
    *_, (last, unseen) = clock_us
    ends = (0, max(s for _, s in clock_us))
    lines = {}
    for n in sorted(clocked):
        lines[_layers(n)] = {s: _fitted_us(three_us, n, s) for s in ends}
    for n, line in planned.items():
        lines[say("{layers}, planned", layers=_layers(n))] = _from_zero(line)
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
    noise = _noise((clock_us[0], again_us))
    title = _verdict(f"{next(iter(forecasts_us))}", noise, *map(abs, found[0]))
    return table(rows, title=title, units=dict.fromkeys([*rows[0]][1:], "share"))


def _verdict(name: str, noise: float, worst: float, last: float) -> str:
    """The sentence that applies, of shares by which clock, fit and forecast are off."""
    if max(noise, worst) > NEAR:
        return say(
            "Stop and clock again: the clock is off by {noise}, the fit by {worst}. So the table "
            "shows nothing yet. Something else may be running; wait for it to end.",
            noise=format_share(noise),
            worst=format_share(worst),
        )
    limit = max(HOLDS, noise)
    told = {
        "name": name,
        "last": format_share(last),
        "worst": format_share(worst),
        "limit": format_share(limit),
    }
    if last <= limit:
        return say(
            "{name}: {last} off on the larger step, within the limit of {limit}: the forecast "
            "holds. It is up to {worst} off on the steps of the fit.",
            **told,
        )
    return say(
        "{name}: {last} off on the larger step, more than the limit of {limit}; up to {worst} on "
        "the steps of the fit. Further out expect more.",
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
