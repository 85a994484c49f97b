"""The exercises of chapter 01: the right answers pass, typical mistakes are caught, wasteful ones
are told so."""

import itertools
import time

import pytest
import torch
from torch.distributed.tensor import DTensor

from labkit.planner import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = (
    "model_state_gb",
    "fewest_ranks",
    "traffic",
    "held_bytes",
    "sharded_bytes",
    "rank_sends",
)
GROUPS = {
    "sgd": (4, 4, 4),
    "fp32": (4, 4, 8),
    "mixed": (2, 2, 12),
    "accumulate": (2, 6, 12),
    "bf16": (2, 2, 4),
}


def state_gb(num_params, recipe, stage, num_ranks, groups=GROUPS, first=(3, 2, 1)):
    """The reference for model_state_gb."""
    shared = zip(groups[recipe], first, strict=True)
    return num_params * sum(size / (num_ranks if stage >= at else 1) for size, at in shared) / 1e9


def fewest(num_params, activation_bytes, device_bytes):
    """The reference for fewest_ranks."""
    found = []
    for stage, num_ranks in itertools.product(range(4), range(1, 4097)):
        state_bytes = 1e9 * state_gb(num_params, "mixed", stage, num_ranks)
        if state_bytes + activation_bytes <= device_bytes:
            found.append((num_ranks, stage))
    return min(found)[::-1] if found else None


def sends(architecture, num_ranks, num_bytes, island_size):
    """The reference for traffic."""
    islands = num_ranks // island_size
    ring = 2 * (num_ranks - 1) / num_ranks * num_bytes
    if architecture == "parameter_server":
        return (num_ranks - 1) * num_bytes, 2 * (num_ranks - island_size) * num_bytes
    if architecture == "hierarchical":
        return ring, 2 * (islands - 1) * num_bytes
    return ring, 0 if islands == 1 else islands * ring


def local(tensor):
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held(model, optimizer, part=local):
    """The reference for held_bytes and sharded_bytes."""
    weights = list(model.parameters())
    states = itertools.chain.from_iterable(state.values() for state in optimizer.state.values())
    return {
        "parameters": sum(part(each).nbytes for each in weights),
        "gradients": sum(part(each.grad).nbytes for each in weights if each.grad is not None),
        "optimizer": sum(part(each).nbytes for each in states),
    }


def step_sent(way, ranks, sequences, edges=2, rounds=3, per_sequence=True):
    """The reference for rank_sends."""
    share = 13.4e9 * (ranks - 1) / ranks
    if way == "layers":
        return min(edges, ranks - 1) * 2 * 2048 * 4096 * sequences
    if way == "data":
        return 2 * share
    return rounds * share * (sequences / ranks if per_sequence else 1)


