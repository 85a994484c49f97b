"""What clocked steps show, in the one sentence of a few that their numbers bear out: whether one
factor mends a plan, how a plan's line differs from a fit's, and which forecasts hold; and the
curves and constants of a fit."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.planner.plan.cluster import Gpu
from labkit.planner.plan.stacks import Stack
from labkit.tables import table
from labkit.units import brief, check_real, check_whole, format_number, format_share, format_us
from labkit.words import WORDS, language, say, to_say
from labkit.your_own.step import Step

if TYPE_CHECKING:
    from labkit.tables import Table

HOLDS = 0.1
"""as a share: how far off a forecast may be, and the clock that judges it"""
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


def one_factor(ratios: Sequence[float], *, error: float) -> str:
    """Whether one factor mends a plan, in a sentence: ``ratios`` of measured to planned time, and
    the clock's ``error``, the share by which two clockings of one step differ. Raises ValueError
    for fewer than two, or what are none."""
    _check_times(ratios, "ratios")
    check_real(0, MOST_US, error=error)
    apart = max(ratios) / min(ratios) - 1
    told = {"apart": format_share(apart), "error": format_share(error)}
    if apart > SURE * error:
        return say(
            "The ratios lie up to {apart} apart, and two clockings of one step at most {error}: no "
            "single factor mends this plan.",
            **told,
        )
    return say(
        "The ratios lie up to {apart} apart, and two clockings of one step up to {error}: too "
        "close to refute that one factor does.",
        **told,
    )


def beside_fit(three_us: Sequence[float], planned_us: Mapping[Size, float], *, error: float) -> str:
    """Where a plan's line and the fit's begin, and how they rise, and whether one factor could be
    both, in sentences. The first two are those of ``fit_lines``, of one number of layers; ``error``
    is the clock's, a share. Raises ValueError for another number of times or of layers, for steps
    of one size, and for no share."""
    check_real(0, MOST_US, error=error)
    _check_times(three_us, "three_us", 3)
    planned = _by_layers(planned_us, "planned_us")
    if len(planned) != 1 or len(planned_us) < 2:
        raise ValueError(f"planned_us is a line of one number of layers; got {brief(planned_us)}")
    [(layers, line)] = planned.items()
    line = _from_zero(line)
    last = max(line)
    begin_us = _fitted_us(three_us, layers, 0)
    rise_us = layers * three_us[2]
    planned_rise_us = (line[last] - line[0]) / last
    begins = begin_us / line[0]
    rises = rise_us / planned_rise_us
    lines = say(
        "Planned, the line begins at {plan} and rises by {plan_rise} a sequence; by the fit it "
        "begins at {fit}, {begins} times as high, and rises by {rise}, {rises} times as fast.",
        plan=format_us(line[0]),
        plan_rise=format_us(planned_rise_us),
        fit=format_us(begin_us),
        begins=format_number(begins),
        rise=format_us(rise_us),
        rises=format_number(rises),
    )
    low, high = sorted((begins, rises))
    if low <= 0 or high / low - 1 > SURE * error:
        return _both(lines, say("By the fit one factor would have to be both numbers at once."))
    return _both(lines, say("The two numbers are too close for this clock to tell them apart."))


def _both(first: str, second: str) -> str:
    """Two sentences, one after the other."""
    return say("{first} {second}", first=first, second=second)


def fitted(
    steps: Sequence[Step], clock_us: Sequence[float], *, gpu: Gpu, error: float
) -> tuple[Stack, "Table"]:
    """The constants of the steps' plans on ``gpu``, moved by ``planner.fit`` toward the times of
    their clock, and a table of those that moved. It says what that means unless the clock's
    ``error``, a share, is too large. Raises ValueError for fewer than two steps, and another number
    of times."""
    from labkit.planner.trust.fit import fit

    if not isinstance(steps, (list, tuple)) or not all(isinstance(each, Step) for each in steps):
        raise ValueError(f"steps are your_own.Step, two or more; got {brief(steps)}")
    _check_times(clock_us, "clock_us")
    _check_times(clock_us, "clock_us", len(steps))
    check_real(0, MOST_US, error=error)
    runs = [each.row(us, gpu=gpu) for each, us in zip(steps, clock_us, strict=True)]
    begun = steps[0].plan(gpu=gpu).used
    found = fit(runs, begun=[begun])
    own = found.stack(runs[0])
    rows = []
    for _, name in found.moved:
        before = getattr(begun, name)
        after = getattr(own, name)
        row = {say("constant"): name, say("before"): before, say("after"): after}
        told = _says(name, before, after) if error <= HOLDS else "-"
        rows.append(row | {say("what the plan now assumes"): told})
    return own, table(rows, title=_cannot_say(error) if error > HOLDS else "")


def _cannot_say(error: float) -> str:
    """What is said in place of a claim about constants."""
    return say(
        "Two clockings of one step lie up to {error} apart, more than {limit}. So we say nothing "
        "of what the constants mean; clock again when the machine is quiet.",
        error=format_share(error),
        limit=format_share(HOLDS),
    )


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
    forecasts_us: Mapping[str, Sequence[float]], clock_us: Sequence[float], *, error: float
) -> "Table":
    """How far forecasts are off the clock on the last step, and at worst on the others; times in
    microseconds. The sentences above say how long the last step took, which forecast is nearest to
    it, and which of them hold; where the clock's ``error``, a share, is too large for that, which
    of them miss by more than the clock can err. Raises ValueError for fewer than two steps, no
    forecast, another number of times, and no times."""
    _check_times(clock_us, "clock_us")
    check_real(0, MOST_US, error=error)
    if not isinstance(forecasts_us, Mapping) or not forecasts_us:
        raise ValueError(
            f"forecasts_us is {{name: a time of each step}}; got {brief(forecasts_us)}"
        )
    rows = []
    worst = {}
    for name, times_us in forecasts_us.items():
        _check_times(times_us, brief(name), len(clock_us))
        off = [told / took - 1 for told, took in zip(times_us, clock_us, strict=True)]
        worst[f"{name}"] = max(map(abs, off))
        row = {say("forecast"): f"{name}", say("on the kept step"): off[-1]}
        rows.append(row | {say("worst of the others"): max(off[:-1], key=abs)})
    nearest = min(forecasts_us, key=lambda name: abs(forecasts_us[name][-1] - clock_us[-1]))
    kept = _of_kept(f"{nearest}", forecasts_us[nearest][-1], clock_us[-1])
    verdict = _refuted(worst, error) if error > HOLDS else _holding(worst)
    return table(rows, title=_both(kept, verdict), units=dict.fromkeys([*rows[0]][1:], "share"))


def _of_kept(name: str, told_us: float, took_us: float) -> str:
    """The sentence about the last step, and the forecast that is nearest to it."""
    told = {
        "took": format_us(took_us),
        "name": name,
        "told": format_us(told_us),
        "off": format_share(abs(told_us / took_us - 1)),
    }
    if told_us < took_us:
        return say(
            'The kept step took {took}. Nearest comes "{name}" with {told}, {off} too short.',
            **told,
        )
    return say(
        'The kept step took {took}. Nearest comes "{name}" with {told}, {off} too long.', **told
    )


def _refuted(worst: Mapping[str, float], error: float) -> str:
    """The sentences about a clock that can't show that a forecast holds, and what it refutes."""
    clock = say(
        "Two clockings of one step lie up to {error} apart, more than {limit}. So this clock can't "
        "show that a forecast holds.",
        error=format_share(error),
        limit=format_share(HOLDS),
    )
    missing = [name for name, off in worst.items() if off > SURE * error]
    if not missing:
        return _both(clock, say("None misses by more than twice that, so none is refuted either."))
    names = WORDS[language()]["comma"].join(missing)
    return _both(clock, say("More than twice that off, and so refuted: {names}.", names=names))


def _holding(worst: Mapping[str, float]) -> str:
    """The sentence about the forecasts that hold."""
    limit = format_share(HOLDS)
    holding = [name for name, off in worst.items() if off <= HOLDS]
    if not holding:
        return say("None is at most {limit} off on every step, so none holds.", limit=limit)
    names = WORDS[language()]["comma"].join(holding)
    return say(
        "Holding, with at most {limit} off on every step: {names}.", limit=limit, names=names
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
