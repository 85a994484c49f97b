"""The exercises of chapter 15 about who is slow: what is right passes, each wrong way is told."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest

import labkit as lab
from labkit import timeline
from labkit.profiling import check


def advised(line):
    best = lab.advise(line).best
    return best.kind, best.rank, best.gain


def test_the_advice_passes_and_the_first_trace_computes_as_stated():
    assert check.diagnose(advised).state == "passed"
    first = next(check.cases())
    mean = lab.advise(first.timeline).shares[:, 0].mean()
    assert first.timeline.num_ranks == 8 and mean == pytest.approx(0.6, abs=0.03)


def least(line):
    """The rank with the least time in messages, and how much less it is."""
    messages_us = timeline.busy_us(line, "comm")
    return int(messages_us.argmin()), messages_us.min() / messages_us.max()


def waited_for(line):
    rank, share = least(line)
    return rank if share < 0.5 else None


def test_the_rank_that_the_others_wait_for_passes():
    assert check.straggler(waited_for).state == "passed"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda line: int(timeline.busy_us(line, "comm").argmax()), "timeline 1, 8 ranks: rank 0"),
        (lambda line: least(line)[0], "timeline 2, 4 ranks: you named rank 0"),
        (lambda line: least(line)[0] if least(line)[1] < 0.9 else None, "timeline 5, 4 ranks"),
        (lambda line: None, "timeline 1, 8 ranks: the others do wait"),
        (lambda line: least(line), "a rank is a whole number, or None"),
        (lambda line: waited_for(line) is not None, "a rank is a whole number, or None"),
    ],
)
def test_a_wrong_rank_is_told(answer, told):
    verdict = check.straggler(answer)
    assert verdict.state == "wrong" and told in verdict.counterexample


def test_no_stage_of_a_balanced_pipeline_is_accused():
    line = check.slow("bubble", 1.0).step.predict()
    assert "The others waited" not in lab.advise(line).told()
    assert "The others waited" in lab.advise(check.slow("straggler", 1.0).step.predict()).told()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda line: ("slow", 0, 0.1), "a kind is one of"),
        (lambda line: ("gaps", 0, 0.1), "it is not 'gaps'"),
        (lambda line: (advised(line)[0], 0, advised(line)[2]), "rank 0 is not"),
        (lambda line: (*advised(line)[:2], 0.9), "you said 90 %"),
        (lambda line: (*advised(line)[:2], math.nan), "you said nan %"),
    ],
)
def test_a_wrong_diagnosis_is_told(answer, told):
    verdict = check.diagnose(answer)
    assert verdict.state == "wrong" and told in verdict.counterexample


def both(load, forward_backward, send, update, num_steps):
    with ThreadPoolExecutor(1) as loader, ThreadPoolExecutor(1) as link:
        ready = loader.submit(load, 0)
        for step in range(num_steps):
            batch = ready.result()
            if step + 1 < num_steps:
                ready = loader.submit(load, step + 1)
            gradients = []
            sent = []
            for gradient in forward_backward(batch):
                gradients.append(gradient)
                sent.append(link.submit(send, gradient))
            for each in sent:
                each.result()
            update(gradients)


def silent(load, forward_backward, send, update, num_steps):
    for step in range(num_steps):
        update(list(forward_backward(load(step))))


def stale(load, forward_backward, send, update, num_steps):
    def skipping(gradients):
        update([0 * each for each in gradients])

    both(load, forward_backward, send, skipping, num_steps)


@pytest.mark.again
@pytest.mark.alone
def test_both_changes_pass_and_the_slow_one_does_not():
    assert check.cure(both).state == "passed"
    verdict = check.cure(check.plain)
    assert verdict.state == "wrong" and "can be had" in verdict.counterexample


@pytest.mark.parametrize(("answer", "told"), [(silent, "gradients of 20"), (stale, "weights")])
def test_a_cure_that_trains_otherwise_is_told(answer, told):
    verdict = check.cure(answer)
    assert verdict.state == "wrong" and told in verdict.counterexample


def test_the_slow_one_is_watched_and_advised():
    found = lab.advise(check.watch())
    assert {"input", "overlap"} <= {change.kind for change in found.changes}
