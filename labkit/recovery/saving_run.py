"""A small FSDP training that saves, and tells where its time goes: in steps, in the gap after a
save, in the thread. Trains in ranks; its times are drawn in the notebook."""

import time
from dataclasses import replace

import torch
from torch import nn

from labkit import model
from labkit.recovery import checkpoint
from labkit.recovery.how_often import Times

__all__ = ["Training"]


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
        """Forgets all times. No save is on its way."""
        self._times = Times()
        self._last = checkpoint.parts_s()

    def step(self, seed: int) -> None:
        """Trains on the four passages of 32 tokens that the seed draws."""
        self._note()
        began_s = time.perf_counter()
        tokens, targets = model.story_tokens(4, 32, seed=seed)
        self.optimizer.zero_grad()
        model.loss(self.net(tokens), targets).backward()
        self.optimizer.step()
        self._times.steps_s.append((began_s, time.perf_counter()))

    def end(self) -> Times:
        """The times of the steps since ``begin``, and of the saves between them."""
        self._note()
        return replace(self._times, end_s=time.perf_counter())

    def _note(self) -> None:
        parts = checkpoint.parts_s()
        if parts is not self._last and self._times.steps_s:
            self._times.saves[len(self._times.steps_s) - 1] = self._last = parts
