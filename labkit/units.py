"""Numbers with units, as people read them: 12.3 ms, 1.5 GB. Base 10 throughout (1 kB = 1000 bytes),
as the field reports them. And numbers as people give them: what is no number that can be meant is
refused in one place."""

from collections.abc import Iterable
from numbers import Integral, Real
from reprlib import repr as brief

MOST_RANKS = 1 << 20
"""More than anybody has: the bound of what is only reckoned with."""
_TIMES = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_us(time_us: float) -> str:
    """A duration in microseconds as text with three significant digits, e.g. ``12.3 ms``."""
    for factor, unit in _TIMES:
        if abs(time_us) >= factor:
            return f"{_three(time_us / factor)} {unit}"
    return f"{_three(time_us)} us"


def format_bytes(num_bytes: float) -> str:
    """A size in bytes as text with three significant digits, base 10, e.g. ``1.50 GB``."""
    for factor, unit in _BYTES:
        if abs(num_bytes) >= factor:
            return f"{_three(num_bytes / factor)} {unit}"
    return f"{num_bytes:.0f} B"


def format_share(share: float) -> str:
    """A fraction as a percentage with one decimal, e.g. ``0.2727`` as ``27.3 %``."""
    return f"{100 * share:.1f} %"


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