ANSWERS = (state_gb, fewest, sends, held, held, step_sent)
REFERENCES = dict(zip(EXERCISES, ANSWERS, strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def without_masters(*args):
    """The textbook's 94 GB, less its activations."""
    return state_gb(*args, groups=GROUPS | {"mixed": (2, 2, 8)})


def all_sharded(params, recipe, stage, num_ranks):
    """Takes every stage for the third."""
    return state_gb(params, recipe, 3 if stage else 0, num_ranks)


def gradients_first(*args):
    """Shards gradients at stage 1 and the optimizer at stage 2."""
    return state_gb(*args, first=(3, 1, 2))


def one_recipe(params, recipe, stage, num_ranks):
    return state_gb(params, "mixed", stage, num_ranks)


def in_bytes(*args):
    return 1e9 * state_gb(*args)


def no_activations(params, activation_bytes, device_bytes):
    return fewest(params, 0, device_bytes)


def always_three(params, activation_bytes, device_bytes):
    """Never says that nothing fits."""
    return 3, 4096


def never(*_):
    return None


def ring_everywhere(architecture, num_ranks, num_bytes, island_size):
    return sends("ring", num_ranks, num_bytes, island_size)


def workers_share(architecture, num_ranks, num_bytes, island_size):
    """A worker's traffic for the server's."""
    right = sends(architecture, num_ranks, num_bytes, island_size)
    return (num_bytes, right[1]) if architecture == "parameter_server" else right


def ring_across(architecture, num_ranks, num_bytes, island_size):
    """Sees that hierarchical sends as much as the ring, and concludes too much."""
    return sends(
        "ring" if architecture == "hierarchical" else architecture,
        num_ranks,
        num_bytes,
        island_size,
    )


def one_island_crosses(architecture, num_ranks, num_bytes, island_size):
    right = sends(architecture, num_ranks, num_bytes, island_size)
    return right[0], right[1] or num_bytes


def one_number(*args):
    return sends(*args)[0]


def whole(model, optimizer):
    return held(model, optimizer, part=lambda tensor: tensor)


def four_each(model, optimizer):
    """Takes every element for four bytes."""
    sizes = [local(each).numel() for each in model.parameters()]
    return held(model, optimizer) | {"parameters": 4 * sum(sizes)}


def every_gradient(model, optimizer):
    """A frozen parameter has no gradient."""
    found = held(model, optimizer)
    return found | {"gradients": found["parameters"]}


def shared_twice(model, optimizer):
    found = held(model, optimizer)
    named = model.named_parameters(remove_duplicate=False)
    return found | {"parameters": sum(local(each).nbytes for _, each in named)}


def one_direction(way, ranks, sequences):
    """Forgets the gradients that go back."""
    return step_sent(way, ranks, sequences, edges=1)


def always_inner(way, ranks, sequences):
    """The last of two ranks has one neighbour."""
    sent = step_sent(way, ranks, sequences)
    return 2 * 2 * 2048 * 4096 * sequences if way == "layers" else sent


def gathered_once(way, ranks, sequences):
    """Gathers parameters for the forward alone."""
    return step_sent(way, ranks, sequences, rounds=2)


def at_once(way, ranks, sequences):
    """Takes all sequences as one microbatch."""
    return step_sent(way, ranks, sequences, per_sequence=False)


def moments_only(model, optimizer):
    """Forgets the counts of steps."""
    found = held(model, optimizer)
    return found | {"optimizer": found["optimizer"] - 4 * len(optimizer.state)}


@pytest.mark.a_few(10)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "model_state_gb",
            without_masters,
            "3e+09 parameters, 'mixed', stage 0, 1 ranks: 36 GB; a rank holds 48 GB",
        ),
        (
            "model_state_gb",
            all_sharded,
            "stage 1, 64 ranks: 1.875 GB; a rank holds 31.41 GB\nparameter 15.0 GB",
        ),
        ("model_state_gb", gradients_first, "stage 1, 64 ranks"),
        ("model_state_gb", one_recipe, "2e+09 parameters, 'sgd', stage 1, 4 ranks"),
        ("model_state_gb", in_bytes, "a rank holds 48 GB"),
        ("model_state_gb", lambda *_: float("nan"), "nan GB"),
        (
            "fewest_ranks",
            no_activations,
            "7e+09 parameters, 11.0 GB of activations, a device of 80.0 GB: stage 1 on 2 "
            "ranks takes 81.0 GB each",
        ),
        (
            "fewest_ranks",
            always_three,
            "1e+09 parameters, 90.0 GB of activations, a device of 80.0 GB: no stage fits",
        ),
        (
            "fewest_ranks",
            never,
            "3e+09 parameters, 5.00 GB of activations, a device of 80.0 GB: stage 0 on 1 rank fits",
        ),
        (
            "traffic",
            ring_everywhere,
            "parameter_server, 4 ranks, islands of 2, 6 MB: the busiest rank sends 18.0 MB",
        ),
        (
            "traffic",
            workers_share,
            "parameter_server, 4 ranks, islands of 2, 6 MB: the busiest rank sends 18.0 MB",
        ),
        (
            "traffic",
            ring_across,
            "hierarchical, 4 ranks, islands of 2, 6 MB: between islands go 12.0 MB in the plan; "
            "got",
        ),
        (
            "traffic",
            one_island_crosses,
            "parameter_server, 9 ranks, islands of 9, 6 MB: between islands go 0 B",
        ),
        ("traffic", one_number, "TypeError"),
        (
            "sharded_bytes",
            whole,
            "fully_shard, float32, 2 ranks, rank 0: parameters 4192; the engine holds 2096 bytes",
        ),
        ("sharded_bytes", four_each, "fully_shard, bfloat16, 4 ranks, rank 0: parameters"),
        ("sharded_bytes", every_gradient, "data parallel, float32, 2 ranks, rank 0: gradients"),
        ("sharded_bytes", shared_twice, "data parallel, float32, 2 ranks, rank 0: parameters"),
        ("sharded_bytes", moments_only, "data parallel, float32, 2 ranks, rank 0: optimizer"),
        (
            "rank_sends",
            lambda way, ranks, sequences: step_sent(way, 4, sequences),
            "'data', 2 ranks, 8 sequences: 2.01e+10 bytes; a rank sends 1.34e+10",
        ),
        ("rank_sends", one_direction, "'layers', 8 ranks, 64 sequences"),
        ("rank_sends", always_inner, "'layers', 2 ranks, 8 sequences"),
        ("rank_sends", gathered_once, "'sharded', 2 ranks, 8 sequences: 5.36e+10 bytes"),
        ("rank_sends", at_once, "'sharded', 2 ranks, 8 sequences: 2.01e+10 bytes"),
        ("held_bytes", moments_only, "a plain model, float32: optimizer 8384; the engine"),
        ("held_bytes", four_each, "a plain model, bfloat16: parameters"),
        ("held_bytes", lambda *_: {}, "parameters None; the engine holds"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample, verdict.counterexample


def with_a_spare(*args):
    found = fewest(*args)
    return found and (found[0], found[1] + 1)


def sharding_too_much(*args):
    """As few ranks, but always stage 3."""
    found = fewest(*args)
    return found and (3, found[1])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (with_a_spare, "stage 0 on 2 ranks; stage 0 on 1 rank is enough"),
        (sharding_too_much, "stage 3 on 1 rank; stage 0 on 1 rank is enough"),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(answer, words):
    verdict = check.fewest_ranks(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample, verdict.counterexample


def hangs(model, optimizer):
    """Waits for something that nobody sends."""
    torch.distributed.barrier()
    if torch.distributed.get_rank():
        time.sleep(60)
    torch.distributed.barrier()


@pytest.mark.usefixtures("short_patience")
def test_an_answer_that_waits_forever_is_a_verdict():
    began = time.monotonic()
    verdict = check.sharded_bytes(hangs)
    assert verdict.state == "wrong" and "barrier" in verdict.counterexample
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("rubbish", [None, "0F0", [None], {"rank": 1}])
def test_rubbish_is_wrong(rubbish):
    for name in EXERCISES:
        assert getattr(check, name)(lambda *_: rubbish).state == "wrong", name
