"""The exercises about unequal machines: right answers pass, wrong ones are told why and drawn."""

import re

import pytest
import torch
import torch.distributed as dist

from labkit.heterogeneous import check, split


def greedy(speeds, batch):
    rows = [0] * len(speeds)
    for _ in range(batch):
        rank = min(range(len(speeds)), key=lambda each: (rows[each] + 1) / speeds[each])
        rows[rank] += 1
    return rows


def deal(model, inputs, targets, speeds, rows_of=greedy, weigh=None):
    me = dist.get_rank()
    rows = rows_of(speeds, len(inputs))
    mine = slice(sum(rows[:me]), sum(rows[: me + 1]))
    if rows[me]:
        errors = (model(inputs[mine]) - targets[mine]).square()
        (errors.sum() / (weigh or targets.numel())).backward()
    weights = list(model.parameters())
    flat = torch.cat(
        [(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights]
    )
    dist.all_reduce(flat)
    for weight, part in zip(weights, flat.split([w.numel() for w in weights]), strict=True):
        weight.grad = part.view_as(weight)


def equally(speeds, batch):
    whole, rest = divmod(batch, len(speeds))
    return [whole + (rank < rest) for rank in range(len(speeds))]


def best_cut(edge, cloud, up, down, deadline):
    def parts(cut):
        if cut == len(edge):
            return (sum(edge), 0, 0, 0)
        return (sum(edge[:cut]), up[cut], sum(cloud[cut:]), down)

    fine = [cut for cut in range(len(edge) + 1) if sum(parts(cut)) <= deadline]
    return min(fine, key=lambda cut: (max(parts(cut)), sum(parts(cut))), default=None)


def lowest_latency(edge, cloud, up, down, deadline):
    def latency(cut):
        if cut == len(edge):
            return sum(edge)
        return sum(edge[:cut]) + up[cut] + sum(cloud[cut:]) + down

    return min(range(len(edge) + 1), key=latency)


def follow(history, batch, num_ranks):
    if not history:
        return equally([1] * num_ranks, batch)
    fixed = [0.0] * num_ranks
    if len(history) > 1:
        (b0, t0), (b1, t1) = history[:2]
        for rank in range(num_ranks):
            if b0[rank] != b1[rank]:
                slope = (t1[rank] - t0[rank]) / (b1[rank] - b0[rank])
                fixed[rank] = t0[rank] - slope * b0[rank]
    samples, times = history[-1]
    each = [(t - c) / b for t, c, b in zip(times, fixed, samples, strict=True)]
    dealt = [0] * num_ranks
    for _ in range(batch):
        rank = min(range(num_ranks), key=lambda r: fixed[r] + (dealt[r] + 1) * each[r])
        dealt[rank] += 1
    return dealt


def by_ratio(history, batch, num_ranks):
    """As if there were no fixed time."""
    if not history:
        return equally([1] * num_ranks, batch)
    samples, times = history[-1]
    return greedy([b / t for b, t in zip(samples, times, strict=True)], batch)


def never_again(history, batch, num_ranks):
    """Looks at the first two steps only."""
    return follow(history[:2], batch, num_ranks)


@pytest.mark.parametrize(
    "grade, answer",
    [
        (check.deal_by_speed, deal),
        (check.where_to_cut, best_cut),
        (check.follow_speeds, follow),
    ],
)
def test_right_answers_pass(grade, answer):
    verdict = grade(answer)
    assert verdict.state == "passed", verdict


@pytest.mark.parametrize(
    "grade, answer, words",
    [
        (check.where_to_cut, lowest_latency, r"right is .*\n.*edge +#"),
        (check.where_to_cut, lambda *given: 99, "no cut"),
        (check.follow_speeds, by_ratio, r"the best deal takes .*\nrank 0  #"),
        (check.follow_speeds, never_again, "step 7 dealt"),
        (check.follow_speeds, lambda history, batch, ranks: [batch], "is no deal of 64"),
    ],
)
def test_what_is_wrong_is_told_and_drawn(grade, answer, words):
    verdict = grade(answer)
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample, re.DOTALL)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"rows_of": equally}, r"\(32, 32\) takes 32 ms, and 16 are enough\nrank 0  #{40} 32"),
        ({"rows_of": split.by_speed}, r"speeds \(1, 10\), 8 rows: \(1, 7\) takes 1 ms, and 0.8"),
        ({"rows_of": lambda speeds, batch: [1] * len(speeds)}, "together 2"),
        ({"weigh": 10.0}, "is not the gradient of the whole batch, it is 12.8 times"),
    ],
)
def test_a_wrong_deal_is_told(options, words):
    verdict = check.deal_by_speed(lambda *given: deal(*given, **options))
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample), verdict


def test_a_second_collective_is_over_budget():
    def twice(*given):
        deal(*given)
        dist.all_reduce(torch.zeros(1))

    assert check.deal_by_speed(twice).state == "over budget"
