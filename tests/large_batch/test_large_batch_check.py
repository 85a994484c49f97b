"""The exercises of chapter 12: what is right passes, and each way to be wrong is told."""

import math
import re

import pytest
import torch
import torch.distributed as dist

from labkit.large_batch import check


def schedule(seen, batch, base_batch, base_rate, warmup, total):
    whole = base_rate * batch / base_batch
    if seen < warmup:
        return whole * min(1, (seen + batch) / warmup)
    return whole * 0.5 * (1 + math.cos(math.pi * (seen - warmup) / (total - warmup)))


def in_steps(seen, batch, base_batch, base_rate, warmup, total):
    """Counts from the step's beginning: the first one has no rate."""
    return schedule(seen - batch, batch, base_batch, base_rate, warmup, total) if seen else 0.0


def unscaled(seen, batch, *others):
    return schedule(seen, others[0], *others)


def sharded(weights, gradients, rate, trust):
    squares = torch.stack([each.square().sum() for each in weights + gradients])
    dist.all_reduce(squares)
    lengths, slopes = squares.sqrt().chunk(2)
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        scale = trust * lengths[i] / slopes[i] if lengths[i] > 0 and slopes[i] > 0 else 1.0
        weight -= rate * scale * gradient


def of_parts(weights, gradients, rate, trust):
    for weight, gradient in zip(weights, gradients, strict=True):
        weight -= rate * trust * weight.norm() / gradient.norm().clamp_min(1e-9) * gradient


def layer_by_layer(weights, gradients, rate, trust):
    for weight, gradient in zip(weights, gradients, strict=True):
        sharded([weight], [gradient], rate, trust)


def two_batches(gradient, num_samples):
    square = gradient.square().sum()
    message = torch.cat(
        [num_samples * gradient, torch.stack([square, square.new_tensor(1 / num_samples)])]
    )
    message = torch.cat([message, message.new_tensor([num_samples])])
    dist.all_reduce(message)
    ranks = dist.get_world_size()
    total = message[-1]
    gradient.copy_(message[:-3] / total)
    large = gradient.square().sum()
    variance = (message[-3] / ranks - large) / (message[-2] / ranks - 1 / total)
    return variance.item(), (large - variance / total).item()


def between_ranks(gradient, num_samples):
    """The variance between groups, weighed by their samples: another way, as right."""
    square = gradient.square().sum()[None]
    message = torch.cat([num_samples * gradient, num_samples * square])
    message = torch.cat([message, message.new_tensor([num_samples])])
    dist.all_reduce(message)
    total = message[-1]
    gradient.copy_(message[:-2] / total)
    large = gradient.square().sum()
    variance = (message[-2] - total * large) / (dist.get_world_size() - 1)
    return variance.item(), (large - variance / total).item()


def as_if_even(gradient, num_samples):
    square = gradient.square().sum()[None]
    message = torch.cat([num_samples * gradient, square, square.new_tensor([num_samples])])
    dist.all_reduce(message)
    ranks = dist.get_world_size()
    total = message[-1]
    gradient.copy_(message[:-2] / total)
    large = gradient.square().sum()
    variance = (message[-2] / ranks - large) / (ranks / total - 1 / total)
    return variance.item(), (large - variance / total).item()


def biased_square(gradient, num_samples):
    """The length of the mean, with the noise still in it."""
    variance, _ = two_batches(gradient, num_samples)
    return variance, gradient.square().sum().item()


def unweighted(gradient, num_samples):
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()
    return 1.0, 1.0


def two_messages(gradient, num_samples):
    found = two_batches(gradient, num_samples)
    dist.all_reduce(torch.zeros(1))
    return found


@pytest.mark.parametrize(
    "grade, answer",
    [
        (check.growing_batch, schedule),
        (check.lars_on_shards, sharded),
        (check.noise_scale, two_batches),
        (check.noise_scale, between_ranks),
    ],
)
def test_right_answers_pass(grade, answer):
    verdict = grade(answer)
    assert verdict.state == "passed", verdict


@pytest.mark.a_few(4)
@pytest.mark.parametrize(
    "grade, answer, words",
    [
        (check.growing_batch, in_steps, "step 0 has rate 0; right is 0.01"),
        (check.growing_batch, unscaled, "20 x 32, 10 x 128"),
        (check.growing_batch, lambda *given: math.nan, "yours "),
        (check.lars_on_shards, of_parts, "layer 0"),
        (check.lars_on_shards, lambda *given: None, "right is"),
        (check.noise_scale, as_if_even, "variance is"),
        (check.noise_scale, biased_square, "square is"),
        (check.noise_scale, unweighted, "variance is|not the mean over all samples"),
    ],
)
def test_what_is_wrong_is_told(grade, answer, words):
    verdict = grade(answer)
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample)


@pytest.mark.parametrize(
    "grade, answer", [(check.lars_on_shards, layer_by_layer), (check.noise_scale, two_messages)]
)
def test_more_messages_than_one_are_over_budget(grade, answer):
    assert grade(answer).state == "over budget"
