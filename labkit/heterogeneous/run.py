"""A training step on real ranks of unlike speed: the very step that ``step`` predicts.

    heterogeneous.Step(speeds=(1, 3), split="by speed").run().timeline()

The classifier of digits really learns, and its weights are held against one process that trains on
whole batches. How long a sample takes is stated (paced); ``speeds`` measures it, as one would on
machines whose speed nobody states.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.heterogeneous import split
from labkit.heterogeneous.step import Step
from labkit.large_batch.digits_run import Digits, classifier, digits
from labkit.measure import links, pace, trace, traffic
from labkit.measure.apart import difference

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 120.0
RATE = 0.4
PROBE = 8
"""samples of a probe"""
TRIES = 3
"""how often; the shortest time counts, because nothing makes a rank faster than it is"""


def start(step: Step) -> "Job":
    """Trains at the stated speeds, in the background; ``step.run()`` starts it and waits."""
    from labkit.launching import launcher

    return launcher.start(_train, step, images(), ranks=step.ranks, timeout_s=TIMEOUT_S)


@functools.cache
def images(part: str = "train") -> Digits:
    """The digits, read once in the notebook and handed to ranks: what reads them takes a second to
    import. Raises ValueError for a part that is not "train" or "test"."""
    return digits(part)


def here(data: Digits) -> Digits:
    """The same on this rank's device."""
    device = torch.get_default_device()
    return Digits(x=data.x.to(device), y=data.y.to(device))


def speeds(work: Callable[[int], Any], num_samples: int = PROBE) -> list[float]:
    """Samples a second of every rank, the same list on each.

    All ranks do ``work(num_samples)`` three times, after one call that does not count, and tell one
    another the shortest time.
    """
    work(1)
    took_s = []
    for _ in range(TRIES):
        dist.barrier()
        began_s = time.perf_counter()
        work(num_samples)
        took_s.append(time.perf_counter() - began_s)
    mine = torch.tensor([num_samples / min(took_s)])
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return [each.item() for each in found]


# --- in the ranks ---


def _train(step: Step, data: Digits) -> dict:
    """One rank: probes, trains, records the last step, and trains alone on whole batches."""
    torch.set_num_threads(1)
    me = dist.get_rank()
    data = here(data)
    paced = pace.Paced(classifier(), forward_us=0.0, name="0")
    _backward(paced, data, range(1), step.batch)  # warms up
    paced.zero_grad()
    found = speeds(lambda num: _probe(paced, step, data, num))
    word = "by speed" if step.split == "probed" else step.split
    samples = split.dealt(word, found if step.split == "probed" else step.speeds, step.batch)
    first = sum(samples[:me])
    _take(paced, step, samples[me])
    counted_per_step = split.weights(samples)[me] if step.weighted else 1 / step.ranks
    step_us = []
    with links.stated(lambda message: 1e3 * step.link_ms, label=lambda message: "gradient") as link:
        for number in range(step.num_steps + 1):
            last = number == step.num_steps
            mine = range(step.batch * number + first, step.batch * number + first + samples[me])
            recording = trace.record(operators=False) if last else contextlib.nullcontext()
            dist.barrier()
            began_s = time.perf_counter()
            with recording, traffic.count() as counted:
                _step(paced, data, mine, counted_per_step)
            step_us.append(1e6 * (time.perf_counter() - began_s))
    return {
        "samples": samples[me],
        "samples_per_s": found,
        "step_us": step_us[1:],
        "overruns": paced.pace.num_overruns + link.num_overruns,
        "weight_difference": difference(_weights(paced.module), _weights(_alone(step, data))),
        "payload_bytes": counted.payload_bytes["all_reduce"],
    }


def _take(paced: pace.Paced, step: Step, num_samples: int) -> None:
    """Makes so many samples take what this rank needs for them."""
    each_us = 1e3 * step.sample_ms / step.speeds[dist.get_rank()]
    paced.forward_us = num_samples * each_us / 3
    paced.backward_us = 2 * paced.forward_us


def _probe(paced: pace.Paced, step: Step, data: Digits, num_samples: int) -> None:
    """Some samples at this rank's pace; nothing is learned."""
    _take(paced, step, num_samples)
    _backward(paced, data, range(num_samples), num_samples)
    paced.zero_grad()


def _step(paced: pace.Paced, data: Digits, mine: range, weight: float) -> None:
    """Its own samples' mean gradient, weighed; summed over the ranks; one step of SGD."""
    if mine:
        _backward(paced, data, mine, len(mine))
    gradients = [_gradient(each) for each in paced.parameters()]
    message = weight * torch.cat([each.flatten() for each in gradients])
    dist.all_reduce(message)
    _update(paced, message)


def _backward(net: nn.Module, data: Digits, samples: range, batch: int) -> None:
    """The gradient of these samples' losses, summed and divided by ``batch``."""
    chosen = [each % len(data.y) for each in samples]
    (F.cross_entropy(net(data.x[chosen]), data.y[chosen], reduction="sum") / batch).backward()


def _gradient(weight: nn.Parameter) -> Tensor:
    """Nothing of a rank that had no samples."""
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


@torch.no_grad()
def _update(net: nn.Module, gradient: Tensor) -> None:
    """One step of SGD with a flat gradient; the old ones go."""
    start = 0
    for weight in net.parameters():
        weight -= RATE * gradient[start : start + weight.numel()].view_as(weight)
        weight.grad = None
        start += weight.numel()


def _alone(step: Step, data: Digits) -> nn.Module:
    """One process, the same batches."""
    net = classifier()
    for number in range(step.num_steps + 1):
        _backward(net, data, range(step.batch * number, step.batch * (number + 1)), step.batch)
        _update(net, torch.cat([each.grad.flatten() for each in net.parameters()]))
    return net


def _weights(net: nn.Module) -> list[Tensor]:
    return [each.detach() for each in net.parameters()]
