"""The exercises of chapter 05: the right answers pass, typical mistakes are caught, wasteful ones
are told so."""

import contextlib
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F
from torch import distributed as dist

from labkit.precision import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("accumulate_tokens", "scaled_step", "checkpoint_blocks")


def accumulate(ddp, microbatches, world=True, quiet=True, everywhere=True, reduction="sum"):
    """The reference for accumulate_tokens; without the number of ranks, loud, with this rank's
    count, mean of means."""
    total = torch.tensor(float(sum((targets != -100).sum() for _, targets in microbatches)))
    if everywhere:
        dist.all_reduce(total)
    if reduction == "mean":
        total = len(microbatches)
    for number, (tokens, targets) in enumerate(microbatches, start=1):
        with ddp.no_sync() if quiet and number < len(microbatches) else contextlib.nullcontext():
            loss = F.cross_entropy(
                ddp(tokens).flatten(0, 1), targets.flatten(), reduction=reduction
            )
            (
                loss * (dist.get_world_size() if world and reduction == "sum" else 1) / total
            ).backward()


def step(
    master,
    grad,
    scale,
    rate,
    max_norm,
    half=False,
    alone=False,
    local=False,
    backoff=True,
    always=False,
    sign=1,
):
    """The reference for scaled_step; and it with one mistake each."""
    grad = (grad / scale).float() if half else grad.float() / scale
    squares = grad.square().sum()
    found = torch.tensor(float(not squares.isfinite()))
    if not alone:
        dist.all_reduce(found, dist.ReduceOp.MAX)
    if not local:
        dist.all_reduce(squares)
    if found:
        return scale / 2 if backoff else scale
    factor = max_norm / float(squares.sqrt() + 1e-20)
    master -= rate * (factor if always else min(1.0, factor)) * grad * sign
    return scale


def blocks(kept_bytes, input_bytes, budget_bytes, most=None):
    """The reference for checkpoint_blocks."""
    numbers = range(len(kept_bytes))
    for num in numbers if most is None else range(most):
        for chosen in combinations(numbers, num):
            held = [input_bytes[i] if i in chosen else kept_bytes[i] for i in numbers]
            if max(sum(held[:i]) + kept_bytes[i] for i in numbers) <= budget_bytes:
                return list(chosen)
    return None


