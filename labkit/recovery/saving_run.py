"""A small FSDP training that saves, and tells where its time goes: in steps, in the gap after a
save, in the thread. Trains in ranks; its times are drawn in the notebook."""

import time
from dataclasses import dataclass, field

import torch
from torch import nn

from labkit import model
from labkit.pictures.sketch import Sketch
from labkit.recovery import checkpoint
from labkit.recovery.strip_picture import Strip
from labkit.shown import Shown
from labkit.words import both

__all__ = ["Times", "Training"]

Parts = dict[str, tuple[float, float]]


@dataclass(kw_only=True)
class Times(Shown):
    """When this rank's steps and its asynchronous saves began and ended, in seconds. Shows the
    first save between two steps in a notebook: the steps beside it, what training waited for, what
    the thread did."""

    steps_s: list[tuple[float, float]] = field(default_factory=list)
    """begin and end of each step"""
    saves: dict[int, Parts] = field(default_factory=dict)
    """the step before a save -> its parts, as ``checkpoint.parts_s`` has them"""
    end_s: float = 0.0
    """when the last step was done, and the last save"""

    def __repr__(self) -> str:
        return f"Times({len(self.steps_s)} steps, {len(self.saves)} saves)"

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

    def strip(self) -> Strip:
        """The picture. Raises ValueError where no save lies between two steps."""
        within = [step for step in self.saves if step + 1 < len(self.steps_s)]
        if not within:
            raise ValueError("a picture needs a save between two steps; these times have none")
        step = within[0]
        parts = self.saves[step]
        last = min([*(other for other in self.saves if other > step), len(self.steps_s) - 1])
        zero_s = self.steps_s[step][0]

        def span(name: object, edges_s: tuple[float, float]) -> tuple:
            return name, edges_s[0] - zero_s, edges_s[1] - zero_s

        steps = [span(str(each), self.steps_s[each]) for each in range(step, last + 1)]
        waited = [span(both("look up"), parts["list"]), span(both("copy"), parts["copy"])]
        if parts["previous"][1] - parts["previous"][0] > 0.001:
            waited.insert(0, span(both("the save before"), parts["previous"]))
        thread = [span(both("write"), parts["write"]), span(both("seal"), parts["seal"])]
        return Strip(
            title=both("A save, and the steps beside it"),
            badge=both("measured"),
            lanes=[
                (both("lane|steps"), steps),
                (both("training waits"), waited),
                (both("the thread"), thread),
            ],
        )

    def _picture(self, language: str) -> Sketch:
        return self.strip()._picture(language)


class Training:
    """A transformer of one layer whose weights are sharded over all ranks, its Adam, and the times
    of its steps. Made in every rank; ``dim`` is the model's width."""

    def __init__(self, dim: int = 128) -> None:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        self.net: nn.Module = model.Transformer(1, dim, 4, max_len=32)
        for layer in [*self.net.layers, self.net]:
            fully_shard(layer)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.001)
        self.begin()

    def begin(self) -> None:
        """Forgets all times."""
        self._times = Times()
        self._last = checkpoint.parts_s()

    def step(self, seed: int) -> None:
        """Trains on the four passages of 32 tokens that the seed draws."""
        self._note()
        began_s = time.perf_counter()
        tokens, targets = model.story_tokens(4, 32, seed=seed)
        self.optimizer.zero_grad()
        logits = self.net(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        self.optimizer.step()
        self._times.steps_s.append((began_s, time.perf_counter()))

    def end(self) -> Times:
        """The times of the steps since ``begin``, and of the saves between them."""
        self._note()
        self._times.end_s = time.perf_counter()
        return self._times

    def _note(self) -> None:
        parts = checkpoint.parts_s()
        if parts is not self._last and self._times.steps_s:
            self._times.saves[len(self._times.steps_s) - 1] = self._last = parts
