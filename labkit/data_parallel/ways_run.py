"""Ways of getting the gradients of a step, side by side: what each sends, and whether all come to
the same. Chapter 03 compares its own ways with DDP's."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from labkit.units import check_whole
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

MOST_RANKS = 8


def compare_ways(
    *ways: Callable, through: Callable | None = None, ranks: int = 2
) -> list[dict[str, object]]:
    """Rows for ``lab.table``, one for each way: its name, rank 0's all-reduces and its bytes on the
    wire, and the largest absolute difference of its gradients from those of the first way.

    In each of ``ranks`` ranks a way, or ``through(way)`` where that is given, returns a module that
    has gradients, and what ``traffic.count`` counted. Raises ValueError for no way, or for no
    number of ranks.
    """
    from labkit.launching import launcher
    from labkit.measure.apart import difference

    if not ways:
        raise ValueError("ways are compared with the first of them; got none")
    check_whole(1, MOST_RANKS, ranks=ranks)
    found = launcher.launch(functools.partial(_take, ways, through), ranks=ranks)[0]
    first, (first_grads, _) = next(iter(found.items()))
    head = say("from {name}", name=first)
    return [
        {"way": name, **counts, head: difference(grads, first_grads)}
        for name, (grads, counts) in found.items()
    ]


# --- in the ranks ---


def _take(
    ways: tuple[Callable, ...], through: Callable | None
) -> "dict[str, tuple[dict[str, Tensor], dict[str, int]]]":
    """Each way's name -> its gradients, and what it counted."""
    found = {}
    for way in ways:
        net, counted = through(way) if through else way()
        grads = {name: weight.grad for name, weight in net.named_parameters()}
        counts = {"all-reduces": counted.calls["all_reduce"], "wire_bytes": counted.sent_bytes}
        found[way.__name__] = grads, counts
    return found
