"""A training that is killed at given moments, and its judge: what the last exercise of chapter 13
is about. Lives on both sides: ``launch`` in the notebook, the rest in ranks."""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.launching.run import Run
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Enough(SystemExit):
    """Ends an answer that restarts for ever."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that is disturbed. ``launch`` and ``ranks_left`` are for the notebook, the rest
    for the ranks."""

    home: Path
    """notes of what has happened"""
    ranks: int
    """how many there were at first"""
    kills: tuple[tuple[int, int | None, bool], ...] = ()
    """(step, rank, whether for good); rank None: rank 0, in the save after that step"""
    broken: bool = False
    """whether step 4 always raises"""
    num_steps: int = 9
    """steps of a whole training"""
    every: int = 2
    """steps between two checkpoints"""
    max_restarts: int = 3
    """how many restarts there may be"""

    @property
    def folder(self) -> Path:
        """Where checkpoints belong."""
        return self.home / "checkpoints"

    def launch(self, fn: Callable, *args: object, ranks: int) -> Run:
        """lab.launch on the machine's CPU. Raises ValueError where there are fewer ranks left."""
        if ranks > self.ranks_left():
            raise ValueError(
                f"asked for {ranks} ranks; {self.ranks_left()} are left (training.ranks_left())"
            )
        self._note("starts")
        if self.num_starts() > self.max_restarts + 3:
            raise Enough
        from labkit.check import on_ranks  # whose limits of time an answer is under

        return on_ranks(ranks, fn, *args)

    def ranks_left(self) -> int:
        """How many ranks can still be launched."""
        lost = [index for index, (_, _, is_lost) in enumerate(self.kills) if is_lost]
        return self.ranks - sum(self._killed(index) for index in lost)

    def build(self) -> "tuple[nn.Module, Optimizer]":
        """A model in DDP and its Adam."""
        import numpy as np
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        generator = np.random.default_rng(0)  # the same numbers whatever the device
        for weight in net.parameters():
            weight.data.copy_(torch.from_numpy(generator.normal(0, 0.4, weight.shape)))
        wrapped = DistributedDataParallel(net) if torch.distributed.is_initialized() else net
        return wrapped, torch.optim.Adam(wrapped.parameters(), lr=0.05)

    def step(self, net: "nn.Module", optimizer: "Optimizer", step: int) -> None:
        """Trains one step on this rank's part of its batch; dies if it is time."""
        from torch import distributed as dist

        rank = dist.get_rank()
        if self.broken and step == 4:
            raise ZeroDivisionError("the learning rate is divided by the number of sheep")
        for index, (when, who, _) in enumerate(self.kills):
            if when == step and not self._killed(index) and rank == (who or 0):
                note = functools.partial(self._note, f"killed-{index}")
                if who is None:
                    ambush(self.folder, note)
                else:
                    note()
                    os.kill(os.getpid(), signal.SIGKILL)
        train_step(net, optimizer, step, rank, dist.get_world_size())
        if rank == 0:
            self._note("steps", step)

    def steps(self) -> list[int]:
        """Every step that was trained, in order, repeated ones included."""
        return [int(line) for line in self._lines("steps")]

    def num_starts(self) -> int:
        """How often ``launch`` was called."""
        return len(self._lines("starts"))

    def num_kills(self) -> int:
        """How many of the kills have taken place."""
        return sum(self._killed(index) for index in range(len(self.kills)))

    def _killed(self, index: int) -> bool:
        return bool(self._lines(f"killed-{index}"))

    def _note(self, name: str, value: object = "yes") -> None:
        with open(self.home / name, "a") as file:
            file.write(f"{value}\n")

    def _lines(self, name: str) -> list[str]:
        file = self.home / name
        return file.read_text().split() if file.exists() else []


def train_step(
    net: "nn.Module", optimizer: "Optimizer", step: int, rank: int = 0, num_ranks: int = 1
) -> None:
    """One step; the mean over the ranks is that over the whole batch of twelve."""
    import numpy as np
    import torch

    x = torch.from_numpy(np.random.default_rng(step).standard_normal((12, 4)))
    mine = x.to(torch.get_default_device()).tensor_split(num_ranks)[rank]
    target = mine.sin().sum(1, keepdim=True)
    optimizer.zero_grad()
    ((net(mine) - target).square().sum() * num_ranks / 12).backward()
    optimizer.step()


def compared(training: Training, given: "dict[str, Tensor]", steps: list[int]) -> str:
    """What a trained state_dict is not; and what it is, where a usual mistake explains it."""
    given = {name.removeprefix("module."): tensor for name, tensor in given.items()}
    whole = list(range(training.num_steps))
    if _equal(given, _trained(training, whole)):
        return ""
    if steps[-1] < training.num_steps - 1:
        return say(
            "training ended after step {last}, the last is {due}",
            last=steps[-1],
            due=training.num_steps - 1,
        )
    with contextlib.suppress(KeyError):
        if _equal(given, _trained(training, steps, forgetful=True)):
            return say(
                "the weights were loaded, and Adam began anew: its moments and its step were lost"
            )
    if _equal(given, _trained(training, steps)):
        return say("steps were trained twice on the same weights")
    return say("the weights are not those of undisturbed training")


def _trained(training: Training, steps: list[int], forgetful: bool = False) -> "dict[str, Tensor]":
    """The weights after these steps in one process. ``forgetful``: at each step back the weights
    come from before that step, and Adam begins anew; KeyError where they were never there."""
    net, optimizer = _built(training)
    before: dict[int, dict] = {}
    for previous, step in zip([-1, *steps], steps, strict=False):
        if forgetful and step != previous + 1:
            net, optimizer = _built(training)
            net.load_state_dict(before[step])
        before[step] = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        train_step(net, optimizer, step)
    return net.state_dict()


def _built(training: Training) -> "tuple[nn.Module, Optimizer]":
    """The model without DDP, and its Adam."""
    net, optimizer = training.build()
    return getattr(net, "module", net), optimizer


def _equal(given: "dict[str, Tensor]", right: "dict[str, Tensor]") -> bool:
    import torch

    if given.keys() != right.keys():
        return False
    return all(torch.allclose(given[name].cpu(), right[name].cpu(), atol=1e-7) for name in right)


def ambush(folder: Path, note: Callable[[], None]) -> None:
    """From now on, whoever begins to write into the folder is killed with half of it written."""
    import torch

    whole = torch.save
    is_armed = True

    def is_inside(file: object) -> bool:
        return isinstance(file, str | os.PathLike) and str(file).startswith(str(folder))

    def die() -> None:
        note()
        os.kill(os.getpid(), signal.SIGKILL)

    def save(value: object, file: Any, *args: Any, **options: Any) -> None:
        nonlocal is_armed
        if not is_inside(file):
            whole(value, file, *args, **options)
            return
        packed = BytesIO()
        whole(value, packed, *args, **options)
        half = packed.getvalue()[: len(packed.getvalue()) // 2]
        is_armed = False
        Path(file).write_bytes(half)
        die()

    def touched(event: str, arguments: tuple) -> None:
        if event != "open" or not is_armed:
            return
        if str(arguments[0]).startswith(str(folder)) and arguments[2] & os.O_WRONLY:
            die()

    torch.save = save
    sys.addaudithook(touched)
