"""The exercises of chapter 03, data parallelism. Answers are graded at sizes that the chapter does
not show."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from math import ceil
from typing import TYPE_CHECKING

from labkit.check import (
    exercise,
    faults,
    hint,
    on_ranks,
    over_budget,
    status,
    unlike,
    wrong,
)
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["average_uneven", "bucket_gradients", "hint", "shard_indices", "status"]


@exercise
def average_uneven(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(model, num_samples)`` leaves in ``model`` the gradient of the mean loss over all
    samples of all ranks.

    Before, a rank's gradients are those of the mean over its own ``num_samples``; where that is 0
    they are None. Frozen parameters have none anywhere, and get none. Budget: the gradients once,
    and a few numbers. Run on real ranks.
    """
    for shares in ((5, 2), (1, 0, 4), (0, 3)):
        run = on_ranks(len(shares), _uneven, answer, shares)
        case = say("the ranks have {shares} samples", shares=shares)
        yield from faults(case, run)
        most = max(sent for _, _, sent, *_ in run)
        if most > run[0][3] + 64:
            yield over_budget(
                "{case}: {most} bytes handed to collectives; the gradients have {due}",
                case=case,
                most=most,
                due=run[0][3],
            )


@exercise
def bucket_gradients(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(model, bucket_bytes)`` averages the gradients of all ranks in few messages. Run on
    real ranks.

    Some weights are shared by two layers, some are frozen (their gradient is None). Budget: at most
    ceil(all gradients' bytes / bucket_bytes) messages, every gradient in one of them once; and none
    may be longer than bucket_bytes by a whole gradient.
    """
    for num_ranks, bucket_bytes in ((2, 1000), (3, 400), (2, 40), (2, 100_000)):
        run = on_ranks(num_ranks, _bucketed, answer, bucket_bytes)
        case = say(
            "{num_ranks} ranks, buckets of {bucket_bytes} bytes",
            num_ranks=num_ranks,
            bucket_bytes=bucket_bytes,
        )
        yield from faults(case, run)
        _, calls, sent, total, longest, largest = run[0]
        if calls > ceil(total / bucket_bytes):
            yield over_budget(
                "{case}: {calls} messages for {total} bytes of gradients; {enough} are enough",
                case=case,
                calls=calls,
                total=total,
                enough=ceil(total / bucket_bytes),
            )
        if sent != total:
            yield over_budget(
                "{case}: {sent} bytes handed to collectives; the gradients have {total}",
                case=case,
                sent=sent,
                total=total,
            )
        if longest >= bucket_bytes + largest:
            yield over_budget(
                "{case}: {longest} bytes in one message; the first gradients wait for the last",
                case=case,
                longest=longest,
            )


# --- in the ranks ---


def _uneven(answer: Callable, shares: Sequence[int]) -> tuple[str, int, int, int, int]:
    """What is wrong, calls, bytes handed to collectives, bytes of the gradients, bytes of the
    largest call."""
    import torch
    from torch import distributed as dist
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    model[0].bias.requires_grad_(False)
    inputs = torch.randn(sum(shares), 6)
    targets = torch.randn(sum(shares), 2)
    nn.functional.mse_loss(model(inputs), targets).backward()
    right = _gradients(model)
    model.zero_grad()
    rank = dist.get_rank()
    my_inputs = inputs.split(shares)[rank]
    my_targets = targets.split(shares)[rank]
    if len(my_inputs):
        nn.functional.mse_loss(model(my_inputs), my_targets).backward()
    return _counted(lambda: answer(model, len(my_inputs)), model, right)


def _bucketed(answer: Callable, bucket_bytes: int) -> tuple[str, int, int, int, int, int]:
    """As ``_uneven``, and the bytes of the largest gradient."""
    import torch
    from torch import distributed as dist
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(9, 8),
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.Linear(8, 30),
        nn.Linear(30, 8),
        nn.Linear(8, 9, bias=False),
    )
    model[5].weight = model[0].weight
    model[1].requires_grad_(False)
    right = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            gradients = torch.randn(dist.get_world_size(), *weight.shape)
            weight.grad = gradients[dist.get_rank()].clone()
            right[name] = gradients.mean(0)
    largest = max(gradient.nbytes for gradient in right.values())
    return *_counted(lambda: answer(model, bucket_bytes), model, right), largest


def _counted(
    work: Callable, model: "nn.Module", right: "Mapping[str, Tensor]"
) -> tuple[str, int, int, int, int]:
    """Runs an answer: what is wrong with the gradients; calls; bytes of all, of the right
    gradients, of the largest."""
    from labkit.measure import traffic

    with traffic.count() as counted:
        work()
    return (
        _fault(model, right),
        counted.calls.total(),
        counted.payload_bytes.total(),
        sum(each.nbytes for each in right.values()),
        max(counted.largest_bytes.values(), default=0),
    )


def _fault(model: "nn.Module", right: "Mapping[str, Tensor]") -> str:
    """The first gradient that is wrong, in words, or nothing."""
    given = _gradients(model)
    for name, _ in model.named_parameters():
        if name not in given and name not in right:
            continue
        if name not in given:
            return say("{name}.grad is None", name=name)
        if name not in right:
            return say("{name}.grad is set, though the parameter is frozen", name=name)
        found = unlike(given[name], right[name], say("the mean over all samples of all ranks"))
        if found:
            return say("{name}.grad {found}", name=name, found=found)
    return ""


def _gradients(model: "nn.Module") -> "dict[str, Tensor]":
    return {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }


@exercise
def shard_indices(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_samples, rank, num_ranks, epoch)`` lists the samples of a rank in an epoch, in
    its order.

    In an epoch every sample belongs to exactly one rank; shares differ by one sample at most; an
    epoch deals anew. The answer depends on its arguments only, and leaves the global random
    generators as they were.
    """
    for n, num_ranks in ((12, 2), (50, 4), (3, 4), (11, 1), (101, 7)):
        dealt = []
        for epoch in range(3):
            case = say(
                "{n} samples, {num_ranks} ranks, epoch {epoch}",
                n=n,
                num_ranks=num_ranks,
                epoch=epoch,
            )
            shares, drawn_from = _deal(answer, n, num_ranks, epoch)
            if drawn_from:
                yield wrong(
                    "{case}: the global random generator was used; after the call it draws other "
                    "numbers",
                    case=case,
                )
            yield from _faults_of_shares(case, n, shares)
            if [int(index) for index in answer(n, 0, num_ranks, epoch)] != shares[0]:
                yield wrong("{case}: rank 0 gets another list when it asks again", case=case)
            sizes = sorted(map(len, shares))
            if sizes[-1] > sizes[0] + 1:
                yield over_budget(
                    "{case}: the shares have {sizes} samples; every step waits for the largest",
                    case=case,
                    sizes=sizes,
                )
            dealt.append(shares)
        yield from _faults_of_epochs(
            say("{n} samples, {num_ranks} ranks", n=n, num_ranks=num_ranks), n, dealt
        )


Shares = list[list[int]]


def _deal(answer: Callable, n: int, num_ranks: int, epoch: int) -> tuple[Shares, bool]:
    """What each rank is given, and whether a global random generator was used for it."""
    import torch

    torchs = torch.get_rng_state()
    pythons = random.getstate()
    shares = []
    for rank in range(num_ranks):
        shares.append([int(index) for index in answer(n, rank, num_ranks, epoch)])
    untouched = torch.equal(torchs, torch.get_rng_state()) and pythons == random.getstate()
    return shares, not untouched


def _faults_of_shares(case: str, n: int, shares: Shares) -> Iterator[tuple[str, str]]:
    """A sample that is given out twice or never, or is none."""
    counts = Counter(chain.from_iterable(shares))
    for index in sorted({*range(n), *counts}):
        right = 1 if 0 <= index < n else 0
        if counts[index] != right:
            lines = (
                say("rank {rank}: {share!s:.70}", rank=rank, share=share)
                for rank, share in enumerate(shares)
            )
            drawn = "\n".join(lines)
            yield wrong(
                "{case}: sample {index} is given out {times} times\n{drawn}",
                case=case,
                index=index,
                times=counts[index],
                drawn=drawn,
            )
            return


def _faults_of_epochs(case: str, n: int, dealt: list[Shares]) -> Iterator[tuple[str, str]]:
    """Epochs that are dealt alike."""
    for a, b in combinations(range(len(dealt)), 2):
        if n > 10 and dealt[a] == dealt[b]:
            yield wrong(
                "{case}: epochs {a} and {b} are dealt in the same order", case=case, a=a, b=b
            )
    if n > 40 and set(dealt[0][0]) == set(dealt[1][0]):
        yield wrong("{case}: rank 0 has the same samples in epochs 0 and 1, reordered", case=case)
