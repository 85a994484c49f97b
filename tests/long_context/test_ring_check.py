"""The exercise of a causal ring: a right answer passes, each usual mistake is told in a sentence of
its own."""

import pytest

from labkit.long_context import check

pytestmark = pytest.mark.real


def in_a_ring(take, fault=""):
    import math

    import torch
    import torch.distributed as dist

    is_lean = fault in ("", "gathered", "a step more")
    rank = dist.get_rank()
    size = dist.get_world_size()
    held = [(each, 2 * size - 1 - each) for each in range(size)]
    if fault == "neighbours":
        held = [(2 * each, 2 * each + 1) for each in range(size)]
    q, k, v = take(*held[rank])
    tokens = q.shape[1] // 2
    at = [
        torch.cat([i * tokens + torch.arange(tokens), j * tokens + torch.arange(tokens)])
        for i, j in held
    ]
    out = torch.zeros_like(q)
    lse = torch.full((*q.shape[:2], 1), -math.inf)
    kv = torch.stack([k, v])
    for number in range(size - 1 if fault == "a round less" else size):
        whose = (rank - number) % size
        mine = slice(tokens if whose > rank and is_lean else 0, 2 * tokens)
        keys = slice(0, tokens if whose < rank and is_lean else 2 * tokens)
        if whose > rank and fault == "neighbours":
            keys = slice(0, 0)  # no token here sees them
        scores = q[:, mine] @ kv[0][:, keys].mT / math.sqrt(q.shape[2])
        later = at[whose][keys] > at[rank][mine].unsqueeze(1)
        if fault == "in its block":
            later = at[whose] // tokens > at[rank].unsqueeze(1) // tokens
        if fault != "no mask":
            scores = scores.masked_fill(later, -math.inf)
        total = torch.logaddexp(lse[:, mine], scores.logsumexp(-1, keepdim=True))
        more = (scores - total).exp() @ kv[1][:, keys]
        if fault == "added":
            out += scores.softmax(-1).nan_to_num() @ kv[1]
        elif fault == "nan":
            out += scores.softmax(-1) @ kv[1]
        elif fault == "not rescaled":
            out += more
        else:
            out[:, mine] = out[:, mine] * (lse[:, mine] - total).exp() + more
        lse[:, mine] = total
        if number < size - 1:
            arriving = torch.empty_like(kv)
            calls = [dist.P2POp(dist.isend, kv, (rank + 1) % size)]
            calls += [dist.P2POp(dist.irecv, arriving, (rank - 1) % size)]
            for each in dist.batch_isend_irecv(calls):
                each.wait()
            kv = arriving
    if fault == "a step more":
        calls = [dist.P2POp(dist.isend, kv, (rank + 1) % size)]
        calls += [dist.P2POp(dist.irecv, torch.empty_like(kv), (rank - 1) % size)]
        for each in dist.batch_isend_irecv(calls):
            each.wait()
    if fault == "gathered":
        dist.all_gather([torch.empty_like(kv) for _ in range(size)], kv)
    return out


def test_a_balanced_ring_passes():
    verdict = check.causal_ring(in_a_ring)
    assert verdict.state == "passed", verdict


@pytest.mark.a_few(3)
@pytest.mark.parametrize(
    ("fault", "state", "told"),
    [
        ("no mask", "wrong", "nothing is masked"),
        ("in its block", "wrong", "after it in its own block"),
        ("added", "wrong", "as if all weighed the same"),
        ("not rescaled", "wrong", "to be rescaled by exp(old - new)"),
        ("nan", "wrong", "not a number"),
        ("a round less", "wrong", "no token sees the keys of block 1 and 2"),
        ("whole rounds", "over budget", "an even share of what must be is 5"),
        ("gathered", "over budget", "all_gather was called"),
        ("a step more", "over budget", "1536 bytes sent; 768 are enough"),
    ],
)
def test_usual_mistakes_of_the_ring_are_named(fault, state, told):
    verdict = check.causal_ring(lambda take: in_a_ring(take, fault))
    assert verdict.state == state, verdict
    assert told in verdict.counterexample, verdict


def test_who_worked_how_much_is_drawn():
    verdict = check.causal_ring(lambda take: in_a_ring(take, "neighbours"))
    assert verdict.state == "over budget"
    assert "rank 0  ####      4\nrank 1  ########  8" in verdict.counterexample, verdict


def uncounted(take):
    """The right output, and no product of matrices in it."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    size = dist.get_world_size()
    q, k, v = take(rank, 2 * size - 1 - rank)
    every = [torch.empty_like(torch.stack([k, v])) for _ in range(size)]
    dist.all_gather(every, torch.stack([k, v]))
    tokens = q.shape[1] // 2
    halves = [each[:, :, :tokens] for each in every]
    halves += [each[:, :, tokens:] for each in reversed(every)]
    k, v = torch.cat(halves, 2)
    scores = (q.unsqueeze(2) * k.unsqueeze(1)).sum(-1) / q.shape[2] ** 0.5
    place = torch.arange(tokens)
    mine = torch.cat([rank * tokens + place, (2 * size - 1 - rank) * tokens + place])
    later = torch.arange(k.shape[1]) > mine.unsqueeze(1)
    share = scores.masked_fill(later, float("-inf")).softmax(-1)
    return (share.unsqueeze(-1) * v.unsqueeze(1)).sum(2)


def the_same_blocks(take):
    return take(0, 1)[0]


def three_blocks(take):
    return take(0, 1, 2)[0]


def none_taken(take):
    return None


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (uncounted, "0 pairs of blocks were counted in all; attention needs 8"),
        (the_same_blocks, "each of the 4 blocks lies on one rank"),
        (three_blocks, "a rank takes two different blocks of 0 to 3, once; got (0, 1, 2)"),
        (none_taken, "each of the 4 blocks lies on one rank"),
    ],
)
def test_what_is_no_ring_is_told_why(answer, told):
    verdict = check.causal_ring(answer)
    assert verdict.state == "wrong"
    assert told in verdict.counterexample, verdict
