"""How far apart the numbers of a format lie."""

from typing import Any


def gaps(info: Any) -> dict[float, float]:
    """Each power of two between 2^-30 and 2^20 that a format has, and the gap above it.

    ``info`` is ``torch.finfo(dtype)``. Below its smallest normal number a format's gap shrinks no
    further. Raises ValueError for what has no eps, such as the info of a type of whole numbers.
    """
    if not hasattr(info, "eps"):
        raise ValueError(f"info is torch.finfo of a floating point type; got {info!r}")
    smallest = info.smallest_normal * info.eps
    powers = [2.0**power for power in range(-30, 21)]
    return {x: max(x * info.eps, smallest) for x in powers if smallest <= x <= info.max}
