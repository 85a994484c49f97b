"""PipeDream on real ranks against its definition on one process: which version of the weights each
gradient uses."""

import numpy as np
import pytest
import torch

from labkit import model
from labkit.pipeline import pipedream_run
from labkit.pipeline.simulation import steady
from labkit.timeline import bubble

RATE = 0.3


def by_definition(num_stages, num_microbatches, delay):
    """One process: stage s runs microbatch k with its version ``delay(s, k)``, and its gradient
    makes a new version of the newest weights."""
    torch.manual_seed(0)
    whole = model.Transformer(num_stages, pipedream_run.DIM, 2, max_len=pipedream_run.LENGTH)
    stages = model.split(whole, num_stages)
    tokens, targets = model.story_tokens(num_microbatches, pipedream_run.LENGTH)
    versions = [[copies(dict(stage.named_parameters()))] for stage in stages]
    losses = []
    for k in range(num_microbatches):
        used = []
        x = tokens[k, None]
        for s, stage in enumerate(stages):
            used.append(copies(versions[s][delay(s, k)]))
            x = torch.func.functional_call(stage, used[s], x)
        loss = model.loss(x, targets[k, None])
        loss.backward()
        losses.append(loss.item())
        for mine, weights in zip(versions, used, strict=True):
            newest = {name: w - RATE * weights[name].grad for name, w in mine[-1].items()}
            mine.append({name: w.detach() for name, w in newest.items()})
    found = {}
    for stage in versions:
        found |= {f"layers.{name}": w for name, w in stage[-1].items()}
    return losses, found


def copies(weights):
    return {name: w.detach().clone().requires_grad_() for name, w in weights.items()}


def found_weights(run):
    found = {}
    for result in run:
        found |= result["weights"]
    return found


@pytest.mark.real
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_pipedream_is_sgd_whose_gradients_are_late_by_the_ranks_behind(num_ranks):
    run = pipedream_run.launch(num_ranks, 7, learning_rate=RATE, num_layers=num_ranks)
    losses, weights = by_definition(num_ranks, 7, lambda s, k: max(0, k - (num_ranks - 1 - s)))
    assert np.allclose(run[num_ranks - 1]["losses"], losses, atol=1e-5) and len(losses) == 7
    found = found_weights(run)
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.allclose(found[name], weight, atol=1e-5), name
    for s in range(num_ranks):
        assert run[s]["versions"] == [(max(0, k - (num_ranks - 1 - s)), k) for k in range(7)]
    assert [result["peak_versions"] for result in run] == [num_ranks - s for s in range(num_ranks)]


@pytest.mark.real
def test_a_flush_leaves_one_version_and_the_weights_of_one_process():
    options = {"flush_every": 4, "learning_rate": RATE, "num_layers": 2}
    flushed = pipedream_run.launch(2, 8, **options)
    whole = pipedream_run.launch(1, 8, **options)
    for name, weight in found_weights(whole).items():
        assert torch.allclose(found_weights(flushed)[name], weight, atol=1e-5), name
    for result in flushed:
        assert result["versions"] == [(k // 4, k // 4) for k in range(8)]
    assert [result["peak_versions"] for result in flushed] == [1, 1]
    stale = pipedream_run.launch(2, 8, learning_rate=RATE, num_layers=2)
    assert any(
        not torch.equal(found_weights(stale)[name], weight)
        for name, weight in found_weights(whole).items()
    )


@pytest.mark.real
def test_a_paced_run_warms_up_and_trains_the_same():
    paced = found_weights(pipedream_run.launch(2, 4, forward_us=1000.0, num_layers=2))
    for name, weight in found_weights(pipedream_run.launch(2, 4, num_layers=2)).items():
        assert torch.equal(paced[name], weight), name


@pytest.mark.alone  # reads the clock of a paced run
def test_pipedream_has_no_bubble_once_full_and_a_flush_has_one():
    timeline = pipedream_run.launch(2, 8, forward_us=20_000.0, num_layers=2).timeline()
    assert "paced" in timeline.notes
    assert set(timeline.kind[timeline.lane == "compute"]) == {"B", "F"}
    full = steady(timeline)
    assert 0 < full.span_us < timeline.span_us and bubble(full) < 0.08 < bubble(timeline)
    flushed = pipedream_run.launch(
        2, 8, flush_every=2, forward_us=20_000.0, num_layers=2
    ).timeline()
    assert bubble(flushed) > bubble(timeline) + 0.1  # 1/3 against 1/9 by (p-1)/(m+p-1)


def test_microbatches_that_do_not_fill_their_groups_are_refused():
    with pytest.raises(ValueError, match="10 do not divide into groups of 4"):
        pipedream_run.launch(2, 10, flush_every=4)
