"""Synchronous, bounded or asynchronous training against one wall clock, with workers of unlike
speed, or of a speed that changes.

    heterogeneous.Training(way="bounded", hiccup=0.1).run()[0]["losses"]

Rank 0 is a parameter server (chapter 03 writes one), the others are workers. Computing is paced;
messages, weights and what is learned are real. Losses are computed after the clock has stopped.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.data_parallel import server_run
from labkit.heterogeneous import split
from labkit.heterogeneous.run import images
from labkit.large_batch.digits_run import Digits, classifier
from labkit.measure import pace
from labkit.units import check_real, check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.run import Run

WAYS = ("synchronous", "bounded", "asynchronous")
WITHOUT = 10**9
"""a bound that nobody meets"""
HICCUP = 6
"""so many times as long a step with a hiccup takes"""
MOST_LOOKS = 40
"""points of a curve"""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training of the classifier of digits for ``seconds`` of wall clock.

    ``run()[0]`` is a dict: losses (seconds -> loss over the whole training set), accuracy (of the
    test set), updates (gradients in the last weights; those of a round that the end cut off are
    none), mean lateness and latest (of a gradient, in versions of the weights). Raises ValueError
    for what can't be.
    """

    way: str = "synchronous"
    """"synchronous"; "bounded": no worker more than ``bound`` steps ahead of the slowest (Ho et al.
    2013); or "asynchronous": nobody waits"""
    bound: int = 2
    """steps"""
    speeds: tuple[float, ...] = (4.0, 4.0, 1.0)
    """of each worker"""
    hiccup: float = 0.0
    """the share of steps, drawn at random on each worker, that take six times as long"""
    split: str = "equal"
    """a word of ``split.SPLITS``"""
    batch: int = 48
    """samples of all workers together"""
    sample_ms: float = 4.0
    """forward and backward of a sample at speed 1"""
    rate: float = 0.4
    """the learning rate of a whole batch; a gradient of b of B samples counts b / B of it"""
    seconds: float = 2.0
    """of training"""
    seed: int = 0
    """of samples and hiccups"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "speeds", tuple(self.speeds))
        check_word(self.way, WAYS, "a way")
        check_whole(0, WITHOUT, bound=self.bound)
        check_whole(1, 16, workers=len(self.speeds))
        check_whole(0, 2**31 - 1, seed=self.seed)
        check_real(0, 1, hiccup=self.hiccup)
        check_real(1e-6, 1e4, sample_ms=self.sample_ms)
        check_real(1e-12, 1e6, rate=self.rate)
        check_real(0.01, 60, seconds=self.seconds)
        if not all(self.samples()):
            raise ValueError(
                f"every worker has a sample or more; split {self.split!r} deals {self.batch} as "
                f"{self.samples()}. Take a larger batch"
            )

    def samples(self) -> tuple[int, ...]:
        """Of each worker's step."""
        return split.dealt(self.split, self.speeds, self.batch)

    @property
    def most_ahead(self) -> int:
        """Steps that a worker may be ahead of the slowest."""
        return {"synchronous": 0, "bounded": self.bound, "asynchronous": WITHOUT}[self.way]

    def run(self) -> "Run":
        """The training on real ranks, on the CPU: a server receives from whoever comes first."""
        data = (images(), images("test"))
        return server_run.on_host(_serve_or_work, self, *data, ranks=1 + len(self.speeds))


# --- in the ranks ---


def _serve_or_work(training: Training, data: Digits, tests: Digits) -> dict[str, Any] | None:
    """One rank: the server or, but for rank 0, a worker."""
    torch.set_num_threads(1)
    net = classifier()
    paced = pace.Paced(net, forward_us=0.0)
    F.cross_entropy(paced(data.x[:16]), data.y[:16]).backward()  # warms up
    dist.barrier()
    if dist.get_rank():
        return _work(training, data, net, paced)
    seen, late = _serve(training, _flat(net.parameters()))
    used = {each: late.count(each) for each in set(late)}
    return {
        "losses": dict(_losses(net, data, seen)),
        "accuracy": _accuracy(net, tests),
        "updates": len(late),
        "mean lateness": sum(each * num for each, num in used.items()) / max(1, len(late)),
        "latest": max(late, default=0),
    }


def _serve(training: Training, weights: Tensor) -> tuple[list[tuple[float, Tensor]], list[int]]:
    """Takes gradients and gives weights until the time is over: (seconds, weights) that were given,
    and how late each gradient in the last of them was."""
    steps = dict.fromkeys(range(1, dist.get_world_size()), 0)
    counts = split.weights(training.samples())
    waiting: list[int] = []
    late: list[int] = []
    used = 0
    version = 0
    message = server_run.stamped(weights, version)
    seen = [(0.0, weights.clone())]
    began_s = time.perf_counter()
    while True:
        worker = dist.recv(message)  # from whoever comes first
        waiting.append(worker)
        now_s = time.perf_counter() - began_s
        if now_s > training.seconds:
            break
        weights -= training.rate * counts[worker - 1] * message[:-1]
        late.append(version - int(message[-1]))
        steps[worker] += 1
        slowest = min(steps.values())
        go = [each for each in waiting if steps[each] - slowest <= training.most_ahead]
        if go:
            version += 1
            seen.append((now_s, weights.clone()))
            used = len(late)
        for each in go:
            waiting.remove(each)
            dist.send(server_run.stamped(weights, version), each)
    server_run.finish(message, waiting)
    return seen, late[:used]


def _work(training: Training, data: Digits, net: nn.Module, paced: pace.Paced) -> None:
    """Sends gradients and takes weights until their version says that it is over."""
    me = dist.get_rank() - 1
    draw = np.random.default_rng((training.seed, me))
    num = training.samples()[me]
    forward_us = 1e3 * training.sample_ms * num / training.speeds[me] / 3
    version = 0
    while version >= 0:
        mine = draw.integers(len(data.y), size=num)
        paced.forward_us = forward_us * (HICCUP if draw.random() < training.hiccup else 1)
        paced.backward_us = 2 * paced.forward_us
        net.zero_grad()
        F.cross_entropy(paced(data.x[mine]), data.y[mine]).backward()
        message = server_run.stamped(_flat([each.grad for each in net.parameters()]), version)
        dist.send(message, 0)
        dist.recv(message, 0)
        version = int(message[-1])
        _put(net, message[:-1])


def _losses(
    net: nn.Module, data: Digits, seen: Sequence[tuple[float, Tensor]]
) -> Iterator[tuple[float, float]]:
    """(seconds, loss over the training set) of some of the weights, the last ones among them."""
    every = -(-len(seen) // MOST_LOOKS)
    with torch.no_grad():
        for index, (at_s, weights) in enumerate(seen):
            if index % every and index < len(seen) - 1:
                continue
            _put(net, weights)
            yield round(at_s, 4), F.cross_entropy(net(data.x), data.y).item()


@torch.no_grad()
def _accuracy(net: nn.Module, tests: Digits) -> float:
    """The share of test images whose digit is right."""
    return (net(tests.x).argmax(dim=1) == tests.y).float().mean().item()


def _flat(tensors: Any) -> Tensor:
    return torch.cat([each.detach().flatten() for each in tensors])


@torch.no_grad()
def _put(net: nn.Module, flat: Tensor) -> None:
    """Flat weights into the net."""
    start = 0
    for weight in net.parameters():
        weight.copy_(flat[start : start + weight.numel()].view_as(weight))
        start += weight.numel()
