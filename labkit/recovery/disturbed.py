"""A training that is killed at given moments, and its judge: what the last exercise of chapter 13
is about."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.check import on_ranks
from labkit.launching.run import Run

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
        return on_ranks(ranks, fn, *args)

    def ranks_left(self) -> int:
        """How many ranks can still be launched."""
        return self.ranks - sum(
            self._killed(index) and kill[2] for index, kill in enumerate(self.kills)
        )

    def build(self) -> "tuple[nn.Module, Optimizer]":
        """A model in DDP and its Adam."""
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
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
                if who is None:
                    ambush(self.folder, lambda index=index: self._note(f"killed-{index}"))
                else:
                    self._note(f"killed-{index}")
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
        return (self.home / name).read_text().split() if (self.home / name).exists() else []


def train_step(
    net: "nn.Module", optimizer: "Optimizer", step: int, rank: int = 0, num_ranks: int = 1
) -> None:
    """One step; the mean over the ranks is that over the whole batch of twelve."""
    import torch

    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    mine, target = (
        each.tensor_split(num_ranks)[rank] for each in (x, x.sin().sum(1, keepdim=True))
    )
    optimizer.zero_grad()
    ((net(mine) - target).square().sum() * num_ranks / 12).backward()
    optimizer.step()


def compared(training: Training, given: "dict[str, Tensor]", steps: list[int]) -> str:
    """What a trained state_dict is not; and what it is, where a usual mistake explains it."""
    import torch

    given = {name.removeprefix("module."): each for name, each in given.items()}

    def fresh() -> "tuple[nn.Module, Optimizer]":
        net, optimizer = training.build()
        return getattr(net, "module", net), optimizer

    def equal(order: list[int], anew: bool = False) -> bool:
        net, optimizer = fresh()
        kept: dict = {}
        for before, step in zip([-1, *order], order, strict=False):
            if step != before + 1 and anew:
                net, optimizer = fresh()
                net.load_state_dict(kept[step])
            kept[step] = {name: each.clone() for name, each in net.state_dict().items()}
            train_step(net, optimizer, step)
        right = net.state_dict()
        return right.keys() == given.keys() and all(
            torch.allclose(given[name], right[name], atol=1e-7) for name in right
        )

    if equal(list(range(training.num_steps))):
        return ""
    if steps[-1] < training.num_steps - 1:
        return f"training ended after step {steps[-1]}, the last is {training.num_steps - 1}"
    with contextlib.suppress(KeyError):
        if equal(steps, anew=True):
            return (
                "the weights were loaded, and Adam began anew: its moments and its step were lost"
            )
    if equal(steps):
        return "steps were trained twice on the same weights"
    return "the weights are not those of undisturbed training"


def ambush(folder: Path, note: Callable[[], None]) -> None:
    """From now on, whoever begins to write into the folder is killed with half of it written."""
    import torch

    whole, armed = torch.save, [True]

    def die() -> None:
        note()
        os.kill(os.getpid(), signal.SIGKILL)

    def save(value: object, file: Any, *args: Any, **options: Any) -> None:
        if not isinstance(file, str | os.PathLike) or not str(file).startswith(str(folder)):
            return whole(value, file, *args, **options)
        whole(value, packed := BytesIO(), *args, **options)
        armed[0] = False
        Path(file).write_bytes(packed.getvalue()[: len(packed.getvalue()) // 2])
        die()

    def touched(event: str, arguments: tuple) -> None:
        if (
            event == "open"
            and armed[0]
            and str(arguments[0]).startswith(str(folder))
            and arguments[2] & os.O_WRONLY
        ):
            die()

    torch.save = save
    sys.addaudithook(touched)
