"""The exercises of chapter 06: the right answers pass, typical mistakes are caught, wasteful ones
are told so."""

import itertools

import pytest
import torch
from torch import distributed as dist

from labkit.zero import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("shard_adamw", "fit", "correct_the_textbook", "same_training")


def dealt(model, backward, num_steps, owner=None, drop=True, share=True):
    """The reference for shard_adamw; and some that leave out a part of it."""
    weights, rank, size = list(model.parameters()), dist.get_rank(), dist.get_world_size()
    starts = [0, *itertools.accumulate(weight.numel() for weight in weights)]
    owners = [
        owner(index, size) if owner else starts[index] * size // starts[-1]
        for index in range(len(weights))
    ]
    optimizer = torch.optim.AdamW(
        [each for each, of in zip(weights, owners, strict=True) if of == rank], lr=0.01
    )
    for step in range(num_steps):
        backward(step)
        for weight, of in zip(weights, owners, strict=True):
            dist.reduce(weight.grad, of)
            weight.grad /= size
        optimizer.step()
        for weight, of in zip(weights, owners, strict=True):
            if share:
                dist.broadcast(weight.data, of)
        if drop:
            model.zero_grad()


def flat(model, backward, num_steps, reduce_all=False):
    """Slices of one long vector, padded: right as well. An all-reduce and a gather send too
    much."""
    weights, rank, size = list(model.parameters()), dist.get_rank(), dist.get_world_size()

    def vector(tensors):
        long = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return torch.nn.functional.pad(long, (0, -len(long) % size))

    mine = torch.nn.Parameter(vector(weights).chunk(size)[rank].clone())
    optimizer, sizes = torch.optim.AdamW([mine], lr=0.01), [weight.numel() for weight in weights]
    for step in range(num_steps):
        backward(step)
        gradients = vector([weight.grad for weight in weights])
        mine.grad = torch.empty_like(mine)
        if reduce_all:
            dist.all_reduce(gradients)
            mine.grad.copy_(gradients.chunk(size)[rank])
        else:
            dist.reduce_scatter_single(mine.grad, gradients)
        mine.grad /= size
        optimizer.step()
        model.zero_grad()
        whole = torch.empty(size * len(mine))
        dist.all_gather_single(whole, mine.detach())
        for weight, piece in zip(weights, whole[: sum(sizes)].split(sizes), strict=True):
            weight.data.copy_(piece.view_as(weight))


def first_that_fits(num_params, device_bytes, other_bytes, most_ranks):
    """The reference for fit."""
    for n in range(1, most_ranks + 1):
        for stage, size in enumerate((16, 4 + 12 / n, 2 + 14 / n, 16 / n)):
            if num_params * size + other_bytes <= device_bytes:
                return n, stage
    return None


def corrected(num_params, num_ranks, stage):
    """The reference for correct_the_textbook."""
    return sum(
        size * num_params / (num_ranks if stage >= first else 1)
        for size, first in ((12, 1), (2, 2), (2, 3))
    )


def config(num_ranks, global_batch, micro_batch, rate, decay, **more):
    """The reference for same_training."""
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "weight_decay": decay}},
    } | more


REFERENCES = dict(zip(EXERCISES, (dealt, first_that_fits, corrected, config), strict=True))


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def test_slices_of_a_flat_vector_pass_too():
    assert check.shard_adamw(flat).state == "passed"


def early(num_params, device_bytes, other_bytes, most_ranks):
    """Forgets what else lies on the device."""
    return first_that_fits(num_params, device_bytes, 0, most_ranks)


def endless(num_params, device_bytes, other_bytes, most_ranks):
    return first_that_fits(num_params, device_bytes, other_bytes, 10 * most_ranks)


def source(num_params, num_ranks, stage):
    """What section 8.5.1 prints for 7B on 4 ranks: everything of a stage divided, stage 3 twice."""
    return num_params * (16, 16 / num_ranks, 14.5 / 7, 16 / num_ranks**2)[stage]


