"""The exercises of chapter 11, communication made cheaper and hidden. Answers are graded at sizes
it does not show."""

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from labkit.check import exercise, hint, on_ranks, over_budget, status, unlike, wrong
from labkit.words import say

__all__ = ["accumulate", "error_feedback", "experiment", "hint", "ring_order", "status"]

_KEYS = ("accumulate", "compression")
_KINDS = {
    "none": (0, 1.0),
    "fp16": (300, 0.5),
    "top-k 1 %": (2500, 0.02),
    "powersgd": (5000, 0.03),
}  # us, share sent
_MACHINES = (
    (4000, 30_000),
    (20_000, 5000),
    (9000, 14_000),
    (30_000, 60_000),
)  # compute and communication, us
_MOST_STEPS = 25


@exercise
def accumulate(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(ddp, microbatches)`` leaves in ``ddp`` the gradients of the whole batch, after one
    all-reduce of them.

    Three updates are made with them, and each gradient is compared with that of one process that
    trains on all of it.

    ``ddp`` is a DistributedDataParallel, a microbatch a pair (inputs, targets), all of one size,
    different on every rank. The loss is ``mse_loss`` over all samples of all microbatches and
    ranks. Run on real ranks.
    """
    for num_ranks, num_parts in ((2, 4), (2, 1), (3, 5)):
        run = on_ranks(num_ranks, _accumulated, answer, num_parts)
        case = say(
            "{num_ranks} ranks, {num_parts} microbatches", num_ranks=num_ranks, num_parts=num_parts
        )
        for rank, (fault, sent, least) in enumerate(run):
            if fault:
                yield wrong("{case}, rank {rank}: {fault}", case=case, rank=rank, fault=fault)
            if sent > 1.5 * least:  # DDP itself sends a few bytes now and then
                yield over_budget(
                    "{case}, rank {rank}: {sent} bytes handed to collectives; one all-reduce: "
                    "{least}",
                    case=case,
                    rank=rank,
                    sent=sent,
                    least=least,
                )


def _accumulated(answer: Callable, num_parts: int) -> tuple[str, int, int]:
    """A rank's side: what is wrong with the gradients, the bytes it communicated, and those of one
    all-reduce."""
    import copy

    import torch
    from torch import distributed as dist
    from torch import nn

    from labkit.measure import traffic

    torch.manual_seed(0)
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    alone = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model)
    faults = []
    sent_bytes = []
    for step in range(3):
        inputs = torch.randn(dist.get_world_size(), num_parts, 3, 6)
        targets = torch.randn(dist.get_world_size(), num_parts, 3, 2)
        for net in (model, alone):
            net.zero_grad()
        nn.functional.mse_loss(alone(inputs), targets).backward()
        right = {name: weight.grad for name, weight in alone.named_parameters()}
        with traffic.count() as counted:
            answer(ddp, list(zip(inputs[rank], targets[rank], strict=True)))
        sent_bytes.append(counted.payload_bytes.total())
        fault = _difference(model, right)
        if fault:
            faults.append(say("update {step}, {fault}", step=step, fault=fault))
        for net in (model, alone):
            torch.optim.SGD(net.parameters(), lr=0.1).step()
    least = sum(grad.nbytes for grad in right.values())
    return faults[0] if faults else "", sorted(sent_bytes)[1], least


def _difference(model: object, right: dict) -> str:
    """The first gradient that is not the right one."""
    for name, weight in model.named_parameters():
        if weight.grad is None:
            return say("{name}.grad is None", name=name)
        fault = unlike(weight.grad, right[name], say("that of the whole batch"))
        if fault:
            return say("{name}.grad {fault}", name=name, fault=fault)
    return ""


@exercise
def error_feedback(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(gradient, memory, k)`` gives (mean, memory): sparse all-reduce with error feedback,
    on real ranks.

    ``gradient`` and ``memory`` (zeros at first, then what the last call gave back) are 1-D float32
    tensors; k is how many values a rank may send in one call, with at most 8 bytes for each.
    ``mean``: what the optimizer uses.
    """
    for num_ranks, size, k in ((2, 40, 2), (3, 30, 1)):
        run = on_ranks(num_ranks, _descended, answer, size, k)
        case = say(
            "{num_ranks} ranks, {size} weights, k = {k}", num_ranks=num_ranks, size=size, k=k
        )
        fault, loss, least, sent = max(run, key=lambda of_rank: (bool(of_rank[0]), of_rank[3]))
        if not fault and loss > 1.02 * least:
            fault = say(
                "the loss ends at {loss:.4f}, and could be {least:.4f}", loss=loss, least=least
            )
        if fault:
            yield wrong("{case}: {fault}", case=case, fault=fault)
        if sent > 8 * k:
            yield over_budget(
                "{case}: {sent:g} bytes handed to collectives per call, allowed are {allowed}",
                case=case,
                sent=sent,
                allowed=8 * k,
            )


def _descended(
    answer: Callable, size: int, k: int, num_steps: int = 250
) -> tuple[str, float, float, float]:
    """A rank's side, least squares: what goes wrong in the sums; the loss at the end, and at best;
    bytes per call."""
    import torch
    from torch import distributed as dist

    from labkit.measure import traffic

    rank = dist.get_rank()
    num_ranks = dist.get_world_size()
    torch.manual_seed(1)
    inputs = torch.randn(num_ranks, 4 * size, size)
    targets = 3 * torch.randn(num_ranks, 4 * size)
    weights, memory, given, kept = torch.zeros(4, size)
    fault = ""
    sent_bytes = []
    for step in range(num_steps):
        gradient = inputs[rank].T @ (inputs[rank] @ weights - targets[rank]) / (4 * size)
        with traffic.count() as counted:
            mean, memory = answer(gradient.clone(), memory.clone(), k)
        sent_bytes.append(counted.payload_bytes.total())
        given = given + mean
        kept = kept + gradient
        weights = weights - 0.05 * mean
        if step in (0, 1, num_steps - 1):  # on every rank, whatever it found before
            found = _unbalanced(step, given, memory, kept)
            fault = fault or found
    flat = inputs.flatten(0, 1)
    aims = targets.flatten()
    best = torch.linalg.lstsq(flat, aims[:, None]).solution[:, 0]
    loss = float((flat @ weights - aims).square().mean())
    least = float((flat @ best - aims).square().mean())
    return fault, loss, least, max(sent_bytes)


def _unbalanced(step: int, given: object, memory: object, kept: object) -> str:
    """Whether all that was given so far and the mean of what is remembered make up the mean of all
    gradients."""
    import torch
    from torch import distributed as dist

    sums = torch.stack([given, memory, kept])
    dist.all_reduce(sums)  # 12 bytes a weight: not the answer's
    mean_given, mean_memory, mean_kept = sums / dist.get_world_size()
    if not torch.allclose(mean_given, given, atol=1e-4):
        return say("call {step}: the ranks get different means", step=step + 1)
    off = float((mean_given + mean_memory - mean_kept).abs().max())
    if off > 1e-3 * max(1.0, float(mean_kept.abs().max())):
        return say(
            "after call {step}, sent so far + mean memory is off the mean of all gradients by "
            "{off:.3g}",
            step=step + 1,
            off=off,
        )
    return ""


@exercise
def ring_order(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(bandwidths)`` gives the ranks in ring order: its slowest link as fast as can be, and
    used least.

    ``bandwidths[a][b]`` in GB/s, the same both ways. A ring of N ranks has N links, the last rank
    back to the first.
    """
    for matrix in _matrices():
        size = len(matrix)
        order = list(answer([list(row) for row in matrix]))
        table = "\n".join(map(_line, matrix))
        if sorted(order) != list(range(size)):
            yield wrong(
                "answer(bandwidths) is {order!r:.60}; a ring names each of {size} ranks "
                "once\n{table}",
                order=order,
                size=size,
                table=table,
            )
        rings = ([0, *rest] for rest in itertools.permutations(range(1, size)))
        best = max(rings, key=lambda ring: _rate(matrix, ring))
        (mine, uses) = _rate(matrix, order)
        (fast, fewest) = _rate(matrix, best)
        if (mine, uses) != (fast, fewest):
            yield over_budget(
                "{order}: slowest link {mine:g} GB/s, used {often} times; {best}: {fast:g} GB/s, "
                "{seldom} times\n{table}",
                order=order,
                mine=mine,
                often=-uses,
                best=best,
                fast=fast,
                seldom=-fewest,
                table=table,
            )


def _line(row: Sequence[float]) -> str:
    """A line of a table."""
    return " ".join(f"{value:4g}" for value in row)


def _rate(matrix: Sequence[Sequence[float]], ring: Sequence[int]) -> tuple[float, int]:
    """A ring's slowest link, and how often it has one so slow, as a negative number: more is better
    in both."""
    links = [matrix[a][b] for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)]
    return min(links), -links.count(min(links))


def _matrices() -> Iterator[list[list[float]]]:
    """Bandwidths: two islands, their ranks mixed; a chain of fast links; a cube with doubled edges;
    at random."""
    yield _matrix(6, lambda a, b: 50 if a % 2 == b % 2 else 5)
    place = [3, 0, 4, 1, 5, 2]
    yield _matrix(6, lambda a, b: 25 if abs(place[a] - place[b]) in (1, 5) else 10)
    cube = {1: 40, 2: 40, 4: 20}  # by the bit in which two ranks differ
    yield _matrix(8, lambda a, b: cube.get(a ^ b, 8))
    yield _matrix(2, lambda a, b: 7)
    chance = random.Random(4)
    pairs = itertools.combinations(range(7), 2)
    drawn = {pair: chance.choice((10, 12, 25, 50)) for pair in pairs}
    yield _matrix(7, lambda a, b: drawn[min(a, b), max(a, b)])


def _matrix(size: int, bandwidth: Callable[[int, int], float]) -> list[list[float]]:
    """What joins any two different ranks, in GB/s; 0 on the diagonal."""
    matrix = [[0] * size for _ in range(size)]
    for a, b in itertools.permutations(range(size), 2):
        matrix[a][b] = bandwidth(a, b)
    return matrix


@exercise
def experiment(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(measure, settings)`` gives the setting with the most samples per second.

    A setting is a dict: accumulate (microbatches of 8 samples per step) and compression (a name).
    ``measure(setting)`` runs one step and returns its microseconds. Steps vary by some per cent,
    the first three of a setting warm up, now and then one is disturbed. At most 25 steps may be
    measured per setting. The times are simulated.
    """
    for seed, (compute_us, comm_us) in enumerate(4 * _MACHINES):
        true_us = _true_us(compute_us, comm_us, (1, 2, 4) if seed % 2 else (1, 2))
        taken: Counter = Counter()
        chance = random.Random(seed)
        settings = [dict(zip(_KEYS, pair, strict=True)) for pair in true_us]
        chance.shuffle(settings)
        given = answer(functools.partial(_measure, true_us, taken, chance), settings)
        chosen = tuple(dict(given or {}).get(key) for key in _KEYS)
        rates = {pair: 8e6 * pair[0] / us for pair, us in true_us.items()}
        if rates.get(chosen, 0.0) < 0.97 * max(rates.values()):
            lines = [
                say("{rate:6.0f} samples/s: {k} x, {kind}", rate=rate, k=k, kind=kind)
                for (k, kind), rate in rates.items()
            ]
            right = "\n".join(lines)
            yield wrong(
                "you chose {given!r:.70}. Without noise:\n{right}", given=given, right=right
            )
        most = max(taken.values(), default=0)
        if most > _MOST_STEPS:
            yield over_budget(
                "{most} steps measured of one setting; {most_steps} are allowed",
                most=most,
                most_steps=_MOST_STEPS,
            )


def _true_us(
    compute_us: float, comm_us: float, counts: Sequence[int]
) -> dict[tuple[int, str], float]:
    """(accumulate, compression) -> microseconds of a step without noise."""
    times = {}
    for k, (kind, (extra_us, share)) in itertools.product(counts, _KINDS.items()):
        times[k, kind] = k * compute_us + extra_us + share * comm_us
    return times


def _measure(true_us: dict, taken: Counter, chance: random.Random, setting: dict) -> float:
    """One step's microseconds: the truth, a little noise, and now and then a disturbance, more so
    in the beginning."""
    pair = tuple(setting[key] for key in _KEYS)
    taken[pair] += 1
    slow = chance.uniform(4, 12) if taken[pair] <= 3 or chance.random() < 0.1 else 1.0
    return slow * true_us[pair] * chance.uniform(0.97, 1.03)
