"""What a launched function can know of its rank, and tell the notebook: ``rank.current()``."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.launching.fork.messages import Message, Progress
from labkit.launching.fork.pickling import pack_result
from labkit.launching.rank_state import RankFiles

if TYPE_CHECKING:
    import torch

_current: "Rank | None" = None


class Rank:
    """What a rank knows about its run, and its way to tell the notebook something."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        folder: Path | None,
        tell: Callable[[Message], None] | None = None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.folder = folder
        self.notes: list[str] = []
        self._tell = tell

    @property
    def device(self) -> "torch.device":
        """Where this rank's tensors are made if nothing else is said: its GPU, its pretend device,
        or the CPU."""
        import torch

        return torch.get_default_device()

    def note(self, text: str) -> None:
        """Adds a word that must stand beside every number of this run, such as "paced"."""
        if text not in self.notes:
            self.notes.append(text)

    def give(self, value: object) -> None:
        """Hands over a script's result, where there is no return value: ``run[r]`` of
        ``launch_script``."""
        if self.folder is not None:
            files = RankFiles(folder=self.folder, rank=self.rank)
            files.result.write_bytes(pack_result(value, self.rank))

    def progress(self, *, step: int | None = None, loss: float | None = None) -> None:
        """Shows how far this rank is, in the live line of the notebook. Costs some microseconds."""
        step = None if step is None else int(step)
        loss = None if loss is None else float(loss)
        if self._tell is not None:
            self._tell(Progress(step=step, loss=loss))


def current() -> Rank:
    """This process's Rank. In a process that labkit did not fork (torchrun, say) it is read from
    the environment."""
    if _current is None:
        folder = os.environ.get("LABKIT_RUN_DIR")
        become(
            Rank(
                int(os.environ.get("RANK", 0)),
                int(os.environ.get("WORLD_SIZE", 1)),
                Path(folder) if folder else None,
            )
        )
    return _current


def become(rank: Rank) -> None:
    """From now on this process is that rank."""
    global _current
    _current = rank
