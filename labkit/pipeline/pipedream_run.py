"""PipeDream (Harlap, Narayanan et al. 2018, arXiv 1806.03377) at toy size: 1F1B that never flushes,
on real ranks.

A stage stashes the weights that a microbatch's forward used and uses them again in its backward
("weight stashing", section 3.3): the gradient belongs to its forward, but it is applied to weights
that have been updated since.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from labkit import model
from labkit.launching import rank
from labkit.measure import trace
from labkit.measure.pace import Pace
from labkit.pipeline.schedules import one_f_one_b
from labkit.units import check_whole

if TYPE_CHECKING:
    from labkit.launching.run import Run

DIM = 32
LENGTH = 32


def launch(
    num_ranks: int,
    num_microbatches: int,
    *,
    flush_every: int | None = None,
    forward_us: float = 0.0,
    learning_rate: float = 0.05,
    num_layers: int = 4,
    timeout_s: float = 60.0,
) -> "Run":
    """Trains the small transformer, one passage of the story per microbatch; a backward takes 2 x
    ``forward_us``.

    ``flush_every=None`` is PipeDream: an update after every backward. A number k is 1F1B with
    flush: one update, with the mean gradient, per k microbatches. ``run[r]`` is a dict: versions
    (per microbatch, the version of its weights and the newest version when its gradient came),
    peak_versions (the most that microbatches in flight held), losses (on the last rank, per
    microbatch) and weights. A run with stated times is recorded.
    """
    from labkit.launching import launcher

    check_whole(
        num_microbatches=num_microbatches, flush_every=flush_every or 1, num_layers=num_layers
    )
    group = flush_every or num_microbatches
    if num_microbatches % group:
        raise ValueError(
            f"a flush ends a group of microbatches; {num_microbatches} do not divide into groups "
            f"of {group}. Take a multiple of {group}"
        )
    return launcher.launch(
        _train,
        num_microbatches,
        group,
        flush_every or 1,
        forward_us,
        learning_rate,
        num_layers,
        ranks=num_ranks,
        timeout_s=timeout_s,
    )


# --- in the ranks ---


class Flying(NamedTuple):
    """A microbatch between its forward and its backward on a stage."""

    x: Tensor
    """what the stage was given"""
    y: Tensor
    """what it made of it"""
    weights: dict[str, Tensor]
    """those of the forward, stashed for the backward"""
    version: int
    """how many updates they have had"""


class _Stage:
    """One rank's part. A new version is new tensors: an old one lives as long as a microbatch in
    flight needs it."""

    def __init__(
        self, num_layers: int, forward_us: float, learning_rate: float, per_update: int
    ) -> None:
        self.me = dist.get_rank()
        self.last = dist.get_world_size() - 1
        self.forward_us = forward_us
        self.learning_rate = learning_rate
        self.per_update = per_update
        self.pace = Pace()
        whole = model.Transformer(num_layers, DIM, 2, max_len=LENGTH)
        self.module = model.split(whole, self.last + 1)[self.me]
        self.weights = {
            name: weight.detach().requires_grad_()
            for name, weight in self.module.named_parameters()
        }
        self.version = 0
        self.flying: dict[int, Flying] = {}
        self.versions: list[tuple[int, int]] = []  # per microbatch: of its weights, and the newest
        self.peak_versions = 0
        self.gradients: list[tuple[Tensor, ...]] = []  # since the last update
        self.sent: list[tuple[dist.Work, Tensor]] = []  # tensors are kept until they have left

    def forward(self, k: int, tokens: Tensor, targets: Tensor) -> Tensor:
        """Microbatch k: returns its loss on the last rank, elsewhere what was sent on."""
        x = self.receive(self.me - 1).requires_grad_() if self.me else tokens
        with self.timed(f"{self.me}F{k}", self.forward_us):
            y = torch.func.functional_call(self.module, self.weights, x)
            if self.me == self.last:
                y = model.loss(y, targets)
        self.flying[k] = Flying(x, y, self.weights, self.version)
        num_versions = len({each.version for each in self.flying.values()})
        self.peak_versions = max(self.peak_versions, num_versions)
        if self.me < self.last:
            self.send(y, self.me + 1)
        return y

    def backward(self, k: int) -> None:
        """Microbatch k, with the weights of its forward; then an update, if it is time for one."""
        x, y, weights, version = self.flying.pop(k)
        self.versions.append((version, self.version))
        grad = self.receive(self.me + 1) if self.me < self.last else None
        wanted = list(weights.values())
        if self.me:
            wanted.append(x)
        with self.timed(f"{self.me}B{k}", 2 * self.forward_us):
            found = torch.autograd.grad(y, wanted, grad)
            self.gradients.append(found[: len(weights)])
            if len(self.gradients) == self.per_update:
                self.update()
        if self.me:
            self.send(found[-1], self.me - 1)

    def update(self) -> None:
        """A step of SGD on the newest weights, with the mean of the gradients."""
        means = [sum(each) / self.per_update for each in zip(*self.gradients, strict=True)]
        self.weights = {
            name: (weight - self.learning_rate * mean).detach().requires_grad_()
            for (name, weight), mean in zip(self.weights.items(), means, strict=True)
        }
        self.version += 1
        self.gradients = []

    def warm_up(self) -> None:
        """A forward and a backward that leave nothing behind: the first of a process is slow, and
        all ranks would wait for it."""
        given = torch.zeros(1, LENGTH, DIM, requires_grad=True)
        x = given if self.me else torch.zeros(1, LENGTH, dtype=torch.long)
        y = torch.func.functional_call(self.module, self.weights, x)
        torch.autograd.grad(y.sum(), list(self.weights.values()))

    @contextlib.contextmanager
    def timed(self, label: str, stated_us: float) -> Iterator[None]:
        """Records a block, and makes it last as long as stated."""
        start_s = time.perf_counter()
        with torch.profiler.record_function(label):
            yield
            if stated_us:
                self.pace.finish(start_s, stated_us)

    def receive(self, peer: int) -> Tensor:
        """Activations of a neighbour, or their gradient."""
        x = torch.empty(1, LENGTH, DIM)
        dist.recv(x, peer)
        return x

    def send(self, x: Tensor, peer: int) -> None:
        """Sends without waiting."""
        self.sent.append((dist.isend(x.detach(), peer), x))


def _train(
    num_microbatches: int,
    group: int,
    per_update: int,
    forward_us: float,
    learning_rate: float,
    num_layers: int,
) -> dict:
    """One rank: 1F1B over each group of microbatches, a new version of its weights after
    ``per_update`` backwards."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    stage = _Stage(num_layers, forward_us, learning_rate, per_update)
    losses = []
    tokens, targets = model.story_tokens(num_microbatches, LENGTH)
    order = one_f_one_b(stage.last + 1, group).orders[stage.me]
    if forward_us:
        rank.current().note("paced")
        stage.warm_up()
    dist.barrier()
    with trace.record(operators=False) if forward_us else contextlib.nullcontext():
        for start, action in itertools.product(range(0, num_microbatches, group), order):
            k = start + action.microbatch
            if action.kind == "B":
                stage.backward(k)
                continue
            loss = stage.forward(k, tokens[k, None], targets[k, None])
            if stage.me == stage.last:
                losses.append(loss.item())
        for work, _ in stage.sent:
            work.wait()
    return {
        "versions": stage.versions,
        "peak_versions": stage.peak_versions,
        "losses": losses,
        "weights": {f"layers.{name}": weight.detach() for name, weight in stage.weights.items()},
    }
