"""The exercises of chapter 03: the right answers pass, typical mistakes are caught, wasteful ones
are told so."""

import itertools
import random

import pytest
import torch
from torch import distributed as dist

from labkit.data_parallel import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("shard_indices", "average_uneven", "bucket_gradients")


def deal(num_samples, rank, num_ranks, epoch):
    """The reference for shard_indices."""
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(epoch))
    return order[rank::num_ranks].tolist()


def weighted(model, num_samples):
    """The reference for average_uneven."""
    total = torch.tensor([float(num_samples)])
    dist.all_reduce(total)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = (
                torch.zeros_like(weight)
                if weight.grad is None
                else weight.grad * num_samples / total
            )
            dist.all_reduce(weight.grad)


def in_buckets(model, bucket_bytes, early=False, closing=True):
    """The reference for bucket_gradients; and two that close their buckets too early, or forget the
    last one."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    bucket = []
    for gradient in reversed(gradients):
        if early and bucket and sum(each.nbytes for each in [*bucket, gradient]) > bucket_bytes:
            average(bucket)
            bucket = []
        bucket.append(gradient)
        if not early and sum(each.nbytes for each in bucket) >= bucket_bytes:
            average(bucket)
            bucket = []
    if bucket and closing:
        average(bucket)


def average(gradients, wait=True):
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, piece in zip(
        gradients, flat.split([each.numel() for each in gradients]), strict=True
    ):
        gradient.copy_(piece.view_as(gradient))


REFERENCES = dict(zip(EXERCISES, (deal, weighted, in_buckets), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def padded(n, rank, num_ranks, epoch):
    """What DistributedSampler does: the first samples once more, until all shares are equal."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch)).tolist()
    return (order + order[: -n % num_ranks])[rank::num_ranks]


