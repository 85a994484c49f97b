"""The exercises of chapter 06: the right answers pass, typical mistakes are caught, wasteful ones
are told so."""

import itertools

import pytest
import torch
from torch import distributed as dist

from labkit.zero import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("shard_adamw", "cut_evenly", "which_stage", "choose_stage", "same_training")


def dealt(model, backward, num_steps, owner=None, drop=True, share=True):
    """The reference for shard_adamw; and some that leave out a part of it."""
    weights = list(model.parameters())
    rank = dist.get_rank()
    size = dist.get_world_size()
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
    weights = list(model.parameters())
    rank = dist.get_rank()
    size = dist.get_world_size()

    def vector(tensors):
        long = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return torch.nn.functional.pad(long, (0, -len(long) % size))

    mine = torch.nn.Parameter(vector(weights).chunk(size)[rank].clone())
    optimizer = torch.optim.AdamW([mine], lr=0.01)
    sizes = [weight.numel() for weight in weights]
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


def cut(sizes, num_ranks):
    """The reference for cut_evenly."""
    share = -(-sum(sizes) // num_ranks)
    firsts = [0, *itertools.accumulate(sizes)]
    layout = []
    for rank in range(num_ranks):
        begin = rank * share
        end = begin + share
        mine = []
        for tensor, size in enumerate(sizes):
            start = max(begin - firsts[tensor], 0)
            stop = min(end - firsts[tensor], size)
            if start < stop:
                mine.append((tensor, start, stop))
        layout.append(mine)
    return layout


def stage_of(payload, num_params, microbatches):
    """The reference for which_stage."""
    if "all_gather" not in payload:
        return 0
    if "reduce_scatter" in payload:
        return 3
    return 1 if payload["all_reduce"] < 3 * num_params else 2


def choose(params, ranks, room, link, tokens, microbatches, part=True, lowest=False, hide=True):
    """The reference for choose_stage; and some that forget something."""
    held = (16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)
    once = 2 * params * ((ranks - 1) / ranks if part else 1) / link
    forward = 2 * params * tokens / 150e12
    reducing = max(0, once - 2 * forward)
    all_reducing = max(0, 2 * once - 2 * forward)
    gathered = once if hide else 0  # or the backward of the next step would hide it
    exposed = {
        0: all_reducing,
        1: reducing + gathered,
        2: microbatches * reducing + gathered,
        3: microbatches * (max(0, once - forward) + all_reducing),
    }
    stages = [stage for stage, num_bytes in enumerate(held) if params * num_bytes <= room]
    if lowest:
        return stages[0] if stages else None
    return min(stages, key=exposed.get, default=None)


def config(num_ranks, global_batch, micro_batch, rate, decay, **more):
    """The reference for same_training."""
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": rate, "weight_decay": decay}},
    } | more


REFERENCES = dict(zip(EXERCISES, (dealt, cut, stage_of, choose, config), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def test_slices_of_a_flat_vector_pass_too():
    assert check.shard_adamw(flat).state == "passed"


def each_alone(sizes, num_ranks):
    """Cuts every tensor by itself, and forgets what is left over."""
    layout = []
    for rank in range(num_ranks):
        mine = []
        for tensor, size in enumerate(sizes):
            part = size // num_ranks
            if part:
                mine.append((tensor, rank * part, (rank + 1) * part))
        layout.append(mine)
    return layout


def all_on_the_first(sizes, num_ranks):
    """Right, and no use."""
    return [[(tensor, 0, size) for tensor, size in enumerate(sizes)], *[[]] * (num_ranks - 1)]


def scattered(sizes, num_ranks):
    """An even share of elements for each rank, dealt like cards."""
    layout = [[] for _ in range(num_ranks)]
    for tensor, size in enumerate(sizes):
        for at in range(size):
            layout[(sum(sizes[:tensor]) + at) % num_ranks].append((tensor, at, at + 1))
    return layout


def by_kinds(payload, num_params, microbatches):
    """Tells stages apart by the collectives alone, as one could without accumulation."""
    if "reduce_scatter" in payload:
        return 3
    return 2 if "all_gather" in payload else 0


def large_is_accumulated(payload, num_params, microbatches):
    """Right but for a model that is padded, as every real engine's is."""
    if payload.get("all_reduce", 0) == 2 * num_params:
        return 1 if "all_gather" in payload else 0
    return 3 if "reduce_scatter" in payload else 2


def without(*path):
    """The reference without a field."""
    return lambda *args: {key: value for key, value in config(*args).items() if key not in path}


@pytest.mark.a_few(8)
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
        ("cut_evenly", each_alone, "element 4 of tensor 0 lies on 0 ranks\ntensor 0: 0123...\n"),
        ("cut_evenly", lambda sizes, n: [[(0, 0, sizes[0])]] * n, "lies on 4 ranks"),
        ("cut_evenly", lambda sizes, n: [[(0, 0, 99)]] * n, "that tensor has 8 elements"),
        ("cut_evenly", lambda sizes, n: [[(0, 1)]] * n, "a slice is (tensor, start, stop)"),
        ("which_stage", by_kinds, "got stage 2; it was stage 1"),
        ("which_stage", lambda *_: 3, "got stage 3; it was stage 0"),
        ("which_stage", large_is_accumulated, "got stage 2; it was stage 1"),
        (
            "choose_stage",
            lambda *args: choose(*args, lowest=True),
            "7 B parameters, 8 ranks, room for 60 GB, 300 GB/s, 2048 tokens, 1 microbatches: got "
            "1; it is 3",
        ),
        (
            "choose_stage",
            lambda *args: choose(*args, hide=False),
            "300 GB/s, 2048 tokens, 1 microbatches: got 1; it is 3",
        ),
        (
            "choose_stage",
            lambda *args: choose(*args[:5], 1),
            "4500 tokens, 4 microbatches: got 3; it is 1",
        ),
        (
            "choose_stage",
            lambda *args: choose(*args, part=False),
            "2 ranks, room for 75 GB, 25 GB/s, 2500 tokens, 1 microbatches: got 1; it is 3",
        ),
        ("choose_stage", lambda *_: 1, "1 B parameters, 8 ranks, room for 60 GB"),
        ("choose_stage", lambda *_: None, "got None; it is 0"),
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


@pytest.mark.a_few(2)
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
        ("cut_evenly", all_on_the_first, "rank 0 keeps 16 elements, its share is 4\n"),
        ("cut_evenly", scattered, "is not one piece of the line\ntensor 0: 01230123"),
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
    assert check.cut_evenly(lambda *_: rubbish).state == "wrong"
    assert check.which_stage(lambda *_: rubbish).state == "wrong"
    assert check.choose_stage(lambda *_: rubbish).state == "wrong"
