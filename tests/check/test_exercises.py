"""What holds for every exercise of every subject: stubs, answers that raise, what cannot be called,
the hints.

A file of hints lies beside its check; its keys are the exercises. A new one is held to these laws
at once. If its checks take claims beside the answer, the right ones have to stand in CLAIMS. What
is right, wrong or wasteful in a subject's own answers stands in test_check_<subject>.py.
"""

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.check import exercises

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
PACKAGE = Path(exercises.__file__).parents[1]
HINTS = {}
ROOMS = {}
for file in sorted(PACKAGE.glob("*/*hints.json")):
    stem = file.stem.removeprefix("spare_")
    subject = f"{file.parent.name}.{stem.replace('hints', 'check')}"
    HINTS.setdefault(subject, {}).update(json.loads(file.read_text(encoding="utf-8")))
    ROOMS[subject] = importlib.import_module(f"labkit.{subject}")
REGISTERED = list(exercises._history)
EXERCISES = {name: subject for subject, hints in HINTS.items() for name in hints}
OFFERED = {
    "hint",
    "language",
    "script",
    "status",
    "trace",
    "Training",
    "toy",
    "regrets",
    "watch",
}  # what a chapter uses, and is no exercise
CLAIMS = {
    "finding": {
        name: (truth.ranks, truth.lines[0], truth.fault)
        for name, truth in ROOMS["debugging.check"].TRUTH.items()
    }
}


def is_chinese(text):
    """Whether there is a Chinese letter in a text."""
    return any("一" <= letter <= "鿿" for letter in text)


def judged(name, answer):
    """The verdict on an answer, with the right claims where the exercise takes some."""
    check = getattr(ROOMS[EXERCISES[name]], name)
    _, *claims = inspect.signature(check).parameters
    assert set(claims) <= set(CLAIMS), (
        f"{name} takes the claims {claims}: put the right ones into CLAIMS"
    )
    return check(answer, **{claim: CLAIMS[claim][name] for claim in claims})


def test_the_first_wrong_case_ends_the_grading():
    tried = []

    def grade(answer):
        for case, state in enumerate(("over budget", "wrong", "wrong")):
            tried.append(case)
            yield state, f"case {case}"

    verdict = exercises._graded(grade, len, {})
    assert (verdict.state, verdict.counterexample, tried) == ("wrong", "case 1", [0, 1])


@pytest.mark.a_few(6)
@pytest.mark.parametrize("name", EXERCISES)
def test_the_stub_is_not_attempted(name):
    def stub(
        *_,
    ):  # a local function travels by value, as a notebook's does: no rank imports this file
        raise NotImplementedError("your turn")

    verdict = judged(name, stub)
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("not attempted", "", "")


@pytest.mark.a_few(16)
@pytest.mark.parametrize("name", EXERCISES)
def test_an_exception_is_a_verdict_with_its_place(name):
    def divides(*_):
        return 1 / 0

    verdict = judged(name, divides)
    assert verdict.state == "wrong" and "did not reach its end" in verdict.message
    assert "ZeroDivisionError: division by zero" in verdict.counterexample
    assert f"line {divides.__code__.co_firstlineno + 1}" in verdict.counterexample
    assert "return 1 / 0" in verdict.counterexample


CALLED_BARE = {
    "honest_check": "your check found nothing",
    "case_three": "the answer is (cure, bytes at step); got None",
    "yours": "the answer is (part, before, after); got None",
}
"""Exercises whose answer is called without anything -> what is said of one that returns nothing."""


@pytest.mark.a_few(16)
@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize(
    ("rubbish", "words"),
    [
        (None, "'NoneType' object is not callable"),
        (lambda: None, "<lambda>() takes 0 positional arguments"),
    ],
    ids=["nothing", "no_parameters"],
)
def test_what_cannot_be_called_is_wrong_and_told_so(name, rubbish, words):
    verdict = judged(name, rubbish)
    if name in CALLED_BARE and rubbish:
        words = CALLED_BARE[name]
    if name == "odd_module":  # Step says what it takes
        words = "gives a torch.nn.Module and a batch" if rubbish else "gives (module, batch)"
    assert verdict.state == "wrong" and words in verdict.counterexample


@pytest.mark.parametrize("subject", HINTS)
def test_every_exercise_has_three_hints_in_both_languages(subject):
    offered = ROOMS[subject].__all__
    assert set(HINTS[subject]) == set(REGISTERED) & set(offered) == set(offered) - OFFERED
    for name, both in HINTS[subject].items():
        assert len(both["en"]) == len(both["zh"]) == 3, name
        assert not any(map(is_chinese, both["en"])), name
        assert all(map(is_chinese, both["zh"])), name


def test_every_exercise_belongs_to_one_subject_with_hints():
    names = [name for hints in HINTS.values() for name in hints]
    assert sorted(names) == sorted(REGISTERED)


def test_no_check_loads_torch_or_a_painter():
    """Each rank of an exercise loads the check for itself: with matplotlib that took 0.35 s of a
    core, five times the rest."""
    rooms = ", ".join(f"labkit.{subject}" for subject in HINTS)
    heavy = {"torch", "matplotlib", "IPython"}
    code = f"import sys, {rooms}; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("set()\n", "")
