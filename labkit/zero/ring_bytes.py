"""What a ring would send for the bytes that a step has handed to its collectives."""

from collections.abc import Mapping
from reprlib import repr as brief

from labkit.units import check_whole

_TIMES = {"all_reduce": 2, "reduce_scatter": 1, "reduce": 1, "broadcast": 1}
"""how often the bytes handed go around, but for the factor (N - 1)/N"""


def on_a_ring(handed: Mapping[str, int], ranks: int) -> int:
    """Bytes that a rank sends on a ring, on average, without the factor (N - 1)/N that all of these
    collectives share.

    ``handed`` has bytes by collective, as ``traffic.count`` tells them; an all-gather is handed one
    part of N. Raises ValueError for a collective whose ring has another factor.
    """
    check_whole(1, 10**6, ranks=ranks)
    times = _TIMES | {"all_gather": ranks}
    unknown = [call for call in handed if call not in times]
    if unknown:
        raise ValueError(f"on a ring there are {', '.join(times)}; got {brief(unknown)}")
    return sum(times[call] * num_bytes for call, num_bytes in handed.items())


def in_models(handed: Mapping[str, int], model_bytes: int, ranks: int) -> dict[str, float]:
    """What a step has handed to each collective, in multiples of the model of so many bytes, to two
    digits; an all-gather counts as the whole that it puts together. What is less than 0.005 of the
    model, such as a norm, is left out. Raises ValueError for a number that isn't one of bytes."""
    check_whole(1, 10**15, model_bytes=model_bytes)
    check_whole(1, 10**6, ranks=ranks)
    if not _is_column(handed):
        raise ValueError(f"a step is a dict of bytes by collective; got {brief(handed)}")
    times = {"all_gather": ranks}
    found = {
        call: round(times.get(call, 1) * num_bytes / model_bytes, 2)
        for call, num_bytes in handed.items()
    }
    return {call: models for call, models in found.items() if models}


def in_rows(columns: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Columns of numbers by row, as a row of numbers by column for each name, in the order in which
    the names come; a row lacks the columns that lack its name. Raises ValueError for what is no
    column."""
    if not isinstance(columns, Mapping) or not all(map(_is_column, columns.values())):
        raise ValueError(f"a column is a dict of numbers by row; got {brief(columns)}")
    rows: dict[str, dict[str, float]] = {}
    for column, numbers in columns.items():
        for name, number in numbers.items():
            rows.setdefault(name, {})[column] = number
    return rows


def _is_column(sizes: object) -> bool:
    """Whether this is a dict of numbers from 0 up."""
    if not isinstance(sizes, Mapping):
        return False
    return all(isinstance(size, int | float) and 0 <= size < 1e300 for size in sizes.values())
