"""The picture of long sequences at a few settings, with its reading: ``benchmarks/truth.py``."""

from collections.abc import Callable, Iterator
from functools import partial

from browser import byte_readings
from browser.exhibits import Case

from labkit.long_context import Attention, picture


def _tables() -> Iterator[Case]:
    for attention, number in (
        (Attention(ranks=4, balanced=False), 3),
        (Attention(ranks=8, balanced=False), 2),
        (Attention(ranks=8), 7),
        (Attention(ranks=2, causal=False), 1),
        (Attention(ranks=4, way="ulysses"), 0),
    ):
        drawn = picture.table(attention, number)
        works = attention.rounds()[number].tolist()
        yield Case(drawn, partial(byte_readings.rings, drawn=drawn, works=works))


RINGS: dict[str, Callable[[], Iterator[Case]]] = {"long_context.table": _tables}
"""Cases by the function that makes the picture."""
