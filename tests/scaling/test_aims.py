"""Rules of thumb held against a run, and the page that reports it."""

import pytest

from labkit import scaling, words
from labkit.scaling import picture, recorded


def of(communication_us, waiting_us=0.0, badge="measured, gloo"):
    spent = {
        1: scaling.Spent(100.0, 0.0, 0.0, 0.0, 0.0),
        2: scaling.Spent(50.0, 0.0, 0.0, communication_us, waiting_us),
    }
    return scaling.Scaled(kind="strong", spent=spent, badge=badge)


def test_each_aim_is_met_or_not_by_its_own_number():
    good = scaling.targets(of(5.0), recovery_s=20.0)
    assert [each.met[:3] for each in good] == ["yes", "yes", "yes", "yes"]
    bad = scaling.targets(of(30.0), recovery_s=400.0)
    assert [each.met[:2] for each in bad] == ["no", "no", "no", "no"]
    # waiting is no communication, and no work either
    waits = scaling.targets(of(0.0, 30.0))
    assert [each.met[:3] for each in waits[:3]] == ["no", "no", "yes"]


def test_what_nobody_measured_is_refused_with_the_reason():
    paced = scaling.targets(of(5.0, badge="measured, gloo, paced"))
    assert "no device was watched" in paced[1].met
    assert paced[3].measured == "-" and "chapter 13" in paced[3].met


def test_a_report_is_one_page_with_its_pictures_inside(tmp_path):
    found = [recorded.scaled("strong"), recorded.scaled("weak")]
    page = scaling.report(found, tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 and "http-equiv" not in page
    assert "src=" not in page and 'href="http' not in page
    with words.meanwhile("zh"):
        page = scaling.report(found, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "能扩展吗" in page
    with pytest.raises(ValueError, match="one series or more"):
        scaling.report([], tmp_path / "none.html")


def test_a_part_that_a_clocks_noise_makes_negative_is_left_out_of_the_bars():
    drawn = picture.lost(of(-1.0), language="en")
    assert "communication" not in drawn.summary


def test_bars_stand_beside_each_other_where_both_were_taken():
    strong = recorded.STEPS["strong", True].but(ranks=(1, 2, 4, 8)).predict()
    drawn = picture.lost(strong, recorded.scaled("strong"), language="en")
    assert "4 ranks, recorded" in drawn.summary and "8 ranks, recorded" not in drawn.summary
    assert "simulated / recorded" in drawn.summary
    chinese = picture.lost(strong, recorded.scaled("strong"), language="zh").summary
    assert "4 个 rank，既有数据" in chinese and "recorded" not in chinese
