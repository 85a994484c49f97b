"""The small picture of the running story: a plan before and after, side by side; memory of a GPU
against what it has, the time of a step, days, and money where a price is stated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.pictures.bar_groups import Bar, has, pieces
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend, moved
from labkit.pictures.style import clipped, text_px
from labkit.planner.models import training_tokens
from labkit.planner.plan import picture
from labkit.planner.plan.layout import has_own_recipe
from labkit.planner.plan.memory import PARTS
from labkit.planner.plan.picture import MEMORY_LOOKS
from labkit.planner.plan.plan import Plan
from labkit.shown import Shown
from labkit.units import check_real, format_bytes, format_us
from labkit.words import catalogue, sentence, speaking, spoken_in

_WORDS = catalogue(
    [
        ("before", "before"),
        ("after", "after"),
        ("heading", "Before and after"),
        ("memory", "memory of the fullest GPU"),
        ("step", "time of a step"),
        ("rate", "tokens/s"),
        ("days", "days of training"),
        ("cost", "cost"),
        ("over", "does not fit; a GPU lacks"),
        ("note", "Days for {} tokens, if nothing fails."),
        ("price", "{:,.2f} for an hour of a GPU."),
        ("prices", "{:,.2f} for an hour of a GPU before, {:,.2f} after."),
        ("plan", "plan"),
        ("many", "{:,.0f} B"),
        ("most", "{:,.4g} T"),
    ]
)
_MANY = {"en": 1e9, "zh": 1e8}  # what each language counts large numbers by
_PANEL_PX = 436.0
_BAR_TOP_PX = 94.0
_NUMBERS_PX = 168.0
_SIZE_PX = 19.0
Prices = tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Card(Shown):
    """Two plans beside each other. Shows itself in a notebook."""

    before: Plan
    """the plan there was"""
    after: Plan
    """the plan there is"""
    tokens: float | None
    """of the whole training; None: what the model was trained on, where that is published"""
    prices: Prices
    """of an hour of a GPU, before and after; None: no money is told"""

    def __repr__(self) -> str:
        return f"Card({self.before.title()} -> {self.after.title()})"

    def numbers(self, plan: Plan, price: float | None = None) -> dict[str, float | None]:
        """What the card says of a plan: memory, and where that fits the step, tokens per second,
        days and cost; None for what can't be said."""
        peak_bytes = plan.memory().peak_bytes
        over_bytes = max(0.0, peak_bytes - plan.cluster.device_bytes)
        found = {"peak_bytes": peak_bytes, "over_bytes": over_bytes}
        names = ("step_us", "tokens_per_s", "days", "cost")
        found |= dict.fromkeys(names)
        if over_bytes:
            return found
        found["step_us"] = plan.time().step_us
        found["tokens_per_s"] = plan.tokens_per_s()
        tokens = self.trained_on(plan)
        if tokens:
            found["days"] = plan.days(tokens)
        if tokens and price is not None:
            found["cost"] = plan.cost(tokens, price)
        return found

    def trained_on(self, plan: Plan) -> float | None:
        """Tokens of a plan's whole training."""
        return self.tokens or training_tokens(plan.shape.name)

    def _picture(self, language: str) -> Sketch:
        return speaking(language, lambda words: _drawn(self, words["code"]))


def card(
    before: Plan,
    after: Plan,
    *,
    tokens: float | None = None,
    price_per_gpu_hour: float | tuple[float, float] | None = None,
) -> Card:
    """Two plans side by side. ``tokens`` of the whole training (None: those that the model's paper
    names); money is told where a price is stated, or one for each plan. Raises ValueError for a
    layout that can't be."""
    given = price_per_gpu_hour
    prices = given if isinstance(given, tuple) else (given, given)
    if len(prices) != 2:
        raise ValueError(f"a price, or one before and one after; got {len(prices)}")
    for price in prices:
        check_real(0.0, 1e9, price_per_gpu_hour=0.0 if price is None else price)
    check_real(0.0, 1e18, tokens=tokens or 0.0)
    before.check()
    after.check()
    return Card(before=before, after=after, tokens=tokens, prices=prices)


def _drawn(told: Card, code: str) -> Sketch:
    """Two panels at one scale of memory."""
    say = _WORDS[code]
    plans = [(say["before"], told.before), (say["after"], told.after)]
    bars = [picture.held(name, plan, code) for name, plan in plans]
    most = max(max(sum(bar.parts.values()), bar.limit) for bar in bars)
    written = []
    for (_, plan), price in zip(plans, told.prices, strict=True):
        written.append(_written(told, plan, price, code))
    shapes: list[Shape] = []
    for number, bar in enumerate(bars):
        x = number * (WIDTH_PX - _PANEL_PX)
        # the badge names the stack
        titles = plans[number][1].titles(code, stack=False, recipe=_tells_recipe(plans))
        for shape in _panel(bar, titles, written[number], most):
            shapes.append(moved(shape, x, 0))
    keys, end_px = legend(_samples(bars, code), 0, _NUMBERS_PX + 36)
    told_by = picture.badge(plans, code)
    rows = []
    for bar, line in zip(bars, written, strict=True):
        rows.append((" ".join((bar.label, *bar.told, *line.values())),))
    return Sketch(
        shapes=(*shapes, *keys),
        height_px=end_px,
        heading=say["heading"],
        badge=told_by,
        summary=sentence(say["heading"], rows, told_by, code),
        table=_table(bars, plans, written, code),
        notes=tuple(_notes(told, code)),
        language=code,
    )