def shrinking(num_params, num_ranks, stage):
    """Right for 7B and wrong for a small model."""
    return corrected(num_params, num_ranks, stage) * (1 if num_params > 1e9 else 0.9)


def without(*path):
    """The reference without a field."""
    return lambda *args: {key: value for key, value in config(*args).items() if key not in path}


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "shard_adamw",
            lambda *args: dealt(*args, share=False),
            "2 ranks, layers (6, 9, 9, 8, 9, 7, 9, 4), rank 0: after",
        ),
        (
            "shard_adamw",
            lambda *args: dealt(*args, drop=False),
            "is off the one-process weights by",
        ),
        (
            "shard_adamw",
            lambda model, backward, n: dealt(model, backward, n - 1),
            "backward was called 2 times, not 3",
        ),
        (
            "shard_adamw",
            lambda model, backward, n: [backward(step) for step in range(n)],
            "is off the one-process weights",
        ),
        ("fit", early, "80 GB, 10 GB of them taken, 64 ranks: 14 ranks at stage 3 need 90.0 GB"),
        ("fit", endless, "16 ranks: got (47, 3); nothing fits"),
        ("fit", lambda *_: None, "got None; something does fit"),
        ("fit", lambda *_: (1, 7), "got (1, 7); something does fit"),
        ("correct_the_textbook", source, "7B, 4 ranks, stage 1: got 28.00 GB, not 49.00"),
        ("correct_the_textbook", shrinking, "a live DeepSpeed engine holds"),
        ("same_training", lambda *_: "zero3", "a configuration is a dict; got 'zero3'"),
        ("same_training", without("gradient_clipping"), "is off the one-process weights by"),
        (
            "same_training",
            lambda *args: config(*args, zero_optimization={"stage": 2}),
            "a rank keeps 5392 bytes of",
        ),
        (
            "same_training",
            lambda *args: config(*args, train_batch_size=4),
            "the engine's batch is 4, its microbatch 2",
        ),
        (
            "same_training",
            lambda *args: config(*args, gradient_accumulation_steps=4),
            "Check batch related parameters",
        ),
        ("same_training", lambda *args: config(*args, train_batch_size="auto"), "TypeError"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample, verdict.counterexample


def whole(model, backward, num_steps):
    """Ordinary data parallelism: every rank keeps all moments."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(num_steps):
        backward(step)
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()


def always_all(num_params, device_bytes, other_bytes, most_ranks):
    """The highest stage wherever something fits."""
    right = first_that_fits(num_params, device_bytes, other_bytes, most_ranks)
    return right and (right[0], 3)


def all_there_are(num_params, device_bytes, other_bytes, most_ranks):
    fits = num_params * 16 / most_ranks + other_bytes <= device_bytes
    return (most_ranks, 3) if fits else None


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "shard_adamw",
            whole,
            "a rank's optimizer holds 4024 bytes; the moments of everything are 3968, of a part in",
        ),
        (
            "shard_adamw",
            lambda *args: dealt(*args, owner=lambda index, size: index % size),
            "optimizer holds 3556 bytes",
        ),
        (
            "shard_adamw",
            lambda *args: flat(*args, reduce_all=True),
            "bytes per rank; an all-reduce of the gradients sends",
        ),
        ("fit", always_all, "stage 3 fit ("),
        ("fit", all_there_are, "GB each); so do 2 ranks"),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample, verdict.counterexample


def lonely(model, backward, num_steps):
    """Only rank 0 sends: the others wait."""
    for step in range(num_steps):
        backward(step)
        if dist.get_rank() == 0:
            dist.all_reduce(next(model.parameters()).grad)


def test_a_deadlock_is_a_verdict():
    verdict = check.shard_adamw(lonely)
    assert verdict.state == "wrong"
    assert "already returned" in verdict.counterexample or "wait" in verdict.counterexample


@pytest.mark.parametrize("rubbish", [3, "zero", None, [None], {"stage": 1}])
def test_rubbish_is_wrong(rubbish):
    assert check.fit(lambda *_: rubbish).state == "wrong"
    assert check.correct_the_textbook(lambda *_: rubbish).state == "wrong"
