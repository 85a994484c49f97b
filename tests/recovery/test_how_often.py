"""How often to save: the formula, its least point, and the board that shows both."""

import math
import re

import pytest
from browserless import from_browser

from labkit import widgets
from labkit.recovery import check, how_often
from labkit.recovery import how_often_board as board

EXERCISES = ("num_gpus",)


def test_the_cost_is_least_where_dalys_paper_has_it():
    """Figures 3 to 5: a save of 5 minutes; M of 24 h, 6 h and 15 min: 117, 57 and 9.1 minutes."""
    for mtbf_min, published_min in ((1440, 117), (360, 57), (15, 9.1)):
        cheapest_s = how_often.cheapest_s(300, 60 * mtbf_min)
        assert cheapest_s / 60 == pytest.approx(published_min, rel=0.012)
    assert how_often.slowdown(10, 0, 1e9) == pytest.approx(1)
    assert how_often.slowdown(10, 5, 1e9) == pytest.approx(1.5)
    assert how_often.slowdown(1e6, 1, 1) == float("inf")


def test_559_gpus_are_the_fewest_of_the_first_exercises_example():
    assert check._gained(30, 2, 558) < 0.01 <= check._gained(30, 2, 559)


def young(write_s, copy_s):
    """Young's short form of the loss, solved for the number of GPUs."""
    return 3600 * how_often.GPU_HOURS / (2e4 * (write_s**0.5 - copy_s**0.5) ** 2)


@pytest.mark.usefixtures("a_fresh_learner")
@pytest.mark.parametrize("rounded", [float, round, math.floor, math.ceil])
def test_youngs_short_form_is_near_enough_for_the_exercise(rounded):
    assert check.num_gpus(lambda *times_s: rounded(young(*times_s))).state == "passed"


@pytest.mark.usefixtures("a_fresh_learner")
@pytest.mark.parametrize("factor", [0.96, 1.04])
def test_four_percent_off_is_too_far(factor):
    fewest = {(60, 1): 203, (5, 1): 6077, (2.4, 0.2): 7604, (600, 30): 26}
    assert check.num_gpus(lambda *times_s: fewest[times_s]).state == "passed"
    verdict = check.num_gpus(lambda *times_s: factor * fewest[times_s])
    assert verdict.state == "wrong" and "it saves " in verdict.counterexample, verdict


def test_the_time_to_come_back_lifts_the_cost_and_does_not_move_its_least_point():
    around = [how_often.cheapest_s(60, 11_000) * factor for factor in (0.9, 1.0, 1.1)]
    for restart_s in (0, 300, 3600):
        lost = [how_often.lost_share(each, 60, 11_000, restart_s) for each in around]
        assert min(lost) == lost[1]
        assert lost[1] >= how_often.lost_share(around[1], 60, 11_000)


def test_llama_3_fails_once_in_three_hours_and_eight_such_gpus_once_in_nine_months():
    assert how_often.mtbf_s(16_384) == pytest.approx(54 * 86_400 / 419)
    assert how_often.mtbf_s(8) / 86_400 == pytest.approx(264, abs=1)
    with pytest.raises(ValueError, match="num_gpus is a whole number"):
        how_often.mtbf_s(0)


def test_lost_share_is_what_the_slowdown_leaves():
    slow = how_often.slowdown(1000, 60, 11_000, 300)
    assert how_often.lost_share(1000, 60, 11_000, 300) == pytest.approx(1 - 1 / slow)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_of_the_board_says_its_least_point(language):
    made = widgets.how_often(language)
    for num_gpus, page in zip(board.GPUS, made.book.drawn(), strict=True):
        best_s = how_often.cheapest_s(60, how_often.mtbf_s(num_gpus))
        least = how_often.lost_share(best_s, 60, how_often.mtbf_s(num_gpus), 300)
        told = re.sub("<[^>]+>", " ", page.rpartition("</svg>")[2])
        assert f"{num_gpus:,}" in told and f"{100 * least:.1f} %" in told
    assert made.book.num_bytes < 1_500_000


def test_another_save_time_draws_other_pages():
    made = widgets.how_often()
    before = made.book.drawn()
    from_browser(made.controls["save_s"], index=0)
    assert made.book.drawn() != before
    assert made.scene().heading == "What saving and failing cost"


@pytest.mark.parametrize("num_gpus", board.GPUS)
@pytest.mark.parametrize("save_s", [0.5, 60.0, 600.0])
def test_the_curve_ends_where_it_would_hide_its_valley(num_gpus, save_s):
    _, *rows = widgets.how_often(num_gpus=num_gpus, save_s=save_s).scene().table
    lost = [float(row[1].removesuffix(" %")) for row in rows if row[1]]
    (best,) = [index for index, row in enumerate(rows) if row[2]]
    least = float(rows[best][2].removesuffix(" %"))
    assert max(lost) <= max(40, 1.5 * least) + 0.1
    assert len(lost) > 5


def test_what_no_control_offers_is_refused():
    with pytest.raises(ValueError, match=r"num_gpus is one of 8, 64, .*; got 7"):
        widgets.how_often(num_gpus=7)
