"""The exercises of chapter 03, data parallelism. Answers are graded at sizes that the chapter does
not show."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

from labkit.check import exercise, faults, hint, language, on_ranks, status, unlike

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["average_uneven", "bucket_gradients", "hint", "language", "shard_indices", "status"]


@exercise
def shard_indices(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_samples, rank, num_ranks, epoch)`` lists the samples of a rank in an epoch, in
    its order.

    In an epoch every sample belongs to exactly one rank; shares differ by one sample at most; an
    epoch deals anew. The answer depends on its arguments only, and leaves the global random
    generators as they were.
    """
    import torch

    for n, num_ranks in ((12, 2), (50, 4), (3, 4), (11, 1), (101, 7)):
        dealt = []
        for epoch in range(3):
            case, before = (
                f"{n} samples, {num_ranks} ranks, epoch {epoch}",
                (torch.get_rng_state(), random.getstate()),
            )
            shares = [
                [int(index) for index in answer(n, rank, num_ranks, epoch)]
                for rank in range(num_ranks)
            ]
            if not torch.equal(before[0], torch.get_rng_state()) or before[1] != random.getstate():
                yield (
                    "wrong",
                    f"{case}: the global random generator was used; after the call it draws other "
                    "numbers",
                )
            counts = Counter(index for share in shares for index in share)
            if odd := [
                index for index in sorted({*range(n), *counts}) if counts[index] != (0 <= index < n)
            ]:
                drawn = "\n".join(
                    f"rank {rank}: {share!s:.70}" for rank, share in enumerate(shares)
                )
                yield (
                    "wrong",
                    f"{case}: sample {odd[0]} is given out {counts[odd[0]]} times\n{drawn}",
                )
            if [int(index) for index in answer(n, 0, num_ranks, epoch)] != shares[0]:
                yield "wrong", f"{case}: rank 0 gets another list when it asks again"
            sizes = sorted(map(len, shares))
            if sizes[-1] > sizes[0] + 1:
                yield (
                    "over budget",
                    f"{case}: the shares have {sizes} samples; every step waits for the largest",
                )
            dealt.append(shares)
        for a, b in ((0, 1), (0, 2), (1, 2)):
            if n > 10 and dealt[a] == dealt[b]:
                yield (
                    "wrong",
                    f"{n} samples, {num_ranks} ranks: epochs {a} and {b} are dealt in the same "
                    "order",
                )
        if n > 40 and set(dealt[0][0]) == set(dealt[1][0]):
            yield (
                "wrong",
                f"{n} samples, {num_ranks} ranks: rank 0 has the same samples in epochs 0 and 1, "
                "reordered",
            )


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
        case = f"the ranks have {shares} samples"
        yield from faults(case, run)
        most = max(sent for _, _, sent, *_ in run)
        if most > run[0][3] + 64:
            yield (
                "over budget",
                f"{case}: {most} bytes handed to collectives; the gradients have {run[0][3]}",
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
        case = f"{num_ranks} ranks, buckets of {bucket_bytes} bytes"
        yield from faults(case, run)
        _, calls, sent, total, longest, largest = run[0]
        if calls > ceil(total / bucket_bytes):
            yield (
                "over budget",
                (
                    f"{case}: {calls} messages for {total} bytes of gradients; "
                    f"{ceil(total / bucket_bytes)} are enough"
                ),
            )
        if sent != total:
            yield (
                "over budget",
                f"{case}: {sent} bytes handed to collectives; the gradients have {total}",
            )
        if longest >= bucket_bytes + largest:
            yield (
                "over budget",
                f"{case}: {longest} bytes in one message; the first gradients wait for the last",
            )


# --- in the ranks ---


def _uneven(answer: Callable, shares: Sequence[int]) -> tuple[str, int, int, int, int]:
    """What is wrong, calls, bytes handed to collectives, bytes of the gradients, bytes of the
    largest call."""
    import torch
    from torch import distributed as dist
    from torch import nn

    torch.manual_seed(0)
    model, mse = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)), nn.functional.mse_loss
    model[0].bias.requires_grad_(False)
    inputs, targets = torch.randn(sum(shares), 6), torch.randn(sum(shares), 2)
    mse(model(inputs), targets).backward()
    right = _gradients(model)
    model.zero_grad()
    mine = [each.split(shares)[dist.get_rank()] for each in (inputs, targets)]
    if len(mine[0]):
        mse(model(mine[0]), mine[1]).backward()
    return _counted(lambda: answer(model, len(mine[0])), model, right)


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
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    each = [
        [torch.randn(dist.get_world_size(), *weight.shape), weight, name]
        for name, weight in trained
    ]
    for gradients, weight, _ in each:
        weight.grad = gradients[dist.get_rank()].clone()
    right = {name: gradients.mean(0) for gradients, _, name in each}
    largest = max(weight.grad.nbytes for _, weight in trained)
    return *_counted(lambda: answer(model, bucket_bytes), model, right), largest


def _counted(
    work: Callable, model: "nn.Module", right: "Mapping[str, Tensor]"
) -> tuple[str, int, int, int, int]:
    """Runs an answer: what is wrong with the gradients; calls; bytes of all, of the right
    gradients, of the largest."""
    from labkit.measure import traffic

    with traffic.count() as counted:
        work()
    given, fault = _gradients(model), ""
    for name, _ in model.named_parameters():
        mine, true = given.get(name), right.get(name)
        if (mine is None) != (true is None):
            fault = fault or f"{name}.grad is " + (
                "None" if mine is None else "set, though the parameter is frozen"
            )
        elif true is not None and (
            found := unlike(mine, true, "the mean over all samples of all ranks")
        ):
            fault = fault or f"{name}.grad {found}"
    return (
        fault,
        counted.calls.total(),
        counted.payload_bytes.total(),
        sum(each.nbytes for each in right.values()),
        max(counted.largest_bytes.values(), default=0),
    )


def _gradients(model: "nn.Module") -> "dict[str, Tensor]":
    return {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }
