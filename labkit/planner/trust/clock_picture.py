"""Steps of plans beside steps that a clock has read: bars of one scale."""

from collections.abc import Mapping
from dataclasses import replace

from labkit.pictures.bar_groups import Bar, Bill
from labkit.pictures.sketch import Sketch, said
from labkit.planner.plan import picture
from labkit.planner.plan.picture import TIME_LOOKS, Plans
from labkit.units import check_real, check_word, format_us
from labkit.words import catalogue

_WORDS = catalogue(
    [
        ("badge", "{}; measured"),
        ("clock", "by the clock"),
    ]
)
LOOKS = TIME_LOOKS | {"rest": ("#c3cad6", "")}
LOOKS["optimizer"] = LOOKS.pop("optimizer")  # the last, as in a plan's bar
"""Colour and hatch of each part of a step; "rest" is all that was not told apart."""


def clock_bars(
    plans: Plans, measured: Mapping[str, Bill], *, language: str | None = None
) -> Sketch:
    """What ``time_bars`` draws of plans, and measured steps below, {name: {part: microseconds}}: a
    part is one of ``steptime.PARTS`` or "rest". Where every measured step tells its update apart,
    its time stands beside each bar. Raises ValueError for a plan whose layout can't be, and for
    what is no measured step."""
    _check(measured)
    planned = picture.time_bars(plans, language=language)
    code = planned.language
    say = _WORDS[code]
    named = plans.items() if isinstance(plans, Mapping) else plans
    bars = [picture.spent(said(name, code), plan, code) for name, plan in named]
    for name, parts in measured.items():
        bars.append(Bar(name, parts, (format_us(sum(parts.values())), say["clock"])))
    if all("optimizer" in parts for parts in measured.values()):
        bars = [_with_update(bar, code) for bar in bars]
    shapes, end_px = picture.drawn(bars, LOOKS, code, format_us)
    badge = say["badge"].format(planned.badge)
    return replace(
        planned,
        shapes=tuple(shapes),
        height_px=end_px,
        numbers=planned.numbers if len(plans) > 1 else (),  # of one plan, and not of the clock
        badge=badge,
        summary=picture.in_words(planned.heading, bars, badge, code),
        table=picture.in_rows(bars, tuple(LOOKS), code, format_us),
    )


def _with_update(bar: Bar, code: str) -> Bar:
    """The same, the update's time below the step's: the part may be too narrow for its number."""
    update = f"{picture.WORDS[code]['optimizer']} {format_us(bar.parts['optimizer'])}"
    return bar._replace(told=(bar.told[0], update))


def _check(measured: Mapping[str, Bill]) -> None:
    """Raises ValueError for what is no step by parts."""
    if not isinstance(measured, Mapping) or not measured:
        raise ValueError(f"measured is {{name: {{part: microseconds}}}}; got {measured!r:.80}")
    for name, parts in measured.items():
        if not isinstance(name, str) or not isinstance(parts, Mapping) or not parts:
            raise ValueError(
                f"a measured step has a name and is {{part: microseconds}}; got {name!r:.80}: "
                f"{parts!r:.80}"
            )
        for part, time_us in parts.items():
            check_word(part, LOOKS, "a part of a step")
            check_real(0.0, 1e15, **{f"{part} of {name}": time_us})
