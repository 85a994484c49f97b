"""What a training says of itself while it runs: rank 0 writes scalars for TensorBoard, and they are
read back.

    scalars_run.Training(steps=20).run()
    scalars_run.read(folder)       # {"throughput": {step: value}, ...}

A scalar of one rank is not one of the training: the loss is averaged over the ranks, the throughput
is that of all, the memory is the largest. Each is one number in one all-reduce.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import model as models
from labkit.devices.place import synchronize
from labkit.machine import resources
from labkit.measure import memory
from labkit.units import check_whole

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

SCALARS = ("loss", "gradient_norm", "throughput", "memory_bytes")
"""what is written, under ``train/``"""
MISSING = (
    "TensorBoard's files are written and read by the package tensorboard, which is not installed "
    "here: make env installs it"
)


def monitored(folder: str | Path, num_steps: int = 20, *, batch: int = 8) -> dict[str, list[float]]:
    """Trains the small transformer with DDP on this and the other ranks; rank 0 writes ``SCALARS``
    of every step into ``folder``. For a launch.

    Returns
    -------
    dict: each scalar -> its values, step by step, as this rank knows them: the same on all ranks.

    Raises ValueError where tensorboard is not installed.
    """
    check_whole(1, 100_000, num_steps=num_steps)
    check_whole(1, 4096, batch=batch)
    _check_installed()
    torch.manual_seed(0)
    model = DistributedDataParallel(models.Transformer(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    writer = _writer(folder) if dist.get_rank() == 0 else None
    found: dict[str, list[float]] = {name: [] for name in SCALARS}
    begin_s = time.perf_counter()
    for step in range(num_steps):
        seed = step * dist.get_world_size() + dist.get_rank()
        tokens, targets = models.story_tokens(batch, 32, seed=seed)
        optimizer.zero_grad()
        loss = models.loss(model(tokens), targets)
        loss.backward()
        # already averaged over the ranks: the same norm everywhere
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        synchronize()
        took_s = time.perf_counter() - begin_s
        begin_s = time.perf_counter()
        values = _of_all_ranks(loss.item(), norm.item(), took_s, batch)
        for name, value in zip(SCALARS, values, strict=True):
            found[name].append(value)
            if writer is not None:
                writer.add_scalar(f"train/{name}", value, step)
    if writer is not None:
        writer.close()
    return found


def read(folder: str | Path) -> dict[str, dict[int, float]]:
    """Scalar -> {step: value}, from the event files of a folder. Raises ValueError for a folder
    that has none, and where tensorboard is not installed."""
    if not any(Path(folder).glob("events.out.tfevents.*")):
        raise ValueError(
            f"TensorBoard's files are called events.out.tfevents...; {str(folder)!r} holds none. "
            "Write some first, e.g. with lab.launch(scaling.monitored, folder, ranks=2)"
        )
    _check_installed()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    found: dict[str, dict[int, float]] = {}
    for tag in events.Tags()["scalars"]:
        name = tag.removeprefix("train/")
        found[name] = {each.step: each.value for each in events.Scalars(tag)}
    return found


def _writer(folder: str | Path) -> "SummaryWriter":
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def _of_all_ranks(loss: float, norm: float, took_s: float, batch: int) -> tuple[float, ...]:
    """The scalars of the training from those of this rank: the mean loss, tokens a second of all
    ranks by the slowest one's clock, the most memory."""
    ranks = dist.get_world_size()
    held_bytes = memory.allocated_peak_bytes() or memory.peak_rss_bytes()
    total = torch.tensor([loss])
    dist.all_reduce(total)
    most = torch.tensor([took_s, float(held_bytes)], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    slowest_s, most_bytes = most.tolist()
    return total.item() / ranks, norm, ranks * batch * 32 / slowest_s, most_bytes


def _check_installed() -> None:
    if resources.version("tensorboard") is None:
        raise ValueError(MISSING)
