"""The operators of a small function in the order in which they run, and whose results autograd
keeps: ``inside_picture`` draws them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.units import brief

INPUT = "x"
"""what the function is given"""
WIDTH = 8
"""numbers in each of its two rows"""


def recorded(way: Callable) -> list[tuple[str, bool]]:
    """Calls a function with a tensor of two rows of WIDTH numbers: that tensor as INPUT, then each
    operator whose result is as large, and whether autograd keeps it. Raises ValueError for what
    takes no such tensor."""
    if not callable(way):
        raise ValueError(f"a way is a function of a tensor; got {brief(way)}")
    given = torch.randn(2, WIDTH, requires_grad=True)
    watch = _Watch(given)
    kept: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        kept.add(_storage(tensor))
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), watch:
            way(given)
    except (RuntimeError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"a way takes a tensor of 2 x {WIDTH} numbers: {brief(error)}") from error
    first: dict[int, str] = {}
    for name, tensor in watch.made:
        first.setdefault(_storage(tensor), name)
    return [(name, storage in kept) for storage, name in first.items()]


class _Watch(TorchDispatchMode):
    """Holds what is made and as large as the input, so that no storage is used twice."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.made = [(INPUT, given)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.numel() == self.made[0][1].numel():
            self.made.append((func.overloadpacket.__name__, found))
        return found


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
