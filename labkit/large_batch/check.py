"""The exercises of chapter 12, large batches. An update is held against one process, a noise
against gradients that were drawn with a known one, a schedule against samples."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from labkit.check import exercise, faults, hint, on_ranks, over_budget, status, wrong
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["growing_batch", "hint", "lars_on_shards", "noise_scale", "status"]

SIGNS = " .:-=+*#%@"
"""a rate as a sign, from nothing to the highest"""


@exercise
def growing_batch(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(seen, batch, base_batch, base_rate, warmup, total)`` is the learning rate of a step
    of ``batch`` samples, before which ``seen`` samples were seen.

    All is told in samples, since the batch may grow while it trains. ``base_rate`` is right for
    ``base_batch``, and the linear rule holds. The rate rises in a line with the samples seen at the
    *end* of the step, until ``warmup``; a step that begins at ``warmup`` or later follows a cosine
    from the whole rate down to nothing at ``total``. A wrong schedule is drawn.
    """
    for base, rate, warmup, batches in (
        (32, 0.1, 320, [32] * 40),
        (32, 0.1, 256, [32] * 20 + [128] * 10),
        (64, 0.4, 512, [256, 128] * 6),
        (16, 0.05, 0, [16] * 8 + [8] * 8),
    ):
        total = sum(batches)
        mine = []
        right = []
        seen = 0
        for batch in batches:
            mine.append(float(answer(seen, batch, base, rate, warmup, total)))
            right.append(_rate(seen, batch, base, rate, warmup, total))
            seen += batch
        step = _first_unlike(mine, right)
        if step is not None:
            yield wrong(
                "batches {batches}, right for {base} is {rate:g}, warm-up {warmup} samples: step "
                "{step} has rate {mine:.4g}; right is {right:.4g}\nyours  {drawn}\nright  {due}",
                batches=_brief(batches),
                base=base,
                rate=rate,
                warmup=warmup,
                step=step,
                mine=mine[step],
                right=right[step],
                drawn=_drawn(mine, max(right)),
                due=_drawn(right, max(right)),
            )


def _rate(seen: int, batch: int, base: int, rate: float, warmup: int, total: int) -> float:
    """The rate of one step."""
    whole = rate * batch / base
    if seen < warmup:
        return whole * min(1.0, (seen + batch) / warmup)
    return whole * 0.5 * (1 + math.cos(math.pi * (seen - warmup) / (total - warmup)))


def _first_unlike(mine: Sequence[float], right: Sequence[float]) -> int | None:
    """The first step whose rate is another one."""
    for step, (one, due) in enumerate(zip(mine, right, strict=True)):
        if not math.isclose(one, due, rel_tol=1e-6, abs_tol=1e-9):
            return step
    return None


def _brief(batches: Sequence[int]) -> str:
    """ "20 x 32, 10 x 128"; of many changes the first few."""
    runs: list[list[int]] = []
    for batch in batches:
        if runs and runs[-1][1] == batch:
            runs[-1][0] += 1
        else:
            runs.append([1, batch])
    told = ", ".join(f"{num} x {batch}" for num, batch in runs[:4])
    return told + (", ..." if len(runs) > 4 else "")


def _drawn(rates: Sequence[float], highest: float) -> str:
    """A sign per step."""
    signs = ""
    for rate in rates:
        share = rate / highest if math.isfinite(rate) else 1.0
        signs += SIGNS[min(len(SIGNS) - 1, max(0, round(share * (len(SIGNS) - 1))))]
    return signs


