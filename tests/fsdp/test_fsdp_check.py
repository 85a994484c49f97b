"""The exercises of chapter 07: the right answers pass, typical mistakes are caught, wasteful ones
are told so."""

import itertools
import math

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from labkit.fsdp import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("sharded_step", "wrap_within", "train_sharded", "choose_strategy")


def whole(mine, rows):
    """All rows of a weight, from every rank's."""
    most = math.ceil(rows / dist.get_world_size())
    everyone = mine.new_empty(most * dist.get_world_size(), mine.shape[1])
    dist.all_gather_single(everyone, nn.functional.pad(mine, (0, 0, 0, most - len(mine))))
    return everyone[:rows]


def scattered(gradient, mine, mean=True):
    """This rank's rows of the mean gradient."""
    size = dist.get_world_size()
    most = math.ceil(len(gradient) / size)
    out = gradient.new_empty(most, gradient.shape[1])
    dist.reduce_scatter_single(
        out, nn.functional.pad(gradient, (0, 0, 0, most * size - len(gradient)))
    )
    return out[: len(mine)] / (size if mean else 1)


def reduced(gradient, mine):
    """The same by an all-reduce, twice as dear."""
    dist.all_reduce(gradient)
    most = math.ceil(len(gradient) / dist.get_world_size())
    return gradient[dist.get_rank() * most :][: len(mine)] / dist.get_world_size()


def step(shards, num_rows, x, scatter=scattered, keep=False):
    """The reference for sharded_step; with ``keep`` the weights stay whole from the forward to the
    backward."""
    kept = []
    for mine, rows in zip(shards, num_rows, strict=True):
        weight = whole(mine, rows)
        kept.append((x, weight if keep else None))
        x = torch.tanh(x @ weight.T)
    gradient = 2 * x / x.numel()
    found = []
    for mine, rows, (x, weight) in reversed(list(zip(shards, num_rows, kept, strict=True))):
        weight = (whole(mine, rows) if weight is None else weight).requires_grad_()
        x = x.requires_grad_()
        to_weight, gradient = torch.autograd.grad(torch.tanh(x @ weight.T), (weight, x), gradient)
        found.append(scatter(to_weight, mine))
    return found[::-1]


def packed(net, budget_bytes, root=True):
    """The reference for wrap_within; or the last unit is left to the root, which is not freed after
    the forward."""
    units = []
    room = 0
    for layer in net:
        size = sum(weight.nbytes for weight in layer.parameters())
        if size > room:
            units.append([])
            room = budget_bytes
        units[-1].append(layer)
        room -= size
    for unit in units if root else units[:-1]:
        fully_shard(unit, reshard_after_forward=True)
    fully_shard(net)


def train(
    net, steps, max_norm, early=False, clip="whole", divide=True, zero=True, wrap=fully_shard
):
    """The reference for train_sharded, and its mistakes."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) if early else None
    wrap(net)
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for microbatches in steps:
        if zero:
            optimizer.zero_grad()
        for x, y in microbatches:
            (nn.functional.mse_loss(net(x), y) / (len(microbatches) if divide else 1)).backward()
        if clip == "whole":
            nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        elif clip == "own":
            slices = [weight.grad.to_local() for weight in net.parameters()]
            factor = max_norm / torch.stack([each.norm() for each in slices]).norm()
            for each in slices:
                each *= factor.clamp(max=1)
        optimizer.step()


def rent(plan, strategies=("FULL_SHARD", "HYBRID_SHARD"), sizes=range(1, 13), fits=True):
    """The reference for choose_strategy, or of fewer choices, or without a look at memory."""
    machines = plan.gpus // plan.per_node
    machine = plan.but(gpus=plan.per_node, batch=plan.batch // machines)
    gb_per_s = plan.per_node * plan.nic_gb_per_s / 2
    between_us = 2 * (machines - 1) / machines * 2 * plan.shape.params / gb_per_s / 1e3
    ways = {"FULL_SHARD": (plan, 0), "HYBRID_SHARD": (machine, between_us)}
    times = {}
    for name, mbs, again in itertools.product(strategies, sizes, ("none", "full")):
        if plan.batch // plan.gpus % mbs:
            continue
        each = ways[name][0].but(mbs=mbs, recompute=again)
        if each.fits or not fits:
            times[each.time().step_us + ways[name][1]] = name, mbs, again
    return times[min(times)]


REFERENCES = dict(zip(EXERCISES, (step, packed, train, rent), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def summed(gradient, mine):
    return scattered(gradient, mine, mean=False)


def unpadded(shards, num_rows, x):
    """Takes all shards to be as long as its own."""
    return [torch.zeros_like(whole(mine, len(mine) * dist.get_world_size())) for mine in shards]


def locally(shards, num_rows, x):
    """Forgets the other ranks' samples."""

    def mine_only(gradient, mine):
        return gradient[dist.get_rank() * math.ceil(len(gradient) / dist.get_world_size()) :][
            : len(mine)
        ]

    return step(shards, num_rows, x, scatter=mine_only)


