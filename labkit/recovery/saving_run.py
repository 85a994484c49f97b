"""A small FSDP model that trains and saves, and a clock that tells where the time goes: in steps,
in the gap after a save, in the thread. Called in ranks, drawn in the notebook."""

import contextlib
import time
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from labkit import model
from labkit.recovery import checkpoint
from labkit.recovery.strip_picture import Strip
from labkit.words import both

__all__ = ["Clock", "build", "one_step", "typical"]


def build(dim: int = 128) -> tuple[nn.Module, Optimizer]:
    """A transformer of one layer whose weights are sharded over all ranks, and its Adam."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = model.Transformer(1, dim, 4, max_len=32)
    for layer in [*net.layers, net]:
        fully_shard(layer)
    return net, torch.optim.Adam(net.parameters(), lr=0.001)


def one_step(net: nn.Module, optimizer: Optimizer, seed: int) -> None:
    """Trains on the four passages of 32 tokens that the seed draws."""
    tokens, targets = model.story_tokens(4, 32, seed=seed)
    optimizer.zero_grad()
    logits = net(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    optimizer.step()


class Clock:
    """When this rank's steps and its asynchronous saves began and ended, in seconds."""

    def __init__(self) -> None:
        self.steps_s: list[tuple[float, float]] = []
        self.saves: dict[int, dict[str, tuple[float, float]]] = {}
        """the step before a save -> its parts, as ``checkpoint.parts_s`` has them"""
        self.end_s = 0.0
        self._last = checkpoint.parts_s()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Around a step of training."""
        self._note()
        began_s = time.perf_counter()
        yield
        self.steps_s.append((began_s, time.perf_counter()))

    def stop(self) -> "Clock":
        """When the last step is done, and the last save."""
        self._note()
        self.end_s = time.perf_counter()
        return self

    def _note(self) -> None:
        parts = checkpoint.parts_s()
        if parts is not self._last and self.steps_s:
            self.saves[len(self.steps_s) - 1] = self._last = parts

    @property
    def trained_s(self) -> float:
        """Seconds in steps."""
        return sum(end_s - began_s for began_s, end_s in self.steps_s)

    @property
    def still_s(self) -> float:
        """Seconds between the steps, and after the last one."""
        return self.total_s - self.trained_s

    @property
    def total_s(self) -> float:
        """Seconds from the first step's begin to the end."""
        return self.end_s - self.steps_s[0][0]

    def gaps_s(self) -> dict[int, float]:
        """The step before a save -> the seconds until the next step begins."""
        nexts = {step: step + 1 for step in self.saves if step + 1 < len(self.steps_s)}
        return {step: self.steps_s[nxt][0] - self.steps_s[step][1] for step, nxt in nexts.items()}


def typical(clocks: Sequence[Clock]) -> Strip:
    """Of all the asynchronous saves, the one whose gap is the median (of two, the shorter): its
    steps, what training waited for, what the thread did. Raises ValueError where there is none."""
    gaps = sorted(
        (
            (gap_s, which, step)
            for which, each in enumerate(clocks)
            for step, gap_s in each.gaps_s().items()
        )
    )
    if not gaps:
        raise ValueError("a typical save needs one between two steps; these clocks have none")
    _, which, step = gaps[(len(gaps) - 1) // 2]
    clock = clocks[which]
    parts = clock.saves[step]
    later = [other for other in clock.saves if other > step]
    steps = range(step, min([*later, len(clock.steps_s) - 1]) + 1)
    zero_s = clock.steps_s[step][0]

    def span(name: object, begin_s: float, end_s: float) -> tuple:
        return name, begin_s - zero_s, end_s - zero_s

    waited = [span(both("look up"), parts["list"][0], parts["list"][1])]
    if parts["previous"][1] - parts["previous"][0] > 0.001:
        waited.insert(0, span(both("the save before"), *parts["previous"]))
    waited.append(span(both("copy"), *parts["copy"]))
    thread = [span(both("write"), *parts["write"]), span(both("seal"), *parts["seal"])]
    return Strip(
        title=both("The save whose gap is the median"),
        badge=both("measured"),
        lanes=[
            (both("lane|steps"), [span(str(each), *clock.steps_s[each]) for each in steps]),
            (both("training waits"), waited),
            (both("the thread"), thread),
        ],
    )
