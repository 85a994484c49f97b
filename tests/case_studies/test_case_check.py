"""The exercises of the case studies: what is right passes, and each way to be wrong is told."""

import re

import pytest

from labkit.case_studies import check

WHOLE = {"zero": 3, "mbs": 1, "recompute": "full"}
CUT = WHOLE | {"tp": 4, "offload": "optimizer"}
STAGES = {"pp": 4}


def by_card(card, seq):
    if "24" in card:
        return WHOLE | {"mbs": 4, "offload": "optimizer"}
    layout = {"tp": 4} if seq > 2048 else STAGES
    return layout if "80" in card else layout | {"offload": "optimizer"}


def kind_by_kind(weights, latency_ms, mb_per_s):
    """Saved bytes against one message more, as if nothing were shared."""
    ways = {}
    for kind, count in weights.items():
        saved_ms = 1.5 * count / (1e3 * mb_per_s)
        ways[kind] = "top-k" if saved_ms > latency_ms else "fp16"
    return ways


def by_link(weights, latency_ms, mb_per_s):
    """The same of all weights together."""
    all_of_them = kind_by_kind({"all": sum(weights.values())}, latency_ms, mb_per_s)
    return dict.fromkeys(weights, all_of_them["all"])


def test_a_layout_for_each_card_passes():
    verdict = check.four_cards(by_card)
    assert verdict.state == "passed", verdict


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda card, seq: STAGES, "A100 40 GB, 1024 tokens.*nine tenths"),
        (lambda card, seq: WHOLE, "A100 80 GB, 1024 tokens.*takes 20.4 s a step.*in 12.9 s"),
        (lambda card, seq: CUT, "would do without offload"),
        (lambda card, seq: {"tp": 3}, "A100 80 GB"),
        (lambda card, seq: {"gpus": 8}, "a dict with some of"),
        (lambda card, seq: None, "a dict with some of"),
        (lambda card, seq: {"zero": "three"}, "A100 80 GB"),
    ],
)
def test_a_layout_that_will_not_do_is_told(answer, words):
    verdict = check.four_cards(answer)
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample, re.DOTALL), verdict.counterexample


@pytest.mark.real
def test_a_policy_within_both_limits_passes():
    verdict = check.policy(by_link)
    assert verdict.state == "passed", verdict


@pytest.mark.real
@pytest.mark.a_few(2)
@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda weights, *_: dict.fromkeys(weights, "exact"), "another choice takes"),
        (lambda weights, *_: dict.fromkeys(weights, "fp16"), "1 MB/s.*another choice"),
        (lambda weights, *_: dict.fromkeys(weights, "top-k"), "10 MB/s.*another choice"),
        (kind_by_kind, "1 MB/s: the gradients take 18.4 ms so; another choice takes 11.2 ms"),
        (lambda weights, *_: dict.fromkeys(weights, "late"), "ways are"),
        (lambda *_: {"linear": "fp16"}, "each kind has a way"),
    ],
)
def test_a_policy_that_will_not_do_is_told(answer, words):
    verdict = check.policy(answer)
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample)
