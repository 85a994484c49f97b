"""How far apart the numbers of a format lie, and which updates they let through."""

from typing import Any


def gaps(info: Any) -> dict[float, float]:
    """The gap above a number, as a staircase: at each power of two between 2^-30 and 2^20 that a
    format has, and at the last number before the next one.

    ``info`` is ``torch.finfo(dtype)``. Below its smallest normal number a format's gap shrinks no
    further. Raises ValueError for what has no eps, such as the info of a type of whole numbers.
    """
    if not hasattr(info, "eps"):
        raise ValueError(f"info is torch.finfo of a floating point type; got {info!r}")
    smallest = info.smallest_normal * info.eps
    powers = [2.0**power for power in range(-30, 21)]
    found = {x: max(x * info.eps, smallest) for x in powers if smallest <= x <= info.max}
    ends = {min(2 * x - gap, info.max): gap for x, gap in found.items()}
    return dict(sorted((found | ends).items()))


def survives(weights: Any, rate: float, dtype: Any) -> Any:
    """Whether a weight kept in ``dtype`` moves when ``rate`` is taken off it: a tensor of
    bools, one for each of ``weights``, a tensor that is rounded to ``dtype`` first.

    Raises ValueError for a rate that is no finite number.
    """
    if not abs(rate) < float("inf"):
        raise ValueError(f"rate is a finite number; got {rate!r}")
    kept = weights.to(dtype).double()
    return (kept - rate).to(dtype).double() != kept
