"""Chapter 06's programs beside data parallelism: what each ends with on its ranks, how far apart
that is, and what they hold."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from labkit.measure.apart import difference
from labkit.tables import table
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from labkit.tables import Table


def after_three(program: Callable) -> dict[str, Any]:
    """What three steps leave on this rank: the last loss in fp32, all weights end to end in fp32
    and in fp64, and "whole_bytes" of the last step, see ``_resized``.

    ``program(num_steps)`` returns its losses, its model, its optimizer and, where layers are
    sharded, those too: they have ``gather()``.
    """
    import torch

    found: dict[str, Any] = {"program": program.__name__}
    before = torch.get_default_dtype()
    for name, dtype in (("fp64", torch.float64), ("fp32", torch.float32)):
        torch.set_default_dtype(dtype)
        try:
            with _resized() as whole_bytes:
                losses, net, _, *sharded = program(3)
        finally:
            torch.set_default_dtype(before)
        for layer in chain.from_iterable(sharded):
            layer.gather()
        found["loss"], found["whole_bytes"] = losses[-1], whole_bytes
        found[name] = torch.nn.utils.parameters_to_vector(net.parameters()).detach()
    return found


@contextlib.contextmanager
def _resized() -> "Iterator[list[int]]":
    """A list that has, when the block ends, the bytes of all storages that the block has resized,
    together, after each resize before its last optimizer step (and after the one before that)."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    resize = torch.UntypedStorage.resize_
    sizes: dict[int, int] = {}
    step: list[int] = []
    last: list[int] = []

    def resized(storage: "torch.UntypedStorage", num_bytes: int) -> None:
        resize(storage, num_bytes)
        sizes[storage._cdata] = num_bytes
        step.append(sum(sizes.values()))

    def update(*_: Any) -> None:
        last[:] = step
        step.clear()

    hook = register_optimizer_step_pre_hook(update)
    torch.UntypedStorage.resize_ = resized
    try:
        yield last
    finally:
        torch.UntypedStorage.resize_ = resize
        hook.remove()


def live_bytes(program: Callable) -> int:
    """The bytes of all storages that are alive on this rank after ``program(2)``, while what it
    returns is."""
    from labkit.measure import memory

    with memory.watch() as seen:
        kept = program(2)
        gc.collect()
        num_bytes = seen.live_bytes
    del kept
    return num_bytes


def most_gradient_bytes(program: Callable) -> int:
    """The most bytes that gradients have on this rank during the backwards of ``program(2)``, each
    storage once: those in ``.grad`` of the weights that the forward uses and of what the optimizer
    updates, with the one that arises. A copy that is in no ``.grad`` is not seen."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    known: set = set()
    sizes = [0]

    def count(gradient: "Tensor") -> None:
        gradients = (gradient, *(each.grad for each in known if each.grad is not None))
        storages = (each.untyped_storage() for each in gradients)
        sizes.append(sum({each._cdata: each.nbytes() for each in storages}.values()))

    def forward(module: "nn.Module", *_: Any) -> None:
        for weight in module.parameters(recurse=False):
            if weight not in known:
                known.add(weight)
                weight.register_hook(count)

    def update(optimizer: "Optimizer", *_: Any) -> None:
        known.update(*(group["params"] for group in optimizer.param_groups))

    hooks = register_module_forward_pre_hook(forward), register_optimizer_step_pre_hook(update)
    try:
        program(2)
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)


def beside(right: Sequence[dict], ran: Sequence[dict]) -> "Table":
    """Rank 0's loss of two programs, and the largest difference of a weight on any rank, with
    ``after_three``'s results of all ranks."""
    row: dict[str, Any] = {}
    for each in (right, ran):
        row[say("loss, {program}", program=each[0]["program"])] = f"{each[0]['loss']:.5f}"
    for dtype in ("fp32", "fp64"):
        pairs = zip(right, ran, strict=True)
        apart = max(difference(mine[dtype], due[dtype]) for due, mine in pairs)
        row[say("weights differ by at most, {dtype}", dtype=dtype)] = apart
    return table([row])
