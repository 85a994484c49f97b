"""Chapter 06's programs beside data parallelism: what each ends with on its ranks, and how far
apart that is."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from labkit.measure.apart import difference
from labkit.tables import table
from labkit.words import say

if TYPE_CHECKING:
    from labkit.tables import Table


def after_three(program: Callable) -> dict[str, Any]:
    """What three steps leave on this rank: the last loss in fp32, and all weights end to end in
    fp32 and in fp64.

    ``program(num_steps)`` returns its losses, its model, its optimizer and, where layers are
    sharded, those too: they have ``gather()``.
    """
    import torch

    found: dict[str, Any] = {"program": program.__name__}
    before = torch.get_default_dtype()
    for name, dtype in (("fp64", torch.float64), ("fp32", torch.float32)):
        torch.set_default_dtype(dtype)
        try:
            losses, net, _, *sharded = program(3)
        finally:
            torch.set_default_dtype(before)
        for layer in chain.from_iterable(sharded):
            layer.gather()
        found["loss"] = losses[-1]
        found[name] = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    return found


def beside(right: Sequence[dict], ran: Sequence[dict]) -> "Table":
    """Rank 0's loss of two programs, and the largest difference of a weight on any rank, with
    ``after_three``'s results of all ranks."""
    row: dict[str, Any] = {each[0]["program"]: f"{each[0]['loss']:.5f}" for each in (right, ran)}
    for dtype in ("fp32", "fp64"):
        pairs = zip(right, ran, strict=True)
        apart = max(difference(mine[dtype], due[dtype]) for due, mine in pairs)
        row[say("largest difference, {dtype}", dtype=dtype)] = apart
    return table([row])
