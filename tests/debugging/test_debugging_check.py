"""The exercises of chapter 14: right answers pass, typical wrong ones are caught, and so is a fault
that is hidden.

The claims that a check accepts are what labkit finds when the chapter's broken functions are run.
"""

import re
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

import labkit as lab
from labkit.debugging import check, health
from labkit.launching.verdicts import disagreement

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("case_one", "case_two", "case_four", "case_five", "case_six")
"""Those with a broken run; case three asks for a cure and for bytes"""
SOURCE = Path(__file__).resolve().parents[2] / "notebooks" / "src" / "14_debugging.py"
FINDINGS = {
    name: (truth.ranks if len(truth.ranks) > 1 else truth.ranks[0], truth.lines[0], truth.fault)
    for name, truth in check.TRUTH.items()
}


def judged(name, answer, finding=None):
    return getattr(check, name)(answer, finding=finding or FINDINGS[name])


def stub(*_):
    raise NotImplementedError("your turn")


def solutions():
    """The chapter's own answers, and its broken functions: name -> function."""
    text = SOURCE.read_text(encoding="utf-8")
    names = {"torch": torch, "dist": dist, "health": health}
    exercises = re.sub(r" *### (BEGIN|END) SOLUTION\n", "", text)
    for block in re.findall(r"^(?:def |METRICS).*?(?=^\S)", exercises, re.MULTILINE | re.DOTALL):
        exec(block, names)
    return names


BOOK = solutions()


@pytest.mark.a_few(2)
@pytest.mark.parametrize("name", EXERCISES)
def test_without_a_finding_it_is_not_attempted_and_the_chapters_answer_passes(name):
    word = name.removeprefix("case_")
    assert getattr(check, name)(stub).state == "not attempted"
    assert getattr(check, name)(BOOK[f"my_{word}"], finding=stub).state == "not attempted"
    verdict = getattr(check, name)(BOOK[f"my_{word}"], finding=BOOK[f"finding_{word}"])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", ""), verdict


@pytest.mark.parametrize("name", ["case_one", "case_four"])
def test_the_accepted_claims_are_what_the_report_says(name):
    inputs = {
        "case_one": ("log_losses", [[4.0, 3.0, 2.0]] * 3),
        "case_four": ("pass_on", [torch.ones(4)] * 3),
    }
    broken, each = BOOK[inputs[name][0]], inputs[name][1]
    truth = check.TRUTH[name]
    told = ()
    for hang_s in (0.5, 10.0):  # a busy machine may take longer to bring all ranks to the call
        with pytest.raises(lab.LaunchError) as caught:
            lab.launch(
                lambda: broken(each[dist.get_rank()]),
                ranks=3,
                backend="gloo",
                hang_s=hang_s,
                timeout_s=30,
            )
        finding = caught.value.finding
        told = (finding.fault, finding.ranks) if finding else ()
        if told == (truth.fault, truth.ranks):
            break
    assert told == (truth.fault, truth.ranks)


def test_the_accepted_claim_of_case_two_is_who_gets_other_numbers_and_no_trace_tells():
    dashboard, metrics = BOOK["dashboard"], BOOK["METRICS"]
    run = lab.launch(lambda: dashboard(metrics[dist.get_rank()]), ranks=4, backend="gloo")
    votes = {rank: tuple(sorted(means.items())) for rank, means in enumerate(run)}
    assert disagreement.minority(votes) == check.TRUTH["case_two"].ranks
    assert disagreement.swapped(run.calls()) is None


def test_the_accepted_claims_are_what_health_says():
    update, mean_of_all = BOOK["update"], BOOK["mean_of_all"]

    def update_and_compare():
        grad = torch.tensor([9.0, 12.0] if dist.get_rank() == 1 else [0.5, 0.5])
        weight = update(torch.ones(2), grad, limit=2.0)
        return weight.tolist(), health.compare({"weight": weight}.items())

    def mean_asked_before_the_sum():
        found = []
        reduce = dist.all_reduce

        def asked(tensor):
            found.append(health.finite({"mean": tensor}.items()))
            reduce(tensor)

        dist.all_reduce = asked
        try:
            mean_of_all(torch.ones((3, 2, 0)[dist.get_rank()]))
        finally:
            dist.all_reduce = reduce
        return found[0]

    run = lab.launch(update_and_compare, ranks=3, backend="gloo")
    finding = run[0][1]
    assert finding.fault == check.TRUTH["case_five"].fault
    assert finding.ranks == (1,)  # a vote finds who differs: here two agree and are wrong
    mean = torch.tensor([10.0, 13.0]) / 3
    right = 1 - 2 * mean / mean.norm()
    wrong = [r for r in range(3) if not torch.allclose(torch.tensor(run[r][0]), right)]
    assert tuple(wrong) == check.TRUTH["case_five"].ranks
    finding = lab.launch(mean_asked_before_the_sum, ranks=3, backend="gloo")[0]
    assert (finding.fault, finding.ranks) == check.TRUTH["case_six"][:2]


def test_every_line_that_is_accepted_stands_in_the_broken_function():
    text = SOURCE.read_text(encoding="utf-8")
    functions = {
        "case_one": "log_losses",
        "case_two": "dashboard",
        "case_four": "pass_on",
        "case_five": "update",
        "case_six": "mean_of_all",
    }
    for name, truth in check.TRUTH.items():
        body = re.search(rf"^def {functions[name]}\(.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)[0]
        assert all(line in body for line in truth.lines), name


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        ((0, "dist.all_reduce(mean)", "missing_rank"), "rank 0: not the suspect"),
        ((1, "dist.all_reduce(mean)", "missing_rank"), "rank 1: some of the suspects, not all"),
        (({1, 2}, "print(", "missing_rank"), "line 'print(' is not where it goes wrong"),
        (((1, 2), "mean = torch.tensor(loss)", "missing_rank"), "is not where it goes wrong"),
        (
            ((1, 2), 6, "missing_rank"),
            "line 6 is not where it goes wrong (give a piece of the line's text)",
        ),
        (
            ((1, 2), "dist.all_reduce(mean)", "deadlock"),
            "fault 'deadlock' is none of exception, sigkill",
        ),
        (((1, 2), "dist.all_reduce(mean)", ["nan"]), "fault ['nan'] is none of exception, sigkill"),
        (
            ((1, 2), "dist.all_reduce(mean)", "uneven_inputs"),
            "fault 'uneven_inputs' (a rank has fewer batches): not what",
        ),
        (("rank 1", "dist.all_reduce(mean)", "missing_rank"), "rank 'rank 1': not the suspect"),
        ((("a", 1), "dist.all_reduce(mean)", "missing_rank"), "rank ('a', 1): not the suspect"),
        ("missing_rank", "finding is (rank, line, fault); got 'missing_rank'"),
        (lambda: 3, "finding is (rank, line, fault); got 3"),
    ],
)
def test_a_wrong_finding_is_told_before_anything_runs(finding, words):
    verdict = check.case_one(BOOK["my_one"], finding=finding)
    assert verdict.state == "wrong" and words in verdict.counterexample, verdict


def test_a_finding_may_be_any_piece_of_the_line():
    assert (
        check.case_one(BOOK["my_one"], finding=([2, 1], "all_reduce( mean )", "missing_rank")).state
        == "passed"
    )
    assert (
        check.case_one(BOOK["my_one"], finding=((1, 2), None, "missing_rank")).state
        == "not attempted"
    )
