"""A training of the digits' classifier with a batch of any size: what may be turned, its run on
real ranks, and the noise of its gradient, read from the ranks' own gradients."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.large_batch.digits_run import Digits, classifier, digits
from labkit.large_batch.layerwise_run import LAMB, LARS
from labkit.large_batch.rules import Noise, noise, warmup_cosine
from labkit.launching.job import Job
from labkit.launching.launcher import start
from labkit.launching.run import Run
from labkit.units import check_real, check_whole, check_word

OPTIMIZERS = ("sgd", "momentum", "adam", "lars", "lamb")
EVERY = 5
"""steps from one look at the whole loss to the next"""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training, data-parallel on ``ranks`` ranks.

    It ends when the loss over the whole training set is below ``target``, looked at every 5 steps,
    or after ``most_steps``. Raises ValueError for what can't be.
    """

    batch: int = 32
    """samples of a step, of all ranks together"""
    rate: float = 0.4
    """the highest learning rate"""
    optimizer: str = "sgd"
    """"sgd", "momentum" (0.9), "adam", "lars" or "lamb" """
    warmup: float | None = None
    """None: a constant rate; else the share of ``most_steps`` in which it rises, before it falls
    along a cosine"""
    most_steps: int = 2000
    """where it ends if the target is not reached"""
    target: float = 0.15
    """the loss at which it ends; 0: it takes all steps"""
    ranks: int = 2
    """real ranks, each with an even share of the batch"""
    seed: int = 0
    """of the weights and of the order of the samples"""

    def __post_init__(self) -> None:
        check_whole(1, 64, ranks=self.ranks)
        check_whole(self.ranks, 10**6, batch=self.batch)
        check_whole(1, 10**6, most_steps=self.most_steps)
        check_whole(0, 2**31 - 1, seed=self.seed)
        check_real(1e-12, 1e6, rate=self.rate)
        check_real(0, 10, target=self.target)
        check_word(self.optimizer, OPTIMIZERS, "an optimizer")
        if self.warmup is not None:
            check_real(0, 1, warmup=self.warmup)
        if self.batch % self.ranks:
            raise ValueError(
                f"a batch is dealt evenly; got {self.batch} samples for {self.ranks} ranks. Take a "
                f"multiple of {self.ranks}"
            )

    def start(self) -> Job:
        """The training on real ranks, in the background."""
        return start(train, self, ranks=self.ranks)

    def run(self) -> Run:
        """The training on real ranks. Each returns what ``train`` says."""
        return self.start().wait()


def train(training: Training) -> dict[str, Any]:
    """A rank's part of a training.

    Returns
    -------
    dict: steps (taken until the target; None where it was not reached), loss (of the whole training
    set at the end) and accuracy (of the test set), losses (step -> loss), and, from two ranks on,
    noise (step -> ``rules.Noise``).
    """
    data = digits("train")
    net = classifier(training.seed)
    optimizer = _optimizer(training, net)
    losses: dict[int, float] = {}
    noises: dict[int, Noise] = {}
    reached = None
    for step, mine in enumerate(_dealt(training, len(data.y)), start=1):
        _set_rate(optimizer, training, step - 1)
        optimizer.zero_grad()
        F.cross_entropy(net(data.x[mine]), data.y[mine]).backward()
        found = average_gradients(net, training.batch)
        optimizer.step()
        if found is not None:
            noises[step] = found
        if step % EVERY and step < training.most_steps:
            continue
        losses[step] = _loss(net, data)
        if losses[step] < training.target:
            reached = step
        if reached or not math.isfinite(losses[step]):
            break
    told = {"steps": reached, "loss": losses[step], "accuracy": _accuracy(net), "losses": losses}
    return told | ({"noise": noises} if noises else {})


def average_gradients(net: nn.Module, batch: int) -> Noise | None:
    """Puts the ranks' mean gradient into ``net``, and tells the noise of one sample's gradient;
    None on one rank, which has nothing to compare.

    ``batch`` is that of all ranks together. One all-reduce carries the gradient and, four bytes
    more, the squared length that it had on each rank.
    """
    num_ranks = dist.get_world_size()
    gradient = torch.cat([weight.grad.flatten() for weight in net.parameters()])
    message = torch.cat([gradient, gradient.square().sum()[None]])
    dist.all_reduce(message)
    message /= num_ranks
    start = 0
    for weight in net.parameters():
        weight.grad = message[start : start + weight.numel()].view_as(weight)
        start += weight.numel()
    if num_ranks == 1:
        return None
    large_square = message[:-1].square().sum().item()
    return noise(message[-1].item(), large_square, batch / num_ranks, batch)


def _dealt(training: Training, num_samples: int) -> Iterator[Tensor]:
    """This rank's samples of each step: every rank draws the same batch and takes its own part."""
    draw = np.random.default_rng(training.seed)
    for _ in range(training.most_steps):
        batch = draw.integers(num_samples, size=training.batch)
        yield torch.tensor(batch[dist.get_rank() :: dist.get_world_size()])


def _optimizer(training: Training, net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer by its name."""
    weights = list(net.parameters())
    rate = training.rate
    match training.optimizer:
        case "momentum":
            return torch.optim.SGD(weights, rate, momentum=0.9)
        case "adam":
            return torch.optim.Adam(weights, rate)
        case "lars":
            return LARS(weights, rate, trust=0.01)
        case "lamb":
            return LAMB(weights, rate)
    return torch.optim.SGD(weights, rate)


def _set_rate(optimizer: torch.optim.Optimizer, training: Training, step: int) -> None:
    """The learning rate of a step, counted from 0."""
    if training.warmup is None:
        return
    factor = warmup_cosine(step, training.most_steps, training.warmup)
    for group in optimizer.param_groups:
        group["lr"] = training.rate * factor


@torch.no_grad()
def _loss(net: nn.Module, data: Digits) -> float:
    """Over all samples."""
    return F.cross_entropy(net(data.x), data.y).item()


@torch.no_grad()
def _accuracy(net: nn.Module) -> float:
    """The share of test images whose digit is right."""
    tests = digits("test")
    return (net(tests.x).argmax(dim=1) == tests.y).float().mean().item()
