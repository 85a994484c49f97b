"""The exercises of the case studies: what is right passes, and each way to be wrong is told."""

import re

import pytest

from labkit.case_studies import Perception, check, llama

WHOLE = {"zero": 3, "mbs": 1, "recompute": "full"}
NEEDLESS = WHOLE | {"offload": "optimizer"}
STAGES = {"pp": 4}
FEWER = {"fp16": (1, 2.0), "top-k": (2, 0.25)}


def by_card(card, seq):
    if "24" in card:
        return WHOLE | {"mbs": 16, "offload": "optimizer"}
    layout = {"tp": 4} if seq > 2048 else STAGES
    return layout if "80" in card else layout | {"offload": "optimizer"}


def often_to_the_host(card, seq):
    """Within a quarter of the fastest, were the host's time left out."""
    small_card = {"zero": 3, "mbs": 2, "offload": "optimizer"}
    return small_card if "24" in card else by_card(card, seq)


def kind_by_kind(weights, latency_ms, mb_per_s):
    """Saved bytes against choosing, as if messages cost nothing."""
    ways = {}
    for kind, count in weights.items():
        saved_ms = 1.5 * count / (1e3 * mb_per_s)
        ways[kind] = "top-k" if saved_ms > 3 else "fp16"
    return ways


def one_way(weights, latency_ms, mb_per_s):
    """All kinds by the better of two ways."""
    total_ms = sum(weights.values()) / (1e3 * mb_per_s)
    by_top_k = 2 * latency_ms + total_ms / 2 + 3 * len(weights) < latency_ms + 2 * total_ms
    return dict.fromkeys(weights, "top-k" if by_top_k else "fp16")


def by_size(weights, latency_ms, mb_per_s):
    """The larger kinds by top-k, as many as pay."""

    def took_ms(ways):
        sums = {way: [] for way in FEWER}
        for kind, way in ways.items():
            sums[way].append(weights[kind])
        took = 3.0 * len(sums["top-k"])
        for way, (messages, weight_bytes) in FEWER.items():
            sent_ms = weight_bytes * sum(sums[way]) / (1e3 * mb_per_s)
            took += messages * (latency_ms + sent_ms) if sums[way] else 0
        return took

    order = sorted(weights, key=weights.get, reverse=True)
    tries = []
    for count in range(5):
        fewest = dict.fromkeys(order[:count], "top-k")
        tries.append(dict.fromkeys(order, "fp16") | fewest)
    return min(tries, key=took_ms)


def step_ms(way, latency_ms, ms_per_kb):
    computing_ms, messages, kb = way
    return computing_ms + messages * latency_ms + kb * ms_per_kb


def limit_kb(against=("apart", "together"), computing=True, own_latency=True):
    """The answer, or what it is where a part is forgotten."""

    def answer(ways, latency_ms, ms_per_kb):
        other_ms = min(step_ms(ways[name], latency_ms, ms_per_kb) for name in against)
        other_ms -= ways["copied"][0] if computing else 0
        return (other_ms - (latency_ms if own_latency else 0)) / ms_per_kb

    return answer


def chosen(card, seq):
    """By the rules that chapter 20 gives."""
    fit = [row for row in llama.layouts(card, seq) if row["memory_bytes"] <= row["room_bytes"]]
    on_cards = [row for row in fit if row["offload"] == "none"]
    return min(on_cards or fit, key=lambda row: row["step_us"])["layout"]


@pytest.mark.parametrize("answer", [by_card, chosen])
def test_a_layout_for_each_card_passes(answer):
    verdict = check.four_cards(answer)
    assert verdict.state == "passed", verdict


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda card, seq: STAGES, "A100 40 GB, 1024 tokens.*nine tenths"),
        (lambda card, seq: WHOLE, "A100 80 GB, 1024 tokens.*takes 20.4 s a step.*in 12.9 s"),
        (often_to_the_host, "A10G 24 GB, 512 tokens.*takes 56.9 s a step.*in 44.1 s"),
        (lambda card, seq: NEEDLESS, "would do without offload"),
        (lambda card, seq: {"tp": 3}, "A100 80 GB"),
        (lambda card, seq: {"gpus": 8}, "a dict with some of"),
        (lambda card, seq: None, "a dict with some of"),
        (lambda card, seq: {"zero": "three"}, "A100 80 GB"),
        (lambda card, seq: {"zero": 3, "offload": "optimizer", "pp": 2}, "leave tp and pp out"),
    ],
)
def test_a_layout_that_will_not_do_is_told(answer, words):
    verdict = check.four_cards(answer)
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample, re.DOTALL), verdict.counterexample


def test_how_long_the_message_may_be_passes_and_the_faster_other_differs():
    verdict = check.placement(limit_kb())
    assert verdict.state == "passed", verdict
    faster = set()
    for ways in check.PLACED:
        for link in check.RATES:
            faster.add(min(("apart", "together"), key=lambda name: step_ms(ways[name], *link)))
    assert faster == {"apart", "together"}
    first = check.PLACED[0]
    assert limit_kb()(first, 12.0, 0.6) == pytest.approx(180.5 + 7 * 20)
    for name, way in first.items():  # chapter 20's net, as by hand
        step = Perception(placement=name).slowed(3)
        sizes = step.message_bytes()
        assert way[1:] == (len(sizes), pytest.approx(sum(sizes) / 1e3, abs=0.1))
        assert step_ms(way, 12, 0.6) == pytest.approx(step.step_us() / 1e3, abs=0.1)


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda *_: 320.5, "60 ms a message.*with 320 kB copied takes 234 ms, and together 647 ms"),
        (limit_kb(against=("together",)), "1 ms a message, 2 ms a kB.*and apart 1078 ms"),
        (limit_kb(against=("apart",)), "and together 362 ms"),
        (limit_kb(computing=False), "and together 362 ms"),
        (limit_kb(own_latency=False), "and together 362 ms"),
        (lambda *_: None, "return how many kB; got None"),
        (lambda *_: True, "return how many kB; got True"),
        (lambda *_: float("nan"), "return how many kB; got nan"),
        (lambda *_: "copied", "return how many kB"),
    ],
)
def test_a_message_that_is_too_short_or_too_long_is_told(answer, words):
    verdict = check.placement(answer)
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample, re.DOTALL), verdict.counterexample


@pytest.mark.real
def test_a_policy_within_both_limits_passes():
    verdict = check.policy(by_size)
    assert verdict.state == "passed", verdict


@pytest.mark.real
@pytest.mark.a_few(2)
@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda weights, *_: dict.fromkeys(weights, "exact"), "ways are fp16 and top-k"),
        (lambda weights, *_: dict.fromkeys(weights, "fp16"), "3 ms, 1 MB/s.*another choice"),
        (lambda weights, *_: dict.fromkeys(weights, "top-k"), "9 ms, 2 MB/s.*another choice"),
        (kind_by_kind, "9 ms, 2 MB/s: the gradients take 34.7 ms so; another choice takes 19.3 ms"),
        (one_way, "3 ms, 1 MB/s: the gradients take 23.2 ms so; another choice takes 21.4 ms"),
        (lambda *_: {"linear": "fp16"}, "each kind has a way"),
    ],
)
def test_a_policy_that_will_not_do_is_told(answer, words):
    verdict = check.policy(answer)
    assert verdict.state == "wrong"
    assert re.search(words, verdict.counterexample)