@exercise
def lars_on_shards(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(weights, gradients, rate, trust)`` does one update of LARS, without momentum and
    decay, where each rank holds a part of every layer.

    ``weights`` and ``gradients`` are lists, an entry per layer: this rank's part, flat, maybe
    empty; the gradients are averaged already. In place, each layer moves by rate x trust x (length
    of the whole layer / length of its whole gradient) x gradient; where either length is 0, by rate
    x gradient, as in SGD. Budget: one collective, two floats a layer. Run on real ranks.
    """
    for num_ranks, sizes in ((2, (12, 5)), (3, (7, 2, 30)), (4, (64, 3, 1, 16))):
        run = on_ranks(num_ranks, _sharded, answer, sizes)
        case = say("{num_ranks} ranks, layers of {sizes} weights", num_ranks=num_ranks, sizes=sizes)
        yield from faults(case, run)
        calls = max(each[1] for each in run)
        sent = max(each[2] for each in run)
        if calls > 1:
            yield over_budget(
                "{case}: {calls} collectives; the squares of all layers fit into one",
                case=case,
                calls=calls,
            )
        elif sent > 8 * len(sizes):
            yield over_budget(
                "{case}: {sent} bytes handed to collectives; two floats a layer are {due}",
                case=case,
                sent=sent,
                due=8 * len(sizes),
            )


@exercise
def noise_scale(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(gradient, num_samples)`` returns (variance, square), floats, the same on every rank,
    and leaves in ``gradient``, flat, the mean over all samples of all ranks.

    Before, it is the mean over this rank's own ``num_samples``, 1 or more and not the same on every
    rank. ``variance`` is that of one sample's gradient, summed over the weights; ``square`` the
    squared length of the true gradient: both right on average over many steps. Budget: one
    collective, the gradient and at most four floats. Run on real ranks.
    """
    for shares in ((8, 8), (2, 6, 4), (1, 10)):
        run = on_ranks(len(shares), _noisy, answer, shares, hang_s=25)
        case = say("the ranks have {shares} samples", shares=shares)
        yield from faults(case, run)
        calls = max(each[1] for each in run)
        sent = max(each[2] for each in run)
        due = run[0][3]
        if calls > 1:
            yield over_budget(
                "{case}: {calls} collectives a step; what one number needs can travel with the "
                "gradient",
                case=case,
                calls=calls,
            )
        elif sent > due + 16:
            yield over_budget(
                "{case}: {sent} bytes handed to collectives; the gradient has {due}",
                case=case,
                sent=sent,
                due=due,
            )


# --- in the ranks ---

DRAWS = 60
"""steps of a noise"""
WIDTH = 400
"""weights of its gradient"""


def _sharded(answer: Callable, sizes: Sequence[int]) -> tuple[str, int, int]:
    """What is wrong with a rank's parts; collectives; bytes handed to them."""
    import torch
    from torch import distributed as dist

    from labkit.measure import traffic

    torch.manual_seed(0)
    rate, trust = 0.5, 0.02
    whole = [torch.randn(size) for size in sizes]
    gradients = [3 * torch.randn(size) for size in sizes]
    whole[1].zero_()  # a layer that begins at nothing
    due = []
    for layer, gradient in zip(whole, gradients, strict=True):
        scale = trust * layer.norm() / gradient.norm() if layer.norm() > 0 else 1.0
        due.append(_part(layer - rate * scale * gradient))
    mine = [_part(each).clone() for each in whole]
    with traffic.count() as counted:
        answer(mine, [_part(each).clone() for each in gradients], rate, trust)
    fault = ""
    for number, (one, right) in enumerate(zip(mine, due, strict=True)):
        if not fault and not torch.allclose(one, right, rtol=1e-4, atol=1e-6):
            fault = say(
                "layer {number}, {size} of {all} weights here: they are {mine}; right is {right}",
                number=number,
                size=len(one),
                all=sizes[number],
                mine=_listed(one),
                right=_listed(right),
            )
    dist.barrier()
    return fault, counted.calls.total(), counted.payload_bytes.total()


def _part(whole: "Tensor") -> "Tensor":
    """This rank's part of a layer; the last ranks' may be empty."""
    from torch import distributed as dist

    size = -(-len(whole) // dist.get_world_size())
    rank = dist.get_rank()
    return whole[rank * size : (rank + 1) * size]


def _listed(tensor: "Tensor") -> str:
    """The first three numbers."""
    told = ", ".join(f"{each:.3g}" for each in tensor[:3].tolist())
    return f"[{told}{', ...' if len(tensor) > 3 else ''}]"


def _noisy(answer: Callable, shares: Sequence[int]) -> tuple[str, int, int, int]:
    """What is wrong; the most collectives of a step; the most bytes; those of the gradient.

    Each sample's gradient is drawn around a true one, with a noise that is known.
    """
    import torch
    from torch import distributed as dist

    from labkit.measure import traffic

    torch.manual_seed(1)  # every rank draws alike
    true = torch.randn(WIDTH) / WIDTH**0.5
    spread = 2.0
    told = []
    calls = sent = 0
    for step in range(DRAWS):
        torch.manual_seed(2 + step)
        samples = true + spread / WIDTH**0.5 * torch.randn(sum(shares), WIDTH)
        mine = samples.split(list(shares))[dist.get_rank()].mean(dim=0)
        with traffic.count() as counted:
            found = answer(mine, shares[dist.get_rank()])
        told.append([float(each) for each in found])
        calls = max(calls, counted.calls.total())
        sent = max(sent, counted.payload_bytes.total())
        if not torch.allclose(mine, samples.mean(dim=0), rtol=1e-4, atol=1e-5):
            return say("gradient is not the mean over all samples"), calls, sent, mine.nbytes
    return _biased(told, spread**2, true.square().sum().item()), calls, sent, 4 * WIDTH


def _biased(told: Sequence[Sequence[float]], variance: float, square: float) -> str:
    """Which of the two is wrong on average, in words, or nothing; and whether ranks disagree."""
    import torch
    from torch import distributed as dist

    every: list = [None] * dist.get_world_size()
    dist.all_gather_object(every, told[-1])
    if any(not math.isclose(a, b, rel_tol=1e-5) for a, b in zip(every[0], told[-1], strict=True)):
        return say("rank 0 says {theirs}, this one {mine}", theirs=every[0], mine=told[-1])
    means = torch.tensor(told).mean(dim=0).tolist()
    for name, mean, right in zip(("variance", "square"), means, (variance, square), strict=True):
        if abs(mean - right) > 0.12 * right:
            return say(
                "{name} is {mean:.3g} on average over {draws} steps; the samples were drawn with "
                "{right:.3g}",
                name=name,
                mean=mean,
                draws=len(told),
                right=right,
            )
    return ""
