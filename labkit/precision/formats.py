"""How far apart the numbers of a format lie."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def gaps(dtype: "torch.dtype") -> dict[float, float]:
    """Each power of two between 2^-30 and 2^20 that a format has, and the gap above it.

    Below its smallest normal number a format's gap shrinks no further. Raises ValueError for a
    type that has no fraction, such as int32.
    """
    import torch

    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype is a floating point type of torch; got {dtype!r}")
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    powers = [2.0**power for power in range(-30, 21)]
    return {x: max(x * info.eps, smallest) for x in powers if smallest <= x <= info.max}
