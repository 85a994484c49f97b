"""PipeDream on real ranks against its definition on one process: which version of the weights each
gradient uses."""

import numpy as np
import pytest
import torch

from labkit import model
from labkit.pipeline import pipedream
from labkit.timeline import bubble

RATE = 0.3


def by_definition(num_stages, num_microbatches, delay):
    """One process: stage s runs microbatch k with its version ``delay(s, k)``, and its gradient
    makes a new version of the newest weights."""
    torch.manual_seed(0)
    whole = model.Transformer(num_stages, pipedream.DIM, 2, max_len=pipedream.LENGTH)
    stages = model.split(whole, num_stages)
    tokens, targets = model.story_tokens(num_microbatches, pipedream.LENGTH)
    versions = [
        [{name: w.detach().clone() for name, w in stage.named_parameters()}] for stage in stages
    ]
    losses = []
    for k in range(num_microbatches):
        used, x = [], tokens[k, None]
        for s, stage in enumerate(stages):
            used.append(
                {name: w.clone().requires_grad_() for name, w in versions[s][delay(s, k)].items()}
            )
            x = torch.func.functional_call(stage, used[s], x)
        loss = model.loss(x, targets[k, None])
        loss.backward()
        losses.append(loss.item())
        for s in range(num_stages):
            versions[s].append(
                {name: w - RATE * used[s][name].grad for name, w in versions[s][-1].items()}
            )
    return losses, {f"layers.{name}": w for stage in versions for name, w in stage[-1].items()}


def found_weights(run):
    return {name: weight for result in run for name, weight in result["weights"].items()}


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_pipedream_is_sgd_whose_gradients_are_late_by_the_ranks_behind(num_ranks):
    run = pipedream.run(num_ranks, 7, learning_rate=RATE, num_layers=num_ranks)
    losses, weights = by_definition(num_ranks, 7, lambda s, k: max(0, k - (num_ranks - 1 - s)))
    assert np.allclose(run[num_ranks - 1]["losses"], losses, atol=1e-5) and len(losses) == 7
    found = found_weights(run)
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.allclose(found[name], weight, atol=1e-5), name
    for s in range(num_ranks):
        assert run[s]["versions"] == [(max(0, k - (num_ranks - 1 - s)), k) for k in range(7)]
    assert [result["peak_versions"] for result in run] == [num_ranks - s for s in range(num_ranks)]


def test_a_flush_leaves_one_version_and_the_weights_of_one_process():
    flushed, whole = (
        pipedream.run(p, 8, flush_every=4, learning_rate=RATE, num_layers=2) for p in (2, 1)
    )
    for name, weight in found_weights(whole).items():
        assert torch.allclose(found_weights(flushed)[name], weight, atol=1e-5), name
    assert all(
        used == newest == k // 4
        for result in flushed
        for k, (used, newest) in enumerate(result["versions"])
    )
    assert [result["peak_versions"] for result in flushed] == [1, 1]
    stale = pipedream.run(2, 8, learning_rate=RATE, num_layers=2)
    assert any(
        not torch.equal(found_weights(stale)[name], weight)
        for name, weight in found_weights(whole).items()
    )


def test_pipedream_has_no_bubble_once_full_and_a_flush_has_one():
    timeline = pipedream.run(2, 8, forward_us=20_000.0, num_layers=2).timeline()
    assert "paced" in timeline.notes and sorted(set(timeline.kind[timeline.lane == "compute"])) == [
        "B",
        "F",
    ]
    steady = pipedream.steady(timeline)
    assert 0 < steady.span_us < timeline.span_us and bubble(steady) < 0.08 < bubble(timeline)
    flushed = pipedream.run(2, 8, flush_every=2, forward_us=20_000.0, num_layers=2).timeline()
    assert bubble(flushed) > bubble(timeline) + 0.1  # 1/3 against 1/9 by (p-1)/(m+p-1)


def test_microbatches_that_do_not_fill_their_groups_are_refused():
    with pytest.raises(ValueError, match="10 do not divide into groups of 4"):
        pipedream.run(2, 10, flush_every=4)
