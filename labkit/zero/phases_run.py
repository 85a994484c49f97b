"""The phases of a training by hand as moments of a watch over memory."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

if TYPE_CHECKING:
    from labkit.measure.memory import Watch


@contextlib.contextmanager
def marked(seen: "Watch") -> Iterator[None]:
    """Makes moments of a watch while the block runs: "backward" begins with any
    ``Tensor.backward``, "update" with an optimizer's step, and all else is "forward"."""
    backward = torch.Tensor.backward

    def marking(tensor: torch.Tensor, *args: Any, **keywords: Any) -> None:
        seen.mark("backward")
        backward(tensor, *args, **keywords)

    hooks = (
        register_optimizer_step_pre_hook(lambda *_: seen.mark("update")),
        register_optimizer_step_post_hook(lambda *_: seen.mark("forward")),
    )
    torch.Tensor.backward = marking
    seen.mark("forward")
    try:
        yield
    finally:
        torch.Tensor.backward = backward
        for hook in hooks:
            hook.remove()
