"""The exercise of a busy router: an auxiliary loss passes, each usual mistake is drawn and told."""

import pytest

from labkit.experts import check

pytestmark = pytest.mark.real


def routed(scores, top_k, weigh=1.0, of="both"):
    import torch.nn.functional as F

    probabilities = scores.softmax(-1)
    weights, chosen = probabilities.topk(top_k, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    share = F.one_hot(chosen, scores.shape[1]).sum((0, 1)) / chosen.numel()
    parts = {"both": (share, probabilities.mean(0)), "counts": (share, share)}[of]
    return chosen, weights, weigh * scores.shape[1] * (parts[0] * parts[1]).sum()


def in_turn(scores, top_k):
    import torch

    tokens, experts = scores.shape
    chosen = (torch.arange(tokens * top_k) % experts).view(tokens, top_k)
    weights = scores.softmax(-1).gather(1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True), 0.0


def twice_the_same(scores, top_k):
    chosen, weights, loss = routed(scores, top_k)
    return chosen[:, :1].expand(-1, top_k), weights, loss


def not_normed(scores, top_k):
    chosen, weights, loss = routed(scores, top_k)
    return chosen, 2 * weights, loss


@pytest.mark.again
def test_an_auxiliary_loss_keeps_the_experts_busy():
    verdict = check.busy_router(routed)
    assert verdict.state == "passed", verdict


@pytest.mark.a_few(2)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda scores, top_k: routed(scores, top_k, of="counts"), "no gradient in the scores"),
        (in_turn, "experts that follow the scores"),
        (twice_the_same, "goes to the same twice"),
        (not_normed, "these sum to 2"),
    ],
    ids=["counts", "in turn", "twice", "not normed"],
)
def test_usual_mistakes_of_a_router_are_named(answer, told):
    verdict = check.busy_router(answer)
    assert verdict.state == "wrong"
    assert told in verdict.counterexample, verdict
    if "the same" not in told and "sum" not in told:
        assert "expert 0  ####" in verdict.counterexample


def test_without_a_loss_favourites_stay():
    verdict = check.busy_router(lambda scores, top_k: routed(scores, top_k, weigh=0.0))
    assert verdict.state == "wrong"
    assert "times an even share; 1.3 times is enough" in verdict.counterexample
