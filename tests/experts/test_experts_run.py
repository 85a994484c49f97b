"""Laws of experts on real ranks: outputs and gradients are those of one process that has all
experts; tokens, bytes and dropped choices are the predicted ones."""

import pytest
import torch

from labkit import experts
from labkit.experts import Layer, routing, whole_run
from labkit.timeline import busy_us

SMALL = Layer(ranks=2, experts=4, tokens=16, hidden=8, ffn=16, token_ms=0.05)


@pytest.mark.parametrize(
    "layer",
    [
        SMALL,
        SMALL.but(capacity=1.0, skew=2.0),
        SMALL.but(ranks=4, experts=8, top_k=1),
        SMALL.but(skew=40.0, top_k=1),
    ],
    ids=["two of four", "dropped", "one of eight", "all at one"],
)
def test_it_is_one_processs_and_every_token_is_predicted(layer):
    run = layer.run()
    assert "paced" in run.notes and routing.seen(run) == layer.loads().tolist()
    assert sum(result["num_dropped"] for result in run) == layer.dropped()
    for rank, (result, wanted) in enumerate(zip(run, layer.routings(), strict=True)):
        assert result["output_difference"] < 2e-6
        assert result["gradient_difference"] < 2e-5
        assert result["payload_bytes"] == layer.payload(rank)
        assert result["calls"] == {"all_to_all": 5}
        assert result["auxiliary_loss"] == pytest.approx(wanted.auxiliary_loss, rel=1e-5)


def test_one_process_computes_what_a_loop_over_tokens_does():
    layer = SMALL.but(capacity=1.0)
    tokens, router = (torch.from_numpy(each) for each in layer.inputs())
    torch.manual_seed(0)
    up, down = whole_run.weights(layer)
    outputs, _ = whole_run.every_rank(layer, tokens, router, up, down)
    for x_TD, out, found in zip(tokens.chunk(2), outputs, layer.routings(), strict=True):
        for number, token in enumerate(x_TD):
            likely = torch.from_numpy(found.probabilities[number][found.chosen[number]]).float()
            wanted = torch.zeros(layer.hidden)
            for place, expert in enumerate(found.chosen[number]):
                if found.kept[number][place]:
                    inner = torch.nn.functional.gelu(token @ up[expert])
                    wanted += likely[place] / likely.sum() * (inner @ down[expert])
            assert torch.allclose(out[number], wanted, atol=1e-5)


@pytest.mark.alone
def test_the_simulation_is_near():
    layer = Layer(token_ms=1.0)
    found = layer.compare()
    assert found.readings["measured"] == pytest.approx(found.readings["predicted"], rel=0.1)
    assert busy_us(found.measured) == pytest.approx(busy_us(layer.predict()), rel=0.1, abs=3e3)


def test_a_box_says_how_many_tokens_and_all_waiting_is_one_cause():
    compared = SMALL.compare()
    for line in (compared.predicted, compared.measured):
        work = line.select(line.lane == "compute")
        told = zip(work.rank.tolist(), work.label.tolist(), strict=True)
        assert set(told) == {(rank, str(taken)) for rank, taken in enumerate(SMALL.taken())}
    found = compared.difference()
    assert set(found.causes) == {"busiest", "waiting"}
    busiest = SMALL.taken().argmax()
    longer_us = busy_us(compared.measured)[busiest] - busy_us(compared.predicted)[busiest]
    assert found.causes["busiest"] == pytest.approx(longer_us)
    readings = compared.readings
    assert found.total == pytest.approx(readings["measured"] - readings["predicted"])


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_auxiliary_loss_is_theorys_and_has_a_gradient(top_k):
    scores = torch.tensor([[3.0, 2.0, 0.0], [2.5, 2.0, 1.0], [3.0, 0.0, 1.0]], requires_grad=True)
    probabilities = scores.softmax(-1)
    found = experts.auxiliary_loss(probabilities, probabilities.topk(top_k, -1).indices)
    wanted = routing.route(scores.detach().numpy(), top_k).auxiliary_loss
    assert found.item() == pytest.approx(wanted, rel=1e-6)
    found.backward()
    assert scores.grad.abs().max() > 1e-3
