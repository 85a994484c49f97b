"""The exercises of chapter 11, communication made cheaper and hidden. Answers are graded at sizes
it does not show."""

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from labkit.check import exercise, hint, on_ranks, over_budget, status, unlike, wrong
from labkit.words import say

__all__ = [
    "accumulate",
    "break_even",
    "error_feedback",
    "experiment",
    "hint",
    "ring_order",
    "status",
]

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

    ``ddp`` is a DistributedDataParallel, a microbatch a pair (inputs, targets), different on every
    rank and of different sizes, as many samples in all on each. The loss is ``mse_loss`` over all
    samples of all microbatches and ranks. Run on real ranks.
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
        inputs = torch.randn(dist.get_world_size(), 3 * num_parts, 6)
        targets = torch.randn(dist.get_world_size(), 3 * num_parts, 2)
        sizes = _uneven(num_parts, step + rank)
        for net in (model, alone):
            net.zero_grad()
        nn.functional.mse_loss(alone(inputs), targets).backward()
        right = {name: weight.grad for name, weight in alone.named_parameters()}
        with traffic.count() as counted:
            parts = (inputs[rank].split(sizes), targets[rank].split(sizes))
            answer(ddp, list(zip(*parts, strict=True)))
        sent_bytes.append(counted.payload_bytes.total())
        fault = _difference(model, right)
        if fault:
            faults.append(say("update {step}, {fault}", step=step, fault=fault))
        for net in (model, alone):
            torch.optim.SGD(net.parameters(), lr=0.1).step()
    least = sum(grad.nbytes for grad in right.values())
    return faults[0] if faults else "", sorted(sent_bytes)[1], least


def _uneven(num_parts: int, turn: int) -> list[int]:
    """The sizes of so many microbatches, three samples in the mean: first even, then uneven by
    turns."""
    by = (0, 1, 2)[turn % 3]
    return [3 + by * sign for sign in (1, -1) * (num_parts // 2)] + [3] * (num_parts % 2)


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
    answer: Callable, size: int, k: int, num_steps: int = 100
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
def break_even(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(times_ms, before_mb, after_mb, hidden_ms)`` gives the speed of a link in GB/s, up to
    5 %, at which a step takes as long with compression as without.

    ``times_ms``: 18 measured times of compressing; the first three are slow, some others disturbed.
    What a message takes beyond ``hidden_ms`` is exposed; compressing is exposed in any case.
    """
    chance = random.Random(11)
    for number in range(40):
        took_ms = chance.uniform(1, 20)
        before_mb = chance.uniform(20, 400)
        after_mb = before_mb * chance.choice((1 / 2, 1 / 4, 1 / 50))
        hidden_ms = chance.choice((0.0, 5.0, 40.0)) if number else 0.0
        once = functools.partial(_measure, {(1, ""): took_ms}, Counter(), chance)
        times_ms = [once({"accumulate": 1, "compression": ""}) for _ in range(18)]
        given = answer(list(times_ms), before_mb, after_mb, hidden_ms)
        right = min((before_mb - after_mb) / took_ms, before_mb / (hidden_ms + took_ms))
        if not abs(given - right) <= 0.05 * right:
            first = ", ".join(f"{ms:.3g}" for ms in times_ms[:5])
            yield wrong(
                "answer({case}) is {given!r:.60}; right is {right}",
                case=f"[{first}, ...], {before_mb:.4g}, {after_mb:.4g}, {hidden_ms:g}",
                given=given,
                right=round(right, 2),
            )


@exercise
def ring_order(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(places)`` gives the ranks in ring order: as few links between racks as can be, and
    then as few between machines.

    ``places[rank]`` is (rack, machine), the machines of each rack counted from 0. A ring of N ranks
    has N links, the last rank back to the first.
    """
    for places in _places():
        size = len(places)
        order = list(answer(list(places)))
        if sorted(order) != list(range(size)):
            yield wrong(
                "answer({places}) is {order!r:.60}; a ring names each of {size} ranks once",
                places=places,
                order=order,
                size=size,
            )
        mine = _crossings(places, order)
        least = _crossings(places, sorted(range(size), key=places.__getitem__))
        if mine != least:
            yield over_budget(
                "places {places}, ring {order}: {racks} links between racks and {machines} between "
                "machines of a rack; {few_racks} and {few_machines} will do",
                places=places,
                order=order,
                racks=mine[0],
                machines=mine[1],
                few_racks=least[0],
                few_machines=least[1],
            )


def _crossings(places: Sequence[tuple[int, int]], ring: Sequence[int]) -> tuple[int, int]:
    """A ring's links between racks, and those between machines of one rack."""
    racks = 0
    machines = 0
    for a, b in zip(ring, [*ring[1:], ring[0]], strict=True):
        racks += places[a][0] != places[b][0]
        machines += places[a][0] == places[b][0] and places[a][1] != places[b][1]
    return racks, machines


def _places() -> Iterator[list[tuple[int, int]]]:
    """Where ranks stand: dealt out to two machines in turn; to racks in turn; one alone; dealt out
    by chance to machines of unequal size."""
    yield [(0, rank % 2) for rank in range(8)]
    yield [(rank % 2, rank // 2 % 2) for rank in range(8)]
    yield [(0, 0)]
    chance = random.Random(4)
    yield [(chance.randrange(3), chance.randrange(3)) for _ in range(16)]


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
