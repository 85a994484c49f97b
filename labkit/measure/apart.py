"""How far two sets of tensors are apart."""

from collections.abc import Mapping
from reprlib import repr as brief
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def difference(ours: object, theirs: object) -> float:
    """The largest absolute difference between tensors that belong together: two tensors, two dicts
    with the same names (``state_dict()``), or two lists of the same length. 0.0 is equal.

    They may lie on different devices and have different types. Raises ValueError where names,
    lengths or shapes are not the same, and for what holds no tensor.
    """
    import torch

    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return _between(ours, theirs)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if ours.keys() != theirs.keys():
            apart = sorted(map(str, ours.keys() ^ theirs.keys()))
            raise ValueError(f"both have the same names; only one has {', '.join(apart[:4])}")
        pairs = [(ours[name], theirs[name]) for name in ours]
    elif isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            raise ValueError(f"both have as many tensors; got {len(ours)} and {len(theirs)}")
        pairs = list(zip(ours, theirs, strict=True))
    else:
        raise ValueError(
            "difference takes two tensors, two dicts or two lists of them; got "
            f"{brief(ours)} and {brief(theirs)}"
        )
    if not pairs:
        raise ValueError("difference takes at least one tensor of each; got none")
    return max(difference(mine, other) for mine, other in pairs)


def _between(ours: "Tensor", theirs: "Tensor") -> float:
    import torch

    if ours.shape != theirs.shape:
        raise ValueError(
            f"both have the same shape; got {tuple(ours.shape)} and {tuple(theirs.shape)}"
        )
    if not ours.numel():
        return 0.0
    mine = ours.detach().to("cpu", torch.float64)
    return (mine - theirs.detach().to("cpu", torch.float64)).abs().max().item()
