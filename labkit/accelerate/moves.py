"""How far training moved the weights of several runs, and into which directions."""

import math
from collections.abc import Mapping
from reprlib import repr as brief
from typing import TYPE_CHECKING

from labkit.measure.apart import difference

if TYPE_CHECKING:
    from torch import Tensor


def moved(before: dict, runs: dict[str, dict]) -> list[dict]:
    """A row for each of several runs, whose weights (tensors by name) ended as given: its name as
    ``run``, the ``length`` of the way from the weights ``before``, and as ``degrees`` the angle
    between this way and that of the first run.

    Raises ValueError where the weights have not the names and shapes of ``before``, and for a run
    that has not moved.
    """
    if not isinstance(before, Mapping) or not isinstance(runs, dict):
        raise ValueError(
            f"moved takes weights and named runs of them; got {brief(before)} and {brief(runs)}"
        )
    ways = {}
    for name, weights in runs.items():
        difference(weights, before)  # refuses what does not belong together
        way = _flat(weights) - _flat(before)
        if not way.norm() > 0:
            raise ValueError(f"a run that moves its weights has a direction; got {name!r}")
        ways[name] = way
    first = next(iter(ways.values()), None)
    return [
        {"run": name, "length": way.norm().item(), "degrees": _degrees(way, first)}
        for name, way in ways.items()
    ]


def _flat(weights: "Mapping[str, Tensor]") -> "Tensor":
    import torch

    parts = [weights[name].detach().to("cpu", torch.float64).flatten() for name in sorted(weights)]
    return torch.cat(parts)


def _degrees(way: "Tensor", other: "Tensor") -> float:
    """The angle between two vectors, to a tenth of a degree: exact for small ones, too."""
    chord = (way / way.norm() - other / other.norm()).norm().item()
    return round(math.degrees(2 * math.asin(min(1.0, chord / 2))), 1)
