"""Which updates the numbers of a format let through."""

from typing import Any


def survives(weights: Any, rate: float, dtype: Any) -> Any:
    """Whether a weight kept in ``dtype`` moves when ``rate`` is taken off it: a tensor of
    bools, one for each of ``weights``, a tensor that is rounded to ``dtype`` first.

    Raises ValueError for a rate that is no finite number.
    """
    if not abs(rate) < float("inf"):
        raise ValueError(f"rate is a finite number; got {rate!r}")
    kept = weights.to(dtype).double()
    return (kept - rate).to(dtype).double() != kept
