"""Trainings with batches of any size on real ranks."""

import math

import numpy as np
import pytest
import torch
import torch.distributed as dist

import labkit as lab
from labkit import large_batch
from labkit.large_batch import run as training_run


@pytest.fixture(scope="module")
def trained():
    return {ranks: large_batch.Training(ranks=ranks).run() for ranks in (1, 4)}


def test_a_training_of_four_ranks_is_that_of_one(trained):
    one = trained[1][0]
    four = trained[4][0]
    assert one["steps"] == four["steps"] < 400
    assert one["loss"] == pytest.approx(four["loss"], rel=1e-3)
    assert one["accuracy"] > 0.9 and one["loss"] < 0.15
    assert max(one["losses"]) == one["steps"] and "noise" not in one


def test_all_ranks_read_one_noise(trained):
    noises = [result["noise"] for result in trained[4]]
    assert noises[0] == noises[1] == noises[3] and len(noises[0]) == trained[4][0]["steps"]


def noise_by_samples():
    """The noise at the first weights: from each sample's gradient, and from many steps' two
    batches."""
    net = large_batch.classifier()
    data = large_batch.digits()
    torch.manual_seed(dist.get_rank())

    def backward(chosen: list[int]) -> None:
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(data.x[chosen]), data.y[chosen]).backward()

    each = []
    for sample in range(400):
        backward([sample])
        each.append(torch.cat([weight.grad.flatten() for weight in net.parameters()]))
    gradients = torch.stack(each)
    variance = gradients.var(dim=0).sum().item()
    true = large_batch.Noise(variance, gradients.mean(dim=0).square().sum().item() - variance / 400)
    found = []
    for _ in range(150):
        backward(torch.randint(400, (8,)).tolist())
        found.append(training_run.average_gradients(net, 8 * dist.get_world_size()))
    return true, large_batch.Noise(*np.mean(found, axis=0))


@pytest.mark.again
def test_two_batches_read_the_noise_that_every_samples_gradient_has():
    true, found = lab.launch(noise_by_samples, ranks=4)[0]
    assert found.variance == pytest.approx(true.variance, rel=0.1)
    assert found.square == pytest.approx(true.square, rel=0.35)


def test_a_rate_too_high_ends_early_and_says_that_nothing_was_reached():
    result = large_batch.Training(rate=1e5, ranks=1, most_steps=300).run()[0]
    assert result["steps"] is None and not math.isfinite(result["loss"])
    assert max(result["losses"]) < 300


@pytest.mark.a_few(1)
@pytest.mark.parametrize("optimizer", large_batch.OPTIMIZERS)
def test_every_optimizer_learns(optimizer):
    rate = {"sgd": 0.3, "momentum": 0.05, "adam": 0.003, "lars": 1.0, "lamb": 0.02}[optimizer]
    training = large_batch.Training(
        optimizer=optimizer, rate=rate, warmup=0.1, most_steps=60, batch=128, target=0.0, ranks=2
    )
    result = training.run()[0]
    assert result["accuracy"] > 0.6 and len(result["losses"]) == 12


def test_the_digits_are_dealt_into_training_and_test():
    train = large_batch.digits()
    test = large_batch.digits("test")
    assert train.x.shape == (1437, 64) and test.x.shape == (360, 64)
    assert train.x.min() >= 0 and train.x.max() <= 1 and set(test.y.tolist()) == set(range(10))
    with pytest.raises(ValueError, match="'train' or 'test'"):
        large_batch.digits("both")
