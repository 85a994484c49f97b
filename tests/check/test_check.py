"""Every answer, however bad, becomes a verdict; the right ones pass, and the exercises catch the
typical mistakes."""

import os
import subprocess
import sys
import time

import pytest
from pipeline_answers import (
    choose,
    deadlocked,
    filled,
    first_fault,
    one_by_one,
    order,
    silent,
    two_stages,
    undivided,
)

from labkit import words
from labkit.check import exercises, grading
from labkit.check.verdict import Verdict
from labkit.pipeline import check, schedules

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = (
    "better_order",
    "fill_gaps",
    "choose_microbatches",
    "chart_fault",
    "real_pipeline",
)


def stub(*_):
    raise NotImplementedError("your turn")


REFERENCES = dict(zip(EXERCISES, (order, filled, choose, first_fault, two_stages), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def all_forwards_first(rank, p, m):
    return [str(action) for action in schedules.gpipe(p, m).orders[rank]]


def one_at_a_time(rank, p, m):
    return [str(action) for action in schedules.naive(p, m).orders[rank]]


def whole_warmup(rank, p, m):
    """Forgets that there may be fewer microbatches than ranks."""
    warmup = p - 1 - rank
    return [f"{rank}F{k}" for k in range(warmup)] + order(rank, p, m)[warmup:]


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "better_order",
            whole_warmup,
            "4 ranks, 2 microbatches: rank 0, step 2 is '0F2'; the best order has '0B0'",
        ),
        (
            "better_order",
            lambda r, p, m: [f"{r}F{k}" for k in range(m)],
            "rank 0, step 4 is '0F4'; the best order has '0B0'",
        ),
        (
            "better_order",
            lambda r, p, m: order(0, p, m),
            "rank 1, step 0 is '0F0'; the best order has '1F0'",
        ),
        (
            "fill_gaps",
            lambda rank, order: order,
            "4 ranks, 8 microbatches: rank 0, step 5 is '0F4'; the best order has '0W0'",
        ),
        (
            "fill_gaps",
            lambda rank, order: [action.replace("I", "W") for action in order],
            "rank 0, step 4 is '0W0'; the best order has '0I0'\n0W0 (rank 0, step 4) needs 0I0",
        ),
        (
            "choose_microbatches",
            lambda p, b, a: ("gpipe", choose(p, b, 99)[1]),
            "answer(4, 0.32, 4) is ('gpipe', 7)",
        ),
        ("choose_microbatches", lambda p, b, a: ("1f1b", p), "its bubble is 0.429"),
        ("choose_microbatches", lambda p, b, a: None, "1f1b with 7 microbatches fits"),
        (
            "choose_microbatches",
            lambda p, b, a: ("1f1b", 0),
            'give ("gpipe" or "1f1b", 1 or more), or None',
        ),
        (
            "chart_fault",
            lambda chart: None,
            "answer(chart) is None; right is (0, 4)\n F1  F2  F3  F4  B1",
        ),
        (
            "chart_fault",
            lambda chart: first_fault(chart, forward_only=True),
            "answer(chart) is None; right is (0, 4)",
        ),
        ("chart_fault", lambda chart: first_fault(chart, same_step=True), "right is (0, 5)"),
        ("real_pipeline", undivided, "rank 0: 0.weight.grad is not that of the one-process run"),
        ("real_pipeline", silent, "rank 1: 0.weight.grad is None"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample


def one_too_many(num_ranks, max_bubble, max_activations):
    """A microbatch more than needed, where there are many ranks."""
    found = choose(num_ranks, max_bubble, max_activations)
    if found is None:
        return None
    return "1f1b", found[1] + 1 if num_ranks > 4 else found[1]


def quadratic(chart):
    """Right, but slow where there are many boxes."""
    time.sleep(3 if len(chart) > 16 else 0)
    return first_fault(chart)


@pytest.mark.alone  # bounds in seconds
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "better_order",
            all_forwards_first,
            "keeps 8 activations, the best one 4; and takes 33 forwards of time, the best one 33",
        ),
        ("better_order", one_at_a_time, "takes 96 forwards of time, the best one 33"),
        (
            "fill_gaps",
            lambda rank, order: filled(rank, order, lag=0),
            "keeps 4 activations, the best one 4; and takes 30 forwards of time, the best one 27",
        ),
        (
            "fill_gaps",
            lambda rank, order: filled(rank, order, lag=99),
            "keeps 8 activations, the best one 4; and takes 30 forwards of time, the best one 27",
        ),
        (
            "choose_microbatches",
            one_too_many,
            "with 20 mi",
        ),
        ("chart_fault", quadratic, "32 ranks, 256 microbatches: more than 2 s"),
        ("real_pipeline", one_by_one, "bubble 0.500, GPipe 0.200. You ran [['0F0', '0B0', '0F1'"),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget"
    assert words in verdict.counterexample


def test_a_deadlock_on_real_ranks_names_the_line_of_each():
    began = time.monotonic()
    verdict = check.real_pipeline(deadlocked)
    assert verdict.state == "wrong" and time.monotonic() - began < 60
    assert verdict.counterexample.count("in recv at line") == 2


@pytest.mark.parametrize("name", EXERCISES[:4])
@pytest.mark.parametrize(
    "rubbish", [3, "0F0", object(), [None], {"rank": float("nan")}, lambda: None, ("1f1b", "8")]
)
def test_rubbish_is_wrong_and_never_raises(name, rubbish):
    assert getattr(check, name)(lambda *_: rubbish).state == "wrong"


@pytest.mark.parametrize("ending", [SystemExit, RecursionError, MemoryError])
def test_whatever_ends_an_answer_is_a_verdict_except_the_stop_button(ending):
    def ends(*_):
        raise ending

    def stopped(*_):
        raise KeyboardInterrupt

    assert check.choose_microbatches(ends).state == "wrong"
    with pytest.raises(KeyboardInterrupt):
        check.choose_microbatches(stopped)


def test_an_answer_that_never_returns_is_stopped(monkeypatch):
    def endless(*_):
        while True:
            pass

    limit = exercises.limit
    monkeypatch.setattr(exercises, "limit", lambda seconds: limit(min(seconds, 0.2)))
    verdict = check.choose_microbatches(endless)
    assert verdict.state == "wrong" and "no answer within 0.2 s" in verdict.counterexample


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long a thread starved")
@pytest.mark.timeout(60)
def test_what_others_take_of_the_core_is_not_counted():
    """Five programs on one core: 0.5 s of work take about 2.5 s, and are within 1 s."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    others = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(4)]
    try:
        time.sleep(0.3)
        began = time.monotonic()
        used_s = time.thread_time()
        with grading.limit(1.0):
            while time.thread_time() < used_s + 0.5:
                pass
        assert time.monotonic() - began > 1.2  # otherwise nothing was shown
        with pytest.raises(TimeoutError), grading.limit(0.2):
            while True:
                pass
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()


def test_hints_grow_with_each_attempt(capsys):
    texts = exercises._HINTS["chart_fault"]["en"]
    check.hint("chart_fault")
    for num_hints in (1, 2, 3, 3):
        assert check.chart_fault(lambda chart: None).hint == texts[num_hints - 1]
    check.hint("chart_fault")
    said = capsys.readouterr().out
    assert said.split() == " ".join(f"{n}/3: {texts[n - 1]}" for n in (1, 1, 2, 3)).split()
    assert max(map(len, said.splitlines())) <= 100
    with pytest.raises(ValueError, match=r"the exercises are better_order, .*; got 'nothing'"):
        check.hint("nothing")


def test_status_lists_every_exercise_of_the_chapter(capsys, monkeypatch):
    monkeypatch.setattr(exercises, "_history", {name: [] for name in EXERCISES})  # no other chapter
    check.choose_microbatches(choose)
    check.chart_fault(lambda chart: None)
    check.better_order(stub)
    check.status()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines[:-1]] == [
        ["better_order", "○ not attempted"],
        ["fill_gaps", "○ not attempted"],
        ["choose_microbatches", "✓ passed"],
        ["chart_fault", "✗ wrong"],
        ["real_pipeline", "○ not attempted"],
    ]
    assert lines[-1] == "1 of 5 passed"


def test_verdicts_speak_the_language_of_the_notebook():
    words.use("zh")
    verdict = check.chart_fault(lambda chart: None)
    assert repr(verdict).startswith("✗ 不对：下面的情形不对：") and exercises._HINTS["chart_fault"][
        "zh"
    ][0] in repr(verdict)


def test_html_escapes_and_follows_the_theme():
    html = Verdict(state="wrong", message="a < b", counterexample="<b>", hint="<i>")._repr_html_()
    assert "a &lt; b" in html and "&lt;b&gt;" in html and "<summary>hint</summary>&lt;i&gt;" in html
    assert "color:inherit" in html and "background:none" in html
    assert "<pre" not in Verdict(state="passed")._repr_html_()
