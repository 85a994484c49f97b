"""What a training of the chapter counts beside its work: weights that end where they began, weights
that have just moved, and the memory of a step before and in its update."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, optim

__all__ = ["Moved", "Peaks", "Still", "beside"]

Told = tuple[Tensor, float, float]
"""of one run: the losses, of shape (steps,), and the shares that ``Still`` counts"""


class Still:
    """Counts, among the weights of an optimizer that got a gradient, those that end where they
    began. Make it before the first step."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._weights: list[Tensor] = []
        for group in optimizer.param_groups:
            self._weights += group["params"]
        self._began = _flat(self._weights)
        self._reached = torch.zeros_like(self._began, dtype=torch.bool)
        self._hook = optimizer.register_step_pre_hook(self._look)

    def _look(self, *_: object) -> None:
        grads = [
            torch.zeros_like(each) if each.grad is None else each.grad for each in self._weights
        ]
        self._reached |= _flat(grads) != 0

    def shares(self) -> tuple[float, float]:
        """Of all weights, the share that got a gradient other than zero in any step; and of these
        the share that are the number they were. Raises ValueError where none got one."""
        if not self._reached.any():
            raise ValueError("no weight got a gradient: take a step first")
        still = (_flat(self._weights) == self._began)[self._reached]
        return self._reached.float().mean().item(), still.float().mean().item()


class Moved:
    """Says whether any of some weights has changed."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = list(weights)
        self._before = _flat(self._weights)

    def now(self) -> bool:
        """Whether any has changed since the last call, or since it was made."""
        before = self._before
        self._before = _flat(self._weights)
        return not torch.equal(before, self._before)


class Peaks:
    """The most bytes that this rank's device has allocated: until the last step's update began,
    and in it. Needs a device that counts them (a GPU, a pretend device)."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self.before_bytes = 0
        """until the update began"""
        self.update_bytes = 0
        """in the update"""
        self._hooks = (
            optimizer.register_step_pre_hook(self._begins),
            optimizer.register_step_post_hook(self._ends),
        )
        torch.accelerator.reset_peak_memory_stats()

    def _begins(self, *_: object) -> None:
        self.before_bytes = _highest_bytes()

    def _ends(self, *_: object) -> None:
        self.update_bytes = _highest_bytes()


def beside(
    runs: Mapping[str, Sequence[Told]], base: str
) -> tuple[dict[str, dict[int, float]], list[tuple]]:
    """Runs of several seeds beside those called ``base``: {name: {step: mean loss above base's}} of
    the others; and of all a row with the name, each seed's last loss above base's (four decimals),
    and the means of both shares."""
    lines = {}
    rows = []
    of_base = _losses(runs[base])
    for name, told in runs.items():
        above = _losses(told) - of_base
        if name != base:
            lines[name] = dict(enumerate(above.mean(0).tolist()))
        shares = torch.tensor([each for _, *each in told]).mean(0).tolist()
        last = [round(each, 4) for each in above[:, -1].tolist()]
        rows.append((name, *last, *shares))
    return lines, rows


def _losses(told: Sequence[Told]) -> Tensor:
    """The losses of some runs, of shape (runs, steps)."""
    return torch.stack([losses for losses, *_ in told])


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Many tensors as one long copy."""
    return torch.cat([each.detach().flatten() for each in tensors])


def _highest_bytes() -> int:
    """The peak since the last call; the next one begins."""
    found = torch.accelerator.max_memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    return found
