"""Numbers with units, as people read them: 12.3 ms, 1.5 GB. Base 10 throughout (1 kB = 1000 bytes),
as the field reports them. And numbers as people give them: what is no number that can be meant is
refused in one place."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from reprlib import repr as brief

MOST_RANKS = 1 << 20
"""More than anybody has: the bound of what is only reckoned with."""
_WORDS = ("bytes", "share", "ratio")  # units that are names by themselves
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_us(time_us: float) -> str:
    """A duration in microseconds as text with three significant digits, e.g. ``12.3 ms``."""
    for factor, unit in _TIMES:
        if abs(time_us) >= factor:
            return f"{_three(time_us / factor)} {unit}"
    return f"{_three(time_us)} us"


def format_days(days: float) -> str:
    """A long duration in days as text with three significant digits: hours (h) below one day,
    years (yr) from one on."""
    if abs(days) < 1:
        return f"{_three(24 * days)} h"
    return f"{_three(days)} d" if abs(days) < 365 else f"{_three(days / 365)} yr"


def format_bytes(num_bytes: float) -> str:
    """A size in bytes as text with three significant digits, base 10, e.g. ``1.50 GB``."""
    for factor, unit in _BYTES:
        if abs(num_bytes) >= factor:
            return f"{_three(num_bytes / factor)} {unit}"
    return f"{num_bytes:.0f} B"


def format_share(share: float) -> str:
    """A fraction as a percentage with one decimal, e.g. ``0.2727`` as ``27.3 %``."""
    return f"{round(100 * share, 1) + 0.0:.1f} %"  # + 0.0: no "-0.0"


UNITS: dict[str, Callable[[float], str]] = {
    "us": format_us,
    "ms": lambda time_ms: format_us(1e3 * time_ms),
    "s": lambda time_s: format_us(1e6 * time_s),
    "days": format_days,
    "bytes": format_bytes,
    "kb": lambda num_kb: format_bytes(1e3 * num_kb),
    "mb": lambda num_mb: format_bytes(1e6 * num_mb),
    "gb": lambda num_gb: format_bytes(1e9 * num_gb),
    "share": format_share,
    "ratio": lambda ratio: f"{_three(ratio)}x",
}
"""How a number of each unit is written, by the word that its name ends with: ``compute_us``."""


def unit_of(name: str) -> str:
    """The unit that a number's name ends with: "us" of "compute_us", "share" of "share"; "" for
    none."""
    if not isinstance(name, str):
        raise ValueError(f"a column's name is a word; got {brief(name)}")
    last = name.rpartition("_")[2].lower()
    return last if last in UNITS and (last != name.lower() or last in _WORDS) else ""


def format_number(number: float, unit: str = "") -> str:
    """A number as people read it: with its unit (a key of ``UNITS``), or bare: whole ones in full,
    others with three significant digits."""
    if unit:
        check_word(unit, UNITS, "a unit")
    if number != number or number in (math.inf, -math.inf):
        return str(number).replace("inf", "∞")
    if unit:
        return UNITS[unit](number)
    if isinstance(number, Integral) or abs(number) >= 1000:
        return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.0f}"
    return f"{number:.3g}"


def alike(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows whose numbers stand under each other: where one of a column has a comma, 13,900, each
    from a thousand on has one: 1,144. Raises ValueError for what is no list of rows of texts."""
    given = isinstance(rows, Sequence) and all(map(_is_row, rows))
    if not given or len(set(map(len, rows))) > 1:
        raise ValueError(f"rows are lists of as many texts each; got {brief(rows)}")
    columns = []
    for column in zip(*rows, strict=True):
        if any(re.fullmatch(r"-?\d+(,\d{3})+", text) for text in column):
            column = [re.sub(r"^(-?\d)(\d{3})$", r"\1,\2", text) for text in column]
        columns.append(column)
    return list(zip(*columns, strict=True)) if columns else [()] * len(rows)


def _is_row(texts: object) -> bool:
    return isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in texts)


def check_whole(least: int = 1, most: int = 10**15, /, **numbers: int) -> None:
    """Raises ValueError for a number that is not whole, or not from ``least`` to ``most``. Keywords
    name numbers."""
    for name, number in numbers.items():
        if not (isinstance(number, Integral) and least <= number <= most):
            raise ValueError(
                f"{name} is a whole number from {least} to {most:,}; got {brief(number)}"
            )


def check_real(least: float = 0.0, most: float = 1e18, /, **numbers: float) -> None:
    """Raises ValueError for a number that is not from ``least`` to ``most``: nan and infinity among
    others."""
    for name, number in numbers.items():
        if not (isinstance(number, Real) and least <= number <= most):
            raise ValueError(f"{name} is a number from {least:g} to {most:g}; got {brief(number)}")


def check_word(given: object, words: Iterable[str], what: str) -> None:
    """Raises ValueError for a word that is none of some."""
    if not isinstance(given, str) or given not in words:
        raise ValueError(f"{what} is one of {', '.join(words)}; got {brief(given)}")


def _three(number: float) -> str:
    if number == 0 or abs(number) >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"


def padded(text: str, columns: int, *, left: bool = False) -> str:
    """A text and blanks up to so many columns of a terminal, where a Chinese character takes two;
    the blanks stand before it if ``left``."""
    check_whole(0, 10_000, columns=columns)
    blanks = " " * (columns - columns_of(text))
    return blanks + text if left else text + blanks


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(2 if ord(character) > 0x2E80 else 1 for character in text)
