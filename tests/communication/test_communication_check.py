"""The exercises of chapter 11: references pass, typical mistakes get their counterexample, waste is
"over budget"."""

import contextlib
import functools
import statistics

import pytest
import torch
from torch import distributed as dist
from torch.nn.functional import mse_loss

from labkit.communication import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("accumulate", "error_feedback", "ring_order", "experiment", "break_even")


def mean_of(ddp, x, y, microbatches):
    """The share of one microbatch in the loss of all that a rank has."""
    return mse_loss(ddp(x), y) * len(x) / sum(len(x) for x, _ in microbatches)


def accumulated(ddp, microbatches, divide=True, sync_all=False):
    """The reference for accumulate, and two that fall short."""
    factor = 1 if divide else len(microbatches)
    *early, last = microbatches
    if sync_all:
        for weight in ddp.module.parameters():
            weight.grad = torch.zeros_like(weight)
        for x, y in microbatches:
            gradients = [weight.grad.clone() for weight in ddp.module.parameters()]
            ddp.zero_grad()
            mean_of(ddp, x, y, microbatches).backward()
            for weight, gradient in zip(ddp.module.parameters(), gradients, strict=True):
                weight.grad += gradient
        return
    with ddp.no_sync():
        for x, y in early:
            (mean_of(ddp, x, y, microbatches) * factor).backward()
    x, y = last
    (mean_of(ddp, x, y, microbatches) * factor).backward()


def updates_too(ddp, microbatches):
    accumulated(ddp, microbatches)
    torch.optim.SGD(ddp.parameters(), lr=0.1).step()


def never_synchronised(ddp, microbatches):
    with ddp.no_sync():
        for x, y in microbatches:
            mean_of(ddp, x, y, microbatches).backward()


def reduced_half_way(ddp, microbatches, average=True):
    """Section 8.9.2: the running sum of the gradients is all-reduced after every microbatch."""
    size = dist.get_world_size()
    with ddp.no_sync():
        for x, y in microbatches:
            mean_of(ddp, x, y, microbatches).backward()
            for weight in ddp.module.parameters():
                dist.all_reduce(weight.grad)
                weight.grad /= size if average else 1
    for weight in ddp.module.parameters():
        weight.grad /= 1 if average else size


def reduced_twice(ddp, microbatches):
    accumulated(ddp, microbatches)
    for weight in ddp.module.parameters():
        dist.all_reduce(weight.grad.clone())


def mean_of_means(ddp, microbatches):
    """Right where all microbatches have one size."""
    for number, (x, y) in enumerate(microbatches, start=1):
        with contextlib.nullcontext() if number == len(microbatches) else ddp.no_sync():
            (mse_loss(ddp(x), y) / len(microbatches)).backward()


def burst(gradient, memory, k):
    """Few bytes on average: mostly nothing, and now and then everything."""
    global _calls
    _calls += 1
    if _calls % 10:
        return torch.zeros_like(gradient), memory + gradient
    mean = gradient + memory
    dist.all_reduce(mean)
    return mean / dist.get_world_size(), torch.zeros_like(gradient)


def one_rank_leaves(ddp, microbatches):
    if dist.get_rank() == 0:
        accumulated(ddp, microbatches)


def sparse(gradient, memory, k, feedback=True, index=torch.int32, num_sent=None, keep=False):
    """The reference for error_feedback, and several that fall short."""
    corrected = gradient + memory if feedback else gradient
    chosen = corrected.abs().topk(num_sent or k).indices
    size = dist.get_world_size()
    values = corrected.new_empty(size * len(chosen))
    indices = torch.empty(size * len(chosen), dtype=index)
    dist.all_gather_single(values, corrected[chosen])
    dist.all_gather_single(indices, chosen.to(index))
    mean = torch.zeros_like(gradient).index_add_(0, indices.long(), values / size)
    if not keep:
        corrected[chosen] = 0
    return mean, corrected


def dense(gradient, memory, k):
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size(), memory


def miser(gradient, memory, k):
    """Keeps the sums right by never sending anything."""
    return torch.zeros_like(gradient), memory + gradient


def alone(gradient, memory, k):
    return gradient, memory


def waits_for_itself(gradient, memory, k):
    dist.recv(torch.empty(1), 1 - dist.get_rank())


def by_place(places):
    """The reference for ring_order."""
    return sorted(range(len(places)), key=places.__getitem__)


def by_machine(places):
    """Machines of one number side by side, in whatever rack."""
    return sorted(range(len(places)), key=lambda rank: places[rank][1])


def by_rack(places):
    return sorted(range(len(places)), key=lambda rank: places[rank][0])


def fastest(measure, settings, warmup=3, num_steps=15, middle=statistics.median, samples=True):
    """The reference for experiment, and several that fall short."""

    def rate(setting):
        times_us = [measure(setting) for _ in range(warmup + num_steps)][warmup:]
        return (setting["accumulate"] if samples else 1) / middle(times_us)

    return max(settings, key=rate)