REFERENCES = dict(zip(EXERCISES, (accumulate, step, blocks), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def one_number(master, grad, scale, rate, max_norm):
    """Right as well: the sum of the squares says everything, in one all-reduce."""
    grad = grad.float() / scale
    dist.all_reduce(squares := grad.square().sum())
    if not squares.isfinite():
        return scale / 2
    master -= rate * min(1.0, max_norm / float(squares.sqrt())) * grad
    return scale


def test_there_is_more_than_one_way():
    assert check.scaled_step(one_number).state == "passed"


def kept_after_the_forward(kept_bytes, input_bytes, budget_bytes):
    """Counts what is kept when the forward ends, and forgets the recomputation."""
    numbers = range(len(kept_bytes))
    for num in range(len(kept_bytes) + 1):
        for chosen in combinations(numbers, num):
            if (
                sum(input_bytes[i] if i in chosen else kept_bytes[i] for i in numbers)
                <= budget_bytes
            ):
                return list(chosen)
    return None


def without_block(kept_bytes, input_bytes, budget_bytes):
    """Counts the inputs twice: a choice that fits seems too large."""
    return blocks(kept_bytes, [2 * each for each in input_bytes], budget_bytes)


def moving_though_infinite(master, grad, scale, rate, max_norm):
    """Zeroes what is broken, and goes on."""
    after = step(master, grad, scale, rate, max_norm)
    if after != scale:
        master -= rate * grad.float().nan_to_num(0, 0, 0) / scale
    return after


def rounded(master, grad, scale, rate, max_norm):
    """Keeps the master in bf16."""
    after = step(master, grad, scale, rate, max_norm)
    master.copy_(master.bfloat16())
    return after


@pytest.mark.a_few(5)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "accumulate_tokens",
            lambda *args: accumulate(*args, reduction="mean"),
            "2 ranks, real tokens per sequence, by microbatch: ((5, 9), (2, 16)), rank 0: "
            "0.weight.grad is not that of",
        ),
        ("accumulate_tokens", lambda *args: accumulate(*args, world=False), "it is 0.5 times that"),
        (
            "accumulate_tokens",
            lambda *args: accumulate(*args, everywhere=False),
            "grad is not that of the mean over all",
        ),
        ("accumulate_tokens", lambda *args: None, "it is 0 times that"),
        (
            "scaled_step",
            lambda *args: step(*args, half=True),
            "small gradients, slices of (40, 24), scale 65536, rank 0: "
            "the update of master is not the right one",
        ),
        ("scaled_step", lambda *args: step(*args, alone=True), "rank 0: the next scale is 1024"),
        (
            "scaled_step",
            lambda *args: step(*args, alone=True, local=True),
            "an infinity on rank 1, slices of (16, 16, 16), scale 1024, rank 0: master was "
            "changed, though rank 1",
        ),
        (
            "scaled_step",
            lambda *args: step(*args, local=True),
            "clipped, slices of (30, 25, 1), scale 256, rank 0: the",
        ),
        ("scaled_step", lambda *args: step(*args, backoff=False), "rank 0: the next scale is 1024"),
        (
            "scaled_step",
            lambda *args: step(*args, always=True),
            "the update of master is not the right one, it is ",
        ),
        (
            "scaled_step",
            lambda *args: step(*args, sign=-1),
            "is not the right one, it is -1 times that",
        ),
        ("scaled_step", lambda *args: args[2], "0 times that"),
        ("scaled_step", moving_though_infinite, "master was changed, though rank 1 has to skip"),
        ("scaled_step", rounded, "the update of master is not the right one"),
        ("scaled_step", lambda *args: step(*args) and None, "TypeError"),
        ("checkpoint_blocks", kept_after_the_forward, "checkpointed the step held "),
        ("checkpoint_blocks", without_block, "you say None; it can be done with "),
        ("checkpoint_blocks", lambda *args: [], "with [] checkpointed the step held "),
        ("checkpoint_blocks", lambda *args: None, "you say None; it can be done with 0 of "),
        ("checkpoint_blocks", lambda *args: [99], "[99] is no list of different blocks"),
        ("checkpoint_blocks", lambda *args: [0, 0], "[0, 0] is no list of different blocks"),
        (
            "checkpoint_blocks",
            lambda *args: torch.tensor([0]),
            "tensor([0]) is no list of different blocks",
        ),
        ("checkpoint_blocks", lambda *args: [[]], "[[]] is no list of different blocks"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong", verdict
    assert words in verdict.counterexample, verdict.counterexample


def the_first_ones(kept_bytes, input_bytes, budget_bytes):
    """Checkpoints from the front until it fits, whatever a block saves."""
    for num in range(len(kept_bytes) + 1):
        held = [input_bytes[i] if i < num else kept for i, kept in enumerate(kept_bytes)]
        if max(sum(held[:i]) + kept for i, kept in enumerate(kept_bytes)) <= budget_bytes:
            return list(range(num))
    return None


def all_if_any_fits(kept_bytes, input_bytes, budget_bytes):
    return (
        None
        if blocks(kept_bytes, input_bytes, budget_bytes) is None
        else list(range(len(kept_bytes)))
    )


def largest_savings(kept_bytes, input_bytes, budget_bytes):
    """Takes the blocks in the order of what each saves, the last one too."""
    order = sorted(range(len(kept_bytes)), key=lambda i: input_bytes[i] - kept_bytes[i])
    for num in range(len(order) + 1):
        held = [input_bytes[i] if i in order[:num] else kept for i, kept in enumerate(kept_bytes)]
        if max(sum(held[:i]) + kept for i, kept in enumerate(kept_bytes)) <= budget_bytes:
            return order[:num]
    return None


def all_at_once(ddp, microbatches):
    """Right, but it is the big batch again."""
    accumulate(ddp, [tuple(map(torch.cat, zip(*microbatches, strict=True)))])


def gathering(master, grad, scale, rate, max_norm):
    """Right, but every rank gets every slice."""
    slices = [None] * dist.get_world_size()
    dist.all_gather_object(slices, grad)
    whole = torch.cat(slices).float() / scale
    if not whole.isfinite().all():
        return scale / 2
    master -= rate * min(1.0, max_norm / float(whole.norm())) * grad.float() / scale
    return scale


@pytest.mark.a_few(2)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "accumulate_tokens",
            lambda *args: accumulate(*args, quiet=False),
            "bytes handed to collectives; the grad",
        ),
        (
            "accumulate_tokens",
            all_at_once,
            "bytes of activations held at once; those of a microbatch have ",
        ),
        ("scaled_step", gathering, "bytes handed to collectives; a few numbers are enough"),
        ("checkpoint_blocks", the_first_ones, "recomputes "),
        ("checkpoint_blocks", largest_savings, "recomputes 2 blocks; 1 are enough"),
        ("checkpoint_blocks", all_if_any_fits, "[0, 1, 2, 3, 4] recomputes 5 blocks; 0 are enough"),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample, verdict.counterexample


def absent(master, grad, scale, rate, max_norm):
    """A rank with an empty slice does not take part: the others wait for it."""
    return step(master, grad, scale, rate, max_norm) if len(grad) else scale


def alone_in_the_sum(ddp, microbatches):
    """Skips a microbatch without real tokens; where it is the last, nobody reduces."""
    accumulate(ddp, [each for each in microbatches if (each[1] != -100).any()])


def test_a_deadlock_is_a_verdict():
    verdict = check.scaled_step(absent)
    assert verdict.state == "wrong" and "all_reduce" in verdict.counterexample
    assert "already returned" in verdict.counterexample or "wait" in verdict.counterexample


def test_a_microbatch_without_tokens_may_be_left_out_where_the_last_one_reduces():
    assert check.accumulate_tokens(alone_in_the_sum).state == "passed"


@pytest.mark.parametrize("rubbish", [3, "0F0", None])
def test_rubbish_is_wrong(rubbish):
    assert check.checkpoint_blocks(lambda *_: rubbish).state == "wrong"


def scaler(
    optimizer, scale, num_good, interval, first=False, zeros=False, forgets=True, grown=True
):
    """The reference for scaler_step; looking at the first gradient only, stepping with zeros,
    keeping its count over an infinity, or after it has doubled."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if not all(grad.isfinite().all() for grad in grads[: 1 if first else None]):
        if zeros:
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
        return scale / 2, 0 if forgets else num_good
    for grad in grads:
        grad.div_(scale)
    optimizer.step()
    if num_good + 1 < interval:
        return scale, num_good + 1
    return scale * 2, 0 if grown else num_good + 1


def torchs(optimizer, scale, num_good, interval):
    """What torch's own scaler does."""
    grads = [weight.grad for group in optimizer.param_groups for weight in group["params"]]
    given = torch.amp.GradScaler(
        torch.get_default_device().type, init_scale=scale, growth_interval=interval
    )
    given.scale(torch.ones(()))
    given._growth_tracker.fill_(num_good)
    given.step(optimizer)
    given.update()
    assert len(grads) == 3
    return given.get_scale(), given._get_growth_tracker()


@pytest.mark.parametrize("answer", [scaler, torchs])
def test_a_scaler_passes_and_so_does_torchs(answer):
    assert check.scaler_step(answer).state == "passed"


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"first": True}, "gradients good, good, inf: the weights are not the right ones"),
        ({"zeros": True}, "gradients good, good, inf: the weights are not the right ones"),
        ({"forgets": False}, "you return (32.0, 2.0); it should be (32.0, 0.0)"),
        ({"grown": False}, "you return (2048.0, 2.0); it should be (2048.0, 0.0)"),
    ],
)
def test_a_scaler_with_a_mistake_is_told_its_step(mistake, words):
    verdict = check.scaler_step(lambda *args: scaler(*args, **mistake))
    assert verdict.state == "wrong"
    assert words in verdict.counterexample, verdict.counterexample
