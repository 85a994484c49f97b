"""The exercises of chapter 22: what is right passes, each way to be wrong is told."""

import re
from pathlib import Path

import pytest
import torch

from labkit.profiling.advice import advise
from labkit.profiling.bottleneck import Bottleneck
from labkit.profiling.recording import record
from labkit.profiling.recording.record_run import Record
from labkit.your_own import machine_check as check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("crossing", "forecast", "yours")


def bisected(step_s, copies, shards):
    slow, fast = 0.01, 1000.0
    for _ in range(60):
        middle = (slow * fast) ** 0.5
        if step_s(copies, middle) < step_s(shards, middle):
            slow = middle
        else:
            fast = middle
    return slow


def from_both(copies, shards, cards):
    def step_s(way, gb):
        return max(way["sent_gb"] / (cards * gb / 2), way["hiding_s"]) + way["rest_s"]

    return bisected(step_s, copies, shards)


def test_the_speed_at_which_both_take_equally_long_passes():
    verdict = check.crossing(from_both)
    assert verdict.state == "passed", verdict


@pytest.mark.parametrize("cards, copies, shards", check.NETWORKS)
def test_copies_win_on_slower_cards_and_shards_on_faster_ones(cards, copies, shards):
    names = ("sent_gb", "hiding_s", "rest_s")
    ways = [dict(zip(names, each, strict=True)) for each in (copies, shards)]
    right_gb = from_both(*ways, cards)
    for gb in (right_gb * 1.05**number for number in range(-99, 100)):
        took_s = [
            max(way["sent_gb"] / (cards * gb / 2), way["hiding_s"]) + way["rest_s"] for way in ways
        ]
        assert (took_s[0] < took_s[1]) == (gb < right_gb) or gb == right_gb


def all_shown(copies, shards, cards):
    rest_s = copies["rest_s"] - shards["rest_s"]
    return (shards["sent_gb"] - copies["sent_gb"]) / rest_s / (cards / 2)


def all_added(copies, shards, cards):
    def step_s(way, gb):
        return way["sent_gb"] / (cards * gb / 2) + way["hiding_s"] + way["rest_s"]

    return bisected(step_s, copies, shards)


def without_the_rest(copies, shards, cards):
    def step_s(way, gb):
        return max(way["sent_gb"] / (cards * gb / 2), way["hiding_s"])

    return bisected(step_s, copies, shards)


@pytest.mark.parametrize(
    "answer, words",
    [
        (all_shown, "8 cards, .* copies take 0.340 s and shards 0.270 s"),
        (all_added, "8 cards"),
        (without_the_rest, "8 cards"),
        (lambda *each: from_both(*each) / 2, "8 cards"),  # all of the cards' bandwidth
        (lambda *each: from_both(*each) * each[2], "8 cards"),  # of a machine
        (lambda copies, shards, _: from_both(copies, shards, 8), "1 cards"),
        (lambda *_: float("nan"), "at nan GB/s copies take inf s"),
        (lambda *_: 0, "at 0 GB/s"),
        (lambda *_: None, "None"),
    ],
)
def test_another_speed_is_told_with_both_steps(answer, words):
    verdict = check.crossing(answer)
    assert verdict.state == "wrong" and re.search(words, verdict.counterexample)


def from_corners(timed, layers, sequences):
    tried = [(1, 1), (4, 1), (1, 8), (4, 8)]
    parts = torch.tensor([[1.0, n, n * s] for n, s in tried])
    took_ms = torch.tensor([[timed(n, s)] for n, s in tried])
    step, layer, sequence = torch.linalg.lstsq(parts, took_ms).solution[:, 0]
    return step + layer * layers + sequence * layers * sequences


def test_three_costs_from_four_steps_foretell_a_large_one():
    verdict = check.forecast(from_corners)
    assert verdict.state == "passed", verdict


def in_proportion(timed, layers, sequences):
    return timed(4, 8) * layers * sequences / 32


def from_neighbours(timed, layers, sequences):
    at = timed(3, 7)
    sequence = (timed(3, 8) - at) / 3
    layer = timed(4, 7) - at - 7 * sequence
    return at + layer * (layers - 3) + sequence * (layers * sequences - 21)


def often(timed, layers, sequences):
    _ = timed(1, 1)
    return from_corners(timed, layers, sequences)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (in_proportion, "wrong", "48 layers, 16 sequences: .* timed: .4, 8.: "),
        (from_neighbours, "wrong", "foretold"),
        (lambda *_: float("nan"), "wrong", "nan ms foretold"),
        (lambda timed, *_: timed(5, 1), "wrong", "1 to 4 layers"),
        (often, "over budget", "5 steps timed; 4 are enough"),
    ],
)
def test_a_forecast_that_is_off_or_dear_is_told(answer, state, words):
    verdict = check.forecast(answer)
    assert verdict.state == state and re.search(words, verdict.counterexample)


def recorded(cured: bool, step_us: float) -> Record:
    timeline = Bottleneck(kind="input", cured=cured).predict()
    return Record(
        advice=advise(timeline),
        timeline=timeline,
        steps=8,
        step_us=step_us,
        flops_per_s=None,
        remarks=(),
        folder=Path(),
    )


def test_a_pair_of_records_passes_where_the_longest_wait_became_shorter():
    before = recorded(False, 60e3)
    after = recorded(True, 20e3)
    longest = max(before.parts_us(), key=before.parts_us().get)
    assert check.yours(lambda: (longest, before, after)).state == "passed"
    for answer, words in (
        (lambda: ("computing" if longest != "computing" else "x", before, after), "the longest"),
        (lambda: (longest, before, before), "the step: 60.0 ms before, 60.0 ms after"),
        (lambda: (longest, before, recorded(False, 60e3)), "before"),
        (lambda: (longest, before, 3), "what record"),
        (lambda: longest, "the answer is .part, before, after."),
    ):
        verdict = check.yours(answer)
        assert verdict.state == "wrong" and re.search(words, verdict.counterexample)


def test_the_script_is_written_where_nobody_else_writes():
    one = check.script()
    other = check.script()
    assert one.parent != other.parent and one.read_text() == other.read_text() == check.SCRIPT


@pytest.mark.real
@pytest.mark.again
@pytest.mark.alone
def test_the_script_waits_for_its_messages_and_ddp_sends_fewer():
    train = check.script()
    first, loop = check.SCRIPT.split("    for each in")
    wrapped = "net = torch.nn.parallel.DistributedDataParallel(net)\noptimizer ="
    changed = train.with_name("changed.py")
    last = loop[loop.index("    optimizer.step") :]
    changed.write_text(first.replace("optimizer =", wrapped) + last)
    before, after = [record(each, ranks=2, show=False) for each in (train, changed)]
    assert before.steps >= 2 and after.steps >= 2
    verdict = check.yours(lambda: ("exposed communication", before, after))
    assert verdict.state == "passed", verdict
    assert check.yours(lambda: ("waiting for data", before, after)).state == "wrong"