def dropping(n, rank, num_ranks, epoch):
    return deal(n, rank, num_ranks, epoch)[: n // num_ranks]


def never_again(n, rank, num_ranks, epoch):
    return deal(n, rank, num_ranks, 0)


def own_deck(n, rank, num_ranks, epoch):
    """Each rank shuffles for itself: some samples come twice, some never."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(100 * epoch + rank))[
        rank::num_ranks
    ].tolist()


def own_share(n, rank, num_ranks, epoch):
    """Only the order within a share is new."""
    share = list(range(rank, n, num_ranks))
    random.Random(epoch).shuffle(share)
    return share


def reseeding(n, rank, num_ranks, epoch):
    torch.manual_seed(epoch)
    return torch.randperm(n)[rank::num_ranks].tolist()


_DECKS = itertools.count()


def unseeded(n, rank, num_ranks, epoch):
    """Another deck at each call, and the same ones in each run: by chance one in 924 is fair."""
    return random.Random(next(_DECKS)).sample(range(n), n)[rank::num_ranks]


def two_decks(n, rank, num_ranks, epoch):
    return deal(n, rank, num_ranks, epoch % 2)


def seeding(n, rank, num_ranks, epoch):
    random.seed(epoch)
    return random.sample(range(n), n)[rank::num_ranks]


def moody():
    """An answer that deals rank 0 another order when it asks again."""
    asked = {}

    def answer(n, rank, num_ranks, epoch):
        share = deal(n, rank, num_ranks, epoch)
        asked[n, rank, epoch] = asked.get((n, rank, epoch), 0) + 1
        return share[::-1] if asked[n, rank, epoch] > 1 else share

    return answer


def mean_of_means(model, num_samples):
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()


def thawing(model, num_samples):
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    for weight in model.parameters():
        weight.requires_grad_()
    weighted(model, num_samples)


def undivided(model, bucket_bytes):
    for weight in model.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad)


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "shard_indices",
            padded,
            "50 samples, 4 ranks, epoch 0: sample 39 is given out 2 times\nrank 0: [44, ",
        ),
        ("shard_indices", dropping, "50 samples, 4 ranks, epoch 0: sample "),
        (
            "shard_indices",
            never_again,
            "12 samples, 2 ranks: epochs 0 and 1 are dealt in the same order",
        ),
        ("shard_indices", own_deck, "12 samples, 2 ranks, epoch 0: sample "),
        ("shard_indices", own_share, "rank 0 has the same samples in epochs 0 and 1, reordered"),
        (
            "shard_indices",
            reseeding,
            "12 samples, 2 ranks, epoch 0: the global random generator was used",
        ),
        ("shard_indices", unseeded, "12 samples, 2 ranks, epoch 0: sample "),
        ("shard_indices", two_decks, "epochs 0 and 2 are dealt in the same order"),
        ("shard_indices", seeding, "epoch 0: the global random generator was used"),
        ("shard_indices", moody(), "rank 0 gets another list when it asks again"),
        (
            "average_uneven",
            lambda model, n: [weight.grad.to_sparse().exp() for weight in model.parameters()],
            "rank 0",
        ),
        (
            "average_uneven",
            mean_of_means,
            "the ranks have (5, 2) samples, rank 0: 0.weight.grad is not the mean over all",
        ),
        (
            "average_uneven",
            lambda model, n: None,
            "rank 0: 0.weight.grad is not the mean over all samples",
        ),
        ("average_uneven", thawing, "rank 0: 0.bias.grad is set, though the parameter is frozen"),
        (
            "bucket_gradients",
            undivided,
            "0.weight.grad is not the mean over all samples of all ranks, it is 2 times that",
        ),
        (
            "bucket_gradients",
            lambda *args: in_buckets(*args, closing=False),
            "0.weight.grad is not the mean",
        ),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample, verdict.counterexample


def unbalanced(n, rank, num_ranks, epoch):
    """Right, but the last rank takes whatever does not divide."""
    order = deal(n, 0, 1, epoch)
    size = n // num_ranks
    return order[rank * size :] if rank == num_ranks - 1 else order[rank * size : (rank + 1) * size]


def twice(model, num_samples):
    """Right, but sends every gradient twice."""
    for weight in model.parameters():
        if weight.requires_grad:
            dist.all_reduce(torch.zeros_like(weight))
    weighted(model, num_samples)


def one_each(model, bucket_bytes):
    in_buckets(model, 0)


def two_alone(model, bucket_bytes):
    """Few enough messages, but nearly everything in the last of them."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    gradients.sort(key=lambda grad: grad.nbytes)
    for bucket in gradients[:1], gradients[1:2], gradients[2:]:
        average(bucket)


def all_in_one(model, bucket_bytes):
    in_buckets(model, 10**9)


def layer_by_layer(model, bucket_bytes):
    """Averages the shared weight once for each layer that has it: the mean of means, and bytes too
    many."""
    for layer in model:
        for weight in layer.parameters():
            if weight.grad is not None:
                average([weight.grad])


@pytest.mark.a_few(3)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "shard_indices",
            unbalanced,
            "the shares have [12, 12, 12, 14] samples; every step waits for the largest",
        ),
        (
            "average_uneven",
            twice,
            "the ranks have (5, 2) samples: 340 bytes handed to collectives; the gradients have "
            "168",
        ),
        (
            "bucket_gradients",
            one_each,
            "2 ranks, buckets of 1000 bytes: 7 messages for 2424 bytes of gradients; 3 are",
        ),
        (
            "bucket_gradients",
            layer_by_layer,
            "8 messages for 2424 bytes of gradients; 3 are enough",
        ),
        (
            "bucket_gradients",
            lambda *args: in_buckets(*args, early=True),
            "messages for 2424 bytes of gradients; ",
        ),
        (
            "bucket_gradients",
            all_in_one,
            "2424 bytes in one message; the first gradients wait for the last",
        ),
        (
            "bucket_gradients",
            two_alone,
            "bytes in one message; the first gradients wait for the last",
        ),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample, verdict.counterexample


def skipping(model, num_samples):
    """A rank without samples does not take part: the others wait for it."""
    if num_samples:
        weighted(model, num_samples)


def test_a_deadlock_is_a_verdict():
    verdict = check.average_uneven(skipping)
    assert verdict.state == "wrong"
    assert "all_reduce" in verdict.counterexample
    assert "already returned" in verdict.counterexample or "wait" in verdict.counterexample


@pytest.mark.parametrize("rubbish", [3, "0F0", None, [None], [-1], [0.5, 99], {"rank": 1}])
def test_rubbish_is_wrong(rubbish):
    assert check.shard_indices(lambda *_: rubbish).state == "wrong"