def _written(told: Card, plan: Plan, price: float | None, code: str) -> dict[str, str]:
    """What stands large under a plan's memory: name -> number."""
    say = _WORDS[code]
    found = told.numbers(plan, price)
    if found["over_bytes"]:
        return {say["over"]: format_bytes(found["over_bytes"])}
    written = {
        say["step"]: format_us(found["step_us"]),
        say["rate"]: f"{found['tokens_per_s']:,.0f}",
    }
    if found["days"] is not None:
        written[say["days"]] = days(found["days"])
    if found["cost"] is not None:
        written[say["cost"]] = f"{found['cost']:,.0f}"
    return written


def days(number: float) -> str:
    """A number of days as people say it."""
    return f"{number:,.0f}" if number >= 20 else f"{number:.1f}"


def tokens_told(number: float, language: str | None = None) -> str:
    """A number of tokens, where there are many by what the language counts them."""
    code = spoken_in(language)
    if number < 1e10:
        return f"{number:,.0f}"
    if number >= 1e12:
        return _WORDS[code]["most"].format(number / 1e12)
    return _WORDS[code]["many"].format(number / _MANY[code])


def _notes(told: Card, code: str) -> list[str]:
    """For how many tokens days are told, and at which price money."""
    say = _WORDS[code]
    tokens = dict.fromkeys((told.trained_on(told.before), told.trained_on(told.after)))
    counts = [tokens_told(each, code) for each in tokens if each]
    if not counts:
        return []
    notes = [say["note"].format(" / ".join(counts))]
    before, after = told.prices
    if before is not None and before == after:
        notes.append(say["price"].format(before))
    elif before is not None:
        notes.append(say["prices"].format(before, after))
    return notes


def _samples(bars: Sequence[Bar], code: str) -> list[tuple[tuple[Box], str]]:
    """The legend's entries."""
    found = [part for part in PARTS if has(bars, part)]
    words = picture.WORDS[code]
    return [((Box(0, -7, 22, 14, *MEMORY_LOOKS[part]),), words[part]) for part in found]


def _table(
    bars: Sequence[Bar],
    plans: Sequence[tuple[str, Plan]],
    written: Sequence[Mapping[str, str]],
    code: str,
) -> tuple[tuple[str, ...], ...]:
    """A row for each number, a column for each plan."""
    say = _WORDS[code]
    rows = [("", *(name for name, _ in plans))]
    told = [plan.titles(code, recipe=_tells_recipe(plans)) for _, plan in plans]
    rows.append((say["plan"], *map(", ".join, told)))
    rows.append((say["memory"], *(", ".join(bar.told) for bar in bars)))
    for name in dict.fromkeys([*written[0], *written[1]]):
        rows.append((name, *(line.get(name, "") for line in written)))
    return tuple(rows)


def _tells_recipe(plans: Sequence[tuple[str, Plan]]) -> bool:
    """Whether one plan's recipe is not its usual one: then both say theirs."""
    return any(has_own_recipe(plan.layout) for _, plan in plans)


def _panel(bar: Bar, titles: tuple[str, str], written: dict[str, str], most: float) -> list[Shape]:
    """One plan: its title in two lines, its memory, its numbers."""
    machine, layout = titles
    shapes: list[Shape] = [
        Words(0, 46, bar.label, opacity=0.8),
        Words(52, 46, clipped(machine, _PANEL_PX - 56), bold=True),
        Words(52, 63, clipped(layout, _PANEL_PX - 56)),
    ]
    scale = _PANEL_PX / most
    shapes += pieces(bar, MEMORY_LOOKS, format_bytes, 0, _BAR_TOP_PX, scale)
    at = bar.limit * scale
    anchor = "end" if at > _PANEL_PX / 2 else "start"
    shapes.append(Words(at, _BAR_TOP_PX - 9, bar.limit_name, anchor, 11))
    first, second = bar.told
    shapes.append(Words(0, _BAR_TOP_PX + 44, first, bold=True))
    if sum(bar.parts.values()) <= bar.limit:  # what is over stands below, large
        shapes.append(Box(0, _BAR_TOP_PX, at, bar.thick_px))
        shapes.append(Words(150, _BAR_TOP_PX + 44, second))
    return shapes + _large(written)


def _large(written: Mapping[str, str]) -> list[Shape]:
    """Numbers beside each other under their names, as large as there is room for."""
    room_px = _PANEL_PX / sum(_wide_px(*each, _SIZE_PX) for each in written.items())
    size_px = max(12.0, min(_SIZE_PX, _SIZE_PX * room_px))
    shapes: list[Shape] = []
    x = 0.0
    for name, value in written.items():
        shapes.append(Words(x, _NUMBERS_PX, name, size_px=11, opacity=0.8))
        shapes.append(Words(x, _NUMBERS_PX + 22, value, size_px=size_px, bold=True))
        x += _wide_px(name, value, size_px)
    return shapes


def _wide_px(name: str, value: str, size_px: float) -> float:
    """What a number and its name take, and the gap after them."""
    return max(text_px(name, 11), text_px(value, 1.1 * size_px)) + 1.2 * size_px
