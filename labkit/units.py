"""Numbers with units, as people read them: 12.3 ms, 1.5 GB. Base 10 throughout (1 kB = 1000 bytes), as the field
reports them."""

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


def _three(number: float) -> str:
    if number == 0 or abs(number) >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2f}"