def second_best(measure, settings):
    best = fastest(measure, settings)
    return fastest(measure, [setting for setting in settings if setting != best])


def balanced(times_ms, before_mb, after_mb, hidden_ms, middle=statistics.median, which=min):
    """The reference for break_even, and several that fall short."""
    took_ms = middle(times_ms)
    return which((before_mb - after_mb) / took_ms, before_mb / (hidden_ms + took_ms))


_calls = 0
REFERENCES = dict(zip(EXERCISES, (accumulated, sparse, by_place, fastest, balanced), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "accumulate",
            lambda ddp, parts: accumulated(ddp, parts, divide=False),
            "it is 4 times that",
        ),
        (
            "accumulate",
            never_synchronised,
            "rank 0: update 0, 0.weight.grad is not that of the whole batch",
        ),
        (
            "accumulate",
            updates_too,
            "rank 0: update 1, 0.weight.grad is not that of the whole batch",
        ),
        (
            "accumulate",
            lambda ddp, parts: reduced_half_way(ddp, parts, average=False),
            "is not that of the whole batch",
        ),
        ("accumulate", lambda ddp, parts: None, "0.weight.grad is None"),
        ("accumulate", mean_of_means, "0.weight.grad is not that of the whole batch"),
        (
            "error_feedback",
            lambda g, m, k: sparse(g, m, k, feedback=False),
            "after call 2, sent so far + mean mem",
        ),
        (
            "error_feedback",
            lambda g, m, k: sparse(g, m, k, keep=True),
            "after call 1, sent so far + mean memory is off",
        ),
        ("error_feedback", miser, "the loss ends at"),
        ("error_feedback", alone, "call 1: the ranks get different means"),
        ("error_feedback", lambda g, m, k: (g + m).to_sparse().topk(k), "topk"),
        (
            "ring_order",
            lambda places: range(len(places) - 1),
            "a ring names each of 8 ranks once",
        ),
        (
            "experiment",
            lambda measure, settings: fastest(measure, settings, samples=False),
            "you chose",
        ),
        (
            "experiment",
            lambda measure, settings: fastest(measure, settings, warmup=0, num_steps=1),
            "you chose",
        ),
        (
            "experiment",
            lambda measure, settings: fastest(measure, settings, 0, 4, statistics.mean),
            "you chose",
        ),
        (
            "experiment",
            lambda measure, settings: fastest(measure, settings, 0, 3, statistics.mean),
            "you chose",
        ),
        ("experiment", second_best, "you chose"),
        ("experiment", lambda measure, settings: None, "you chose None"),
        ("break_even", functools.partial(balanced, middle=statistics.mean), "right is"),
        ("break_even", functools.partial(balanced, which=max), "right is"),
        ("break_even", functools.partial(balanced, which=lambda both, one: both), "right is"),
        ("break_even", functools.partial(balanced, which=lambda both, one: one), "right is"),
        ("break_even", lambda times, b, a, hidden: balanced(times, b, a, 0), "right is"),
        ("break_even", lambda *case: float("nan"), "right is"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample


@pytest.mark.a_few(4)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "accumulate",
            lambda ddp, parts: accumulated(ddp, parts, sync_all=True),
            "to collectives; one all-reduce: 188",
        ),
        (
            "accumulate",
            reduced_twice,
            "rank 0: 376 bytes handed to collectives; one all-reduce: 188",
        ),
        (
            "accumulate",
            reduced_half_way,
            "rank 0: 752 bytes handed to collectives; one all-reduce: 188",
        ),
        ("error_feedback", dense, "160 bytes handed to collectives per call, allowed are 16"),
        ("error_feedback", burst, "160 bytes handed to collectives per call, allowed are 16"),
        (
            "error_feedback",
            lambda g, m, k: sparse(g, m, k, index=torch.int64),
            "24 bytes handed to collectives per call",
        ),
        (
            "error_feedback",
            lambda g, m, k: sparse(g, m, k, num_sent=2 * k),
            "32 bytes handed to collectives per call",
        ),
        (
            "ring_order",
            lambda places: list(range(len(places))),
            "0 links between racks and 8 between machines of a rack; 0 and 2 will do",
        ),
        ("ring_order", by_machine, "8 links between racks and 0"),
        ("ring_order", by_rack, "0 links between racks and 8"),
        (
            "experiment",
            lambda measure, settings: fastest(measure, settings, num_steps=40),
            "43 steps measured",
        ),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("accumulate", one_rank_leaves, "rank 1"),
        ("error_feedback", waits_for_itself, "in recv at line"),
    ],
)
def test_a_deadlock_on_real_ranks_is_a_verdict(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong" and words in verdict.counterexample


@pytest.mark.parametrize("name", EXERCISES[2:])
@pytest.mark.parametrize("rubbish", [3, object(), [None], lambda: None])
def test_rubbish_is_wrong_and_never_raises(name, rubbish):
    assert getattr(check, name)(lambda *_: rubbish).state == "wrong"
