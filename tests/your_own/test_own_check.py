"""The exercises of chapter 21: what is right passes, each way to be wrong is told."""

import re

import pytest
import torch
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

from labkit.your_own import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("keep_less", "odd_module", "which_fault")
STEEP = 1.702


def scaled(x):
    return x / x.square().mean(-1, keepdim=True).sqrt()


def written_out(h):
    return h * (1 / (1 + torch.exp(-STEEP * h)))


def one_operator(up, down, x):
    return x + down(silu(STEEP * up(scaled(x))) / STEEP)


def activation_again(up, down, x):
    return x + down(checkpoint(written_out, up(scaled(x)), use_reentrant=False))


@pytest.mark.parametrize("answer", [one_operator, activation_again])
def test_a_layer_that_keeps_its_inputs_alone_passes(answer):
    verdict = check.keep_less(answer)
    assert verdict.state == "passed", verdict


def as_it_was(up, down, x):
    return x + down(written_out(up(scaled(x))))


def sigmoid(up, down, x):
    h = up(scaled(x))
    return x + down(h * torch.sigmoid(STEEP * h))


def all_again(up, down, x):
    return checkpoint(one_operator, up, down, x, use_reentrant=False)


def unscaled(up, down, x):
    return x + down(silu(STEEP * up(x)) / STEEP)


def plain_silu(up, down, x):
    return x + down(silu(up(scaled(x))))


def cut_off(up, down, x):
    return x.detach() + down(silu(STEEP * up(scaled(x))) / STEEP)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (as_it_was, "over budget", "22.0 numbers kept for each of x; 11 are enough"),
        (sigmoid, "over budget", "14.0 numbers kept"),
        (all_again, "over budget", "3,670,016 operations .* 3,145,728 are enough"),
        (unscaled, "wrong", "your output differs"),
        (plain_silu, "wrong", "your output differs"),
        (cut_off, "wrong", "the output is right, and a gradient is not"),
        (lambda up, down, x: None, "wrong", "can't use this one or its result"),
    ],
)
def test_a_layer_that_keeps_or_computes_too_much_or_is_another_is_told(answer, state, words):
    verdict = check.keep_less(answer)
    assert verdict.state == state and re.search(words, str(verdict))


class Linear(torch.nn.Module):
    """A layer, and what is done to its input."""

    def __init__(self, before):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.before = before

    def forward(self, x):
        return self.linear(self.before(x))


def centred():
    return layers(lambda x: x - x.mean(dim=0))


def normed():
    net = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)) for _ in "four"]
    return torch.nn.Sequential(*net), torch.randn(8, 16)


def plain():
    return layers(torch.relu)


def norms():
    """Looks across the batch, and its loss can't show it."""
    return torch.nn.Sequential(*(torch.nn.BatchNorm1d(16) for _ in range(4))), torch.randn(8, 16)


def dropped():
    return layers(torch.nn.Dropout())


def layers(before):
    return torch.nn.Sequential(*(Linear(before) for _ in range(4))), torch.randn(8, 16)


@pytest.mark.real
@pytest.mark.parametrize("answer", [centred, normed])
def test_a_module_that_looks_across_the_batch_is_changed_by_a_cut(answer):
    verdict = check.odd_module(answer)
    assert verdict.state == "passed", verdict


@pytest.mark.real
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (plain, "did not change it"),
        (norms, "is about 1"),
        (dropped, "is random"),
        (dict, "a batch"),
    ],
)
def test_a_module_that_a_cut_leaves_alone_or_that_is_random_is_told(answer, says):
    verdict = check.odd_module(answer)
    assert verdict.state == "wrong" and says in verdict.counterexample


def differ(one, engine, step):
    return abs(one[step] - engine[step]) > 1e-5


def by_samples(compare):
    one, engine = compare("sgd", same=True)
    if differ(one, engine, 0):
        return "forward"
    if differ(one, engine, 1):
        return "sum"
    one, engine = compare("sgd", same=False)
    return "local" if differ(one, engine, 1) else "right"


def by_optimizers(compare):
    one, engine = compare("sgd", same=False)
    if differ(one, engine, 0):
        return "forward"
    if not differ(one, engine, 1):
        return "right"
    one, engine = compare("adam", same=False)
    return "local" if differ(one, engine, 1) else "sum"


@pytest.mark.parametrize("answer", [by_samples, by_optimizers])
def test_two_comparisons_tell_what_is_wrong_with_an_engine(answer):
    verdict = check.which_fault(answer)
    assert verdict.state == "passed", verdict


def by_adam(compare):
    one, engine = compare("adam", same=False)
    return "right" if not differ(one, engine, 2) else "local"


def often(compare):
    compare("adam", same=True)
    return by_samples(compare)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (by_adam, "wrong", "engine 2: you say 'right', it is 'sum'\nadam, samples of their own"),
        (lambda compare: "local" if compare() else "", "wrong", "≠ .*engine"),
        (lambda compare: "right", "wrong", "You compared nothing"),
        (lambda compare: compare("rmsprop"), "wrong", "an optimizer is one of sgd, adam"),
        (often, "over budget", "engine 1: 3 comparisons; 2 are enough"),
    ],
)
def test_an_engine_that_is_judged_wrongly_or_too_dearly_is_told(answer, state, words):
    verdict = check.which_fault(answer)
    assert verdict.state == state and re.search(words, str(verdict))