def replicated(net):
    return nn.parallel.DistributedDataParallel(net)


@pytest.mark.a_few(6)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "sharded_step",
            lambda *args: step(*args, scatter=summed),
            "2 ranks, weights of 4, 8 rows, rank 0: gradient 0 is "
            "not the mean over the ranks, it is 2 times that",
        ),
        ("sharded_step", locally, "rank 0: gradient 0 is not the mean over the ranks"),
        ("sharded_step", unpadded, "rank 0: gradient 0 has shape"),
        ("sharded_step", lambda *args: step(*args)[:-1], "1 gradients for 2 weights"),
        (
            "sharded_step",
            lambda *args: step(*args)[::-1],
            "gradient 0 has shape (4, 4), its shard (2, 6)",
        ),
        ("wrap_within", lambda net, budget: None, "rank 0: 0.weight is not sharded"),
        ("wrap_within", lambda net, budget: fully_shard(net[0]), "rank 0: 1.weight is not sharded"),
        (
            "train_sharded",
            lambda *args: train(*args, wrap=replicated),
            "rank 0: 0.weight is not sharded",
        ),
        (
            "train_sharded",
            lambda *args: train(*args, early=True),
            "the weight of 0.weight is not that of one process",
        ),
        (
            "train_sharded",
            lambda *args: train(*args, clip="own"),
            "2 ranks, 1 microbatches, max_norm 0.05, rank 0: the "
            "weight of 0.weight is not that of one process",
        ),
        (
            "train_sharded",
            lambda *args: train(*args, clip="none"),
            "2 ranks, 1 microbatches, max_norm 0.05, rank 0",
        ),
        (
            "train_sharded",
            lambda *args: train(*args, zero=False),
            "2 ranks, 1 microbatches, max_norm 1e+09, rank 0",
        ),
        ("train_sharded", lambda *args: train(*args[:2], 1e9), "max_norm 0.05, rank 0"),
        (
            "choose_strategy",
            lambda plan: rent(plan, fits=False),
            "3 GB/s out of the node, 96 sequences: ('HYBRID_SHARD', 6, 'none') is none of",
        ),
        (
            "choose_strategy",
            lambda plan: ("FULL_SHARD", 5, "none"),
            "is none of the choices that fit",
        ),
        ("choose_strategy", lambda plan: plan, "is none of the choices that fit"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong", verdict
    assert words in verdict.counterexample, verdict.counterexample


def at_once(net, budget_bytes):
    fully_shard(net)


def one_each(net, budget_bytes):
    for layer in net:
        fully_shard(layer)
    fully_shard(net)


def not_freed(net, budget_bytes):
    for layer in net:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(net)


@pytest.mark.a_few(2)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "sharded_step",
            lambda *args: step(*args, scatter=reduced),
            "bytes handed to all_reduce; 0 are enough",
        ),
        ("sharded_step", lambda *args: step(*args, keep=True), "bytes live at once; "),
        ("wrap_within", at_once, "bytes of parameters gathered at one time"),
        ("wrap_within", not_freed, "bytes of parameters gathered at one time"),
        (
            "choose_strategy",
            lambda plan: rent(plan, strategies=["FULL_SHARD"]),
            "LLaMA 7B on 16 x A100 80 GB, 3 GB/s out of the node, 96 sequences: ('FULL_SHARD', 6, "
            "'none') takes 6.37 s a step; 6.22 s can be had",
        ),
        (
            "choose_strategy",
            lambda plan: rent(plan, strategies=["HYBRID_SHARD"]),
            "12 GB/s out of the node, 192 sequences: ('HYBRID_SHARD', 1, 'none') takes",
        ),
        ("choose_strategy", lambda plan: rent(plan, sizes=(1, 2, 4, 8)), "6.22 s can be had"),
        ("wrap_within", one_each, "budget 2534: 12 all-gathers in a step; 4 are enough"),
        (
            "wrap_within",
            lambda *args: packed(*args, root=False),
            "bytes of parameters gathered at one time",
        ),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample, verdict.counterexample


def hurried(shards, num_rows, x):
    """Rank 0 has seen enough after the forward: the others wait for it."""
    if dist.get_rank() == 0:
        return [whole(mine, rows) for mine, rows in zip(shards, num_rows, strict=True)]
    return step(shards, num_rows, x)


def test_a_deadlock_is_a_verdict():
    verdict = check.sharded_step(hurried)
    assert verdict.state == "wrong"
    assert "already returned" in verdict.counterexample or "wait" in verdict.counterexample, (
        verdict.counterexample
    )


@pytest.mark.parametrize("rubbish", [3, "0F0", None, [None], [torch.zeros(1)]])
def test_rubbish_is_wrong(rubbish):
    assert check.sharded_step(lambda *_: rubbish).state == "wrong"
