"""A DataLoader on every rank, its reads and the steps at a stated pace, each by its own clock.

Workers are forked: a Dataset from a cell could not be told to a new interpreter. A worker that
asked torch to compute could wait for ever for threads that a fork does not copy, so workers read
with numpy alone, and batches become tensors in the rank.
"""

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from labkit import model as models
from labkit.measure.pace import Pace, sleep_until
from labkit.scaling.input.feeding import INPUT, Feeding
from labkit.timeline import COMPUTE

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 60.0
SAMPLES = 4
LENGTH = 16
"""tokens of a sample"""


def start(feeding: Feeding) -> "Job":
    """Feeds steps on real ranks, in the background."""
    from labkit.launching import launcher

    return launcher.start(feed, feeding, ranks=feeding.ranks, timeout_s=TIMEOUT_S)


class Passages(Dataset):
    """Batches of the story, each read anew from its file and as slow as stated: a tensor of tokens,
    on the host, and when its reading began and ended (``time.time_ns``)."""

    def __init__(self, num_batches: int, read_ms: float = 0.0) -> None:
        self.num_batches = num_batches
        self.read_ms = read_ms

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, batch: int) -> tuple[np.ndarray, int, int]:
        begin_ns = time.time_ns()
        deadline_s = time.perf_counter() + 1e-3 * self.read_ms
        with models.STORY.open("rb") as file:
            file.seek(batch * SAMPLES * LENGTH)
            read = file.read(SAMPLES * LENGTH)
        tokens = np.frombuffer(read, dtype=np.uint8).astype(np.int64).reshape(SAMPLES, LENGTH)
        sleep_until(deadline_s)
        return tokens, begin_ns, time.time_ns()


def loader(dataset: Dataset, workers: int, ahead: int = 2) -> DataLoader:
    """A DataLoader over whole batches, in order: ``workers`` forked processes, each with up to
    ``ahead`` batches ready."""
    more = {"prefetch_factor": ahead, "multiprocessing_context": "fork"} if workers else {}
    return DataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=_as_read, **more)


def _as_read(batch: tuple) -> tuple:
    """Nothing is made of it in a worker: a worker has no device."""
    return batch


# --- in the ranks ---


def feed(feeding: Feeding) -> dict:
    """A rank's part: what ``Feeding`` says that its run returns."""
    torch.set_num_threads(1)
    dataset = Passages(feeding.batches, feeding.read_ms)
    expected = Passages(feeding.batches)
    pace = Pace()
    spans = []
    waited_ns = 0
    in_order = True
    model = models.Transformer(1, dim=16)
    _step(model, torch.zeros(SAMPLES, LENGTH, dtype=torch.long))  # the first one is slow
    batches = iter(loader(dataset, feeding.workers, feeding.ahead))
    dist.barrier()
    asked_ns = time.time_ns()
    for number, (tokens, begin_ns, read_ns) in enumerate(batches):
        start_ns = time.time_ns()
        waited_ns += start_ns - asked_ns
        with pace.taking("", 1e3 * feeding.step_ms):
            _step(model, torch.from_numpy(tokens).to(torch.get_default_device()))
        asked_ns = time.time_ns()
        spans.append((INPUT, INPUT, f"batch {number}", begin_ns / 1e3, read_ns / 1e3))
        spans.append((COMPUTE, COMPUTE, f"step {number}", start_ns / 1e3, asked_ns / 1e3))
        in_order &= bool((tokens == expected[number][0]).all())
    return {"spans_us": spans, "waited_us": waited_ns / 1e3, "in_order": in_order}


def _step(model: models.Transformer, tokens: torch.Tensor) -> None:
    """Forward and backward."""
    model.zero_grad()
    models.loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
