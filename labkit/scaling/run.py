"""A training step on more and more real ranks: DistributedDataParallel over the small transformer,
at the stated pace or at the machine's own.

    scaling.Scaling(ranks=(1, 2, 4)).run()

All ranks start at once. For each number of ranks the first ones take part and the others wait in a
barrier, so every size is measured in one run, on one machine in one mood. Each size is measured in
three ways: rank 0 alone; all of them computing without a message; the whole step.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from labkit import model as models
from labkit.data_parallel.buckets import ring_us
from labkit.devices.place import synchronize
from labkit.machine import resources
from labkit.measure import pace, trace
from labkit.scaling.series import SEQUENCE, VOCAB, Scaling
from labkit.words import say

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 120.0
PER_CORE = 2
"""ranks that a core can carry, asleep for most of a step"""
WARM_UP = 2
ENOUGH_S = 0.15


def start(scaling: Scaling) -> "Job":
    """Starts as many ranks as the largest size has, in the background."""
    from labkit.launching import launcher

    return launcher.start(measure, scaling, ranks=scaling.ranks[-1], timeout_s=TIMEOUT_S)


def obstacle(ranks: int) -> str | None:
    """Why so many ranks would show nothing here, in words; None where they would."""
    most = PER_CORE * resources.cores()
    if ranks <= most or resources.num_gpus() >= ranks:
        return None
    return say(
        "{ranks} ranks on {cores} cores take turns even where they sleep most of a step: the curve "
        "would show the cores, not the step. Take up to {most} ranks here; predict() knows no such "
        "bound",
        ranks=ranks,
        cores=resources.cores(),
        most=most,
    )


# --- in the ranks ---


def measure(scaling: Scaling) -> dict:
    """A rank's part: what ``Scaling`` says that its run returns. The last step of the largest size
    is recorded."""
    torch.set_num_threads(1)  # a rank is a device; two threads on one rank would be two
    found: dict[str, dict[int, float]] = {}
    overruns = 0
    for ranks in scaling.ranks:
        group = dist.new_group(range(ranks))
        if dist.get_rank() < ranks:
            size = _Size(scaling, ranks, group)
            for name, value in size.measured().items():
                found.setdefault(name, {})[ranks] = value
            overruns += size.overruns()
        dist.barrier()
    if dist.get_rank() == 0:
        # the first one of a fresh process is slow, and all others are held against it
        again_us = _Size(scaling, 1, dist.GroupMember.WORLD).alone_us()
        for times in (found["alone_us"], found["together_us"], found["step_us"]):
            times[1] = min(times[1], again_us)
    told = (f"{name}: {value}" for name, value in resources.summary().items())
    return {**found, "overruns": overruns, "machine": ", ".join(told)}


class _Size:
    """The step on one number of ranks."""

    def __init__(self, scaling: Scaling, ranks: int, group: dist.ProcessGroup) -> None:
        self.scaling = scaling
        self.ranks = ranks
        self.group = group
        self.ready_ns = 0
        self.paces: list[pace.Pace] = []
        self.model = self._model()
        self.data = models.story_tokens(scaling.samples(ranks), SEQUENCE, seed=dist.get_rank())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.fixed = pace.Pace()

    def _model(self) -> torch.nn.Sequential:
        scaling = self.scaling
        torch.manual_seed(0)
        layers = models.layers(scaling.layers, scaling.hidden, vocab_size=VOCAB)
        if scaling.paced:
            took_us = scaling.forward_us(self.ranks)
            named = enumerate(layers)
            layers = [pace.Paced(each, forward_us=took_us, name=str(n)) for n, each in named]
            self.paces = [each.pace for each in layers]
        for weight in layers[0].parameters():
            weight.register_post_accumulate_grad_hook(self._note)
        return torch.nn.Sequential(*layers)

    def _note(self, weight: torch.Tensor) -> None:
        """The first layer's gradients come last: from here on a rank can only wait."""
        synchronize()
        self.ready_ns = time.time_ns()

    def measured(self) -> dict[str, float]:
        """The quickest steps, in microseconds; what makes no sense here is missing."""
        found = {}
        if dist.get_rank() == 0:
            found["alone_us"] = self.alone_us()
        dist.barrier(self.group)
        if self.ranks == 1:
            same = found["alone_us"]
            return {**found, "together_us": same, "step_us": same, "waiting_us": 0.0}
        found["together_us"] = self._together_us()
        return found | self._with_messages()

    def _with_messages(self) -> dict[str, float]:
        ddp = DistributedDataParallel(
            self.model,
            process_group=self.group,
            bucket_cap_mb=self.scaling.bucket_mb,
            gradient_as_bucket_view=True,
        )
        for _ in range(WARM_UP):
            self._step(ddp)  # DDP rebuilds its buckets in the second step
        if self.scaling.paced:
            self.paces.append(pace.link(ddp, ring_us(self.ranks, self.scaling.link)))
        waited_us: list[float] = []

        def step() -> float:
            took_us = self._step(ddp)
            waited_us.append(self._waited_us())
            return took_us

        step_us = [step() for _ in range(self.scaling.num_steps)]
        with self._recorded():
            step()
        quickest = self._quickest(step_us)
        return {"step_us": step_us[quickest], "waiting_us": waited_us[quickest]}

    def _quickest(self, step_us: list[float]) -> int:
        """The step whose slowest rank was quickest: the same one on every rank, so that what the
        ranks waited in it is waited for one of them."""
        slowest_us = torch.tensor(step_us, dtype=torch.float64)
        dist.all_reduce(slowest_us, dist.ReduceOp.MAX, group=self.group)
        return int(slowest_us.argmin())

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """One recording a run: of the largest size."""
        if self.ranks < self.scaling.ranks[-1]:
            yield
            return
        with trace.record(operators=False):
            yield

    def alone_us(self) -> float:
        """The quickest step while nobody else computes: ``num_steps`` or more, for ENOUGH_S."""
        took_us = []
        begin_s = time.perf_counter()
        while len(took_us) < self.scaling.num_steps or time.perf_counter() - begin_s < ENOUGH_S:
            took_us.append(self._step(self.model))
        return min(took_us)

    def _together_us(self) -> float:
        """The quickest step while the others compute as well, and nobody sends anything."""
        took_us = []
        for _ in range(WARM_UP + self.scaling.num_steps):
            dist.barrier(self.group)
            took_us.append(self._step(self.model))
        return min(took_us)

    def _step(self, model: torch.nn.Module) -> float:
        """One step; returns its microseconds. With messages all ranks begin together."""
        if isinstance(model, DistributedDataParallel):
            dist.barrier(self.group)
        tokens, targets = self.data
        self.optimizer.zero_grad()
        start_s = time.perf_counter()
        models.loss(model(tokens), targets).backward()
        stated_us = 1e3 * self.scaling.fixed_ms if self.scaling.paced else 0.0
        with self.fixed.taking("optimizer", stated_us):
            self.optimizer.step()
        return (time.perf_counter() - start_s) * 1e6

    def _waited_us(self) -> float:
        """From this rank's last gradient to the slowest rank's. One machine has one clock."""
        latest_ns = torch.tensor([self.ready_ns])
        dist.all_reduce(latest_ns, dist.ReduceOp.MAX, group=self.group)
        return (latest_ns.item() - self.ready_ns) / 1e3

    def overruns(self) -> int:
        """Stated times that were not kept."""
        return sum(each.num_overruns for each in (*self.paces, self.fixed))
