"""The exercises of chapter 18: right answers pass, typical mistakes are caught, wasteful ones are
told so."""

import pytest

from labkit.check import chapters
from labkit.planner import plan_check as check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("mended_bill", "layout_in_budget")
STAGES = [(1, 2, 1), (1, 4, 1), (1, 8, 1), (1, 16, 1)]
SIZES = [(1, 1, 1), (1, 1, 3), *STAGES, (2, 4, 1), (2, 8, 1)]
"""tp, pp, zero: copies, shards, then the fewest parts first"""


def bill(params, tp, pp, dp, zero):
    held = params / (tp * pp) / 1e9
    weights = 2 * held / (dp if zero == 3 else 1)
    gradients = 4 * held / (dp if zero >= 2 else 1)
    return weights, gradients, 12 * held / (dp if zero >= 1 else 1)


def test_a_mended_bill_passes():
    assert check.mended_bill(bill).state == "passed"


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        ("gradients of the whole model", "tp 8, pp 12, dp 4, ZeRO 0: gradients 28 GB"),
        ("Adam of the whole model", "tp 8, pp 12, dp 4, ZeRO 0: optimizer 84 GB"),
        ("weights divided twice", "tp 2, pp 1, dp 32, ZeRO 3: parameters 0.1094 GB"),
        ("gradients divided too early", "tp 2, pp 4, dp 8, ZeRO 1: gradients 0.4375 GB"),
    ],
)
def test_each_mistake_of_a_bill_is_named(mistake, says):
    def answer(params, tp, pp, dp, zero):
        weights, gradients, adam = bill(params, tp, pp, dp, zero)
        if mistake == "gradients of the whole model" and zero < 2:
            gradients *= tp * pp
        if mistake == "Adam of the whole model" and zero == 0:
            adam *= tp * pp
        if mistake == "weights divided twice" and zero == 3:
            weights /= tp * pp
        if mistake == "gradients divided too early" and zero == 1:
            gradients /= dp
        return weights, gradients, adam

    verdict = check.mended_bill(answer)
    assert verdict.state == "wrong" and says in verdict.counterexample


def thrifty(params, gpus, card_gb, ask, *, bills=True):
    layouts = []
    for tp, pp, zero in SIZES:
        if tp * pp > gpus:
            continue
        if not bills or sum(bill(params, tp, pp, gpus // (tp * pp), zero)) < card_gb:
            layouts.append({"tp": tp, "pp": pp, "zero": zero, "sp": tp > 1})
    asked = {number: ask(**layout) for number, layout in enumerate(layouts[:6])}
    fitting = {number: said.step_s for number, said in asked.items() if said.fits}
    return layouts[min(fitting, key=fitting.get)]


def test_a_thrifty_choice_passes_and_its_regrets_are_shown():
    assert check.layout_in_budget(thrifty).state == "passed"
    rows = check.regrets(thrifty)
    assert len(rows) == len(check._CHOICES)
    for row in rows:
        assert 0 <= row["regret"] <= check.MOST_REGRET and row["questions"] <= check.MOST_ASKED
        assert row["step_s"] == pytest.approx(row["best_s"] * (1 + row["regret"]))


def test_six_questions_are_too_few_without_the_bill():
    def blind(params, gpus, card_gb, ask):
        return thrifty(params, gpus, card_gb, ask, bills=False)

    verdict = check.layout_in_budget(blind)
    assert verdict.state == "over budget" and "LLaMA-2 70B" in verdict.counterexample


def test_a_stub_has_no_regret_yet():
    def stub(params, gpus, card_gb, ask):
        raise NotImplementedError("your turn")

    assert [row["regret"] for row in check.regrets(stub)] == [None] * len(check._CHOICES)


def test_a_layout_that_does_not_fit_is_wrong():
    verdict = check.layout_in_budget(lambda params, gpus, card_gb, ask: {"zero": 0})
    assert verdict.state == "wrong" and "a GPU has 80" in verdict.counterexample


def test_a_layout_that_does_not_divide_says_why():
    verdict = check.layout_in_budget(lambda params, gpus, card_gb, ask: {"tp": 3})
    assert verdict.state == "wrong" and "3 ranks" in verdict.counterexample.replace("6", "3")


def test_a_layout_that_fits_and_is_slow_tells_its_regret():
    slow = {"tp": 8, "pp": 1, "zero": 3, "sp": True, "recompute": "full"}
    verdict = check.layout_in_budget(lambda params, gpus, card_gb, ask: slow)
    assert verdict.state == "over budget" and "more than the best" in verdict.counterexample


def test_too_many_questions_are_over_budget():
    def asking(params, gpus, card_gb, ask):
        layout = thrifty(params, gpus, card_gb, ask)
        for _ in range(check.MOST_ASKED):
            ask(**layout)
        return layout

    verdict = check.layout_in_budget(asking)
    assert verdict.state == "over budget" and "questions; 6 are enough" in verdict.counterexample


def test_the_exercises_stand_under_their_own_chapters():
    found = chapters.exercises()
    assert set(found["18 planner"]) == {"mended_bill", "layout_in_budget"}
    assert "fewest_ranks" in found["01 planner"]
