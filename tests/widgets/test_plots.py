"""``lab.curves`` and ``lab.bars``: a cell's numbers as a picture that shows itself."""

import pytest

import labkit as lab
from labkit import words
from labkit.pictures.sketch import Line, Words


def test_curves_draw_lines_that_were_predicted_and_dots_that_were_measured():
    plot = lab.curves(
        predicted={"step": {1: 2.0, 2: 3.0}},
        measured={"step": {1: 2.5, 2: 3.5}},
        x="ranks",
        y="ms",
        title="One step",
    )
    picture = plot.picture()
    assert picture.heading == "One step"
    assert picture.badge == "measured / predicted"
    assert picture.table[0] == ("ranks", "step —", "step ●")
    assert picture.table[1:] == (("1", "2", "2.5"), ("2", "3", "3.5"))
    assert set(plot.bundle()) == {"text/html", "image/png", "text/plain"}
    assert "One step" in repr(plot)


def test_x_has_a_unit_as_y_has():
    drawn = lab.curves(measured={"a": {1e5: 1.0, 8e6: 2.0}}, x_unit="bytes", unit="us").picture()
    assert drawn.table[1:] == (("100 kB", "1.00 us"), ("8.00 MB", "2.00 us"))
    assert any(each.text.endswith(" MB") for each in drawn.only(Words))
    with pytest.raises(ValueError, match="a unit is one of"):
        lab.curves(measured={"a": {1: 1.0}}, x_unit="furlongs")


def test_the_badge_says_what_there_is():
    line = {"a": {1: 1.0, 2: 2.0}}
    assert lab.curves(measured=line).picture().badge == "measured"
    assert lab.curves(predicted=line).picture().badge == "predicted"
    assert "paced" in lab.curves(measured=line, badge="measured, paced").picture().badge


def test_marks_are_upright_lines_with_their_words():
    drawn = lab.curves(measured={"a": {2: 1.0, 9: 2.0}}, at={"save": 5, "late": 8}).picture()
    upright = [line for line in drawn.only(Line) if line.dash == (4, 3)]
    (first, first_end), (second, second_end) = (line.points_px for line in upright)
    assert first[0] == first_end[0] < second[0] == second_end[0]
    assert {"save", "late"} <= {each.text for each in drawn.only(Words)}
    assert "save 5" in drawn.summary


def test_dots_of_one_run_may_be_joined():
    line = {"loss": {1: 5.0, 2: 4.0, 3: 3.5}}
    apart = list(lab.curves(measured=line).picture().only(Line))
    joined = list(lab.curves(measured=line, joined=True).picture().only(Line))
    assert len(joined) == len(apart) + 1
    thin = [line for line in joined if line not in apart]
    assert not thin[0].mark and len(thin[0].points_px) == 3


def test_what_was_predicted_and_measured_is_named_in_the_language_of_the_picture():
    plot = lab.bars({"a": {"predicted": 1.0, "measured": 2.0}})
    assert plot.picture().table[0] == ("", "predicted", "measured")
    assert plot.picture(language="zh").table[0] == ("", "预测", "实测")


def test_bars_without_a_unit_have_three_digits():
    drawn = lab.bars({"loss": 3.87644, "rate": 21.4151, "count": 12}).picture()
    assert [row[1] for row in drawn.table[1:]] == ["3.88", "21.4", "12"]


def test_bars_have_units_and_bounds():
    picture = lab.bars(
        {"rank 0": {"sent": 2.0, "received": 3.0}}, unit="mb", marks={"bound": 4.0}, title="Traffic"
    ).picture()
    assert picture.table == (("", "sent", "received"), ("rank 0", "2.00 MB", "3.00 MB"))
    with words.meanwhile("zh"):
        assert lab.bars({"甲": 1.0}, title="流量").picture().language == "zh"


def test_measured_dots_may_be_joined_and_marks_crossed():
    line = {"a": {1: 1.0, 2: 2.0}}
    plain, joined = (
        lab.curves(measured=line, joined=joined, marks={"most": 3.0}, at={"here": 1.5}).picture()
        for joined in (False, True)
    )
    assert len(joined.shapes) == len(plain.shapes) + 1
    texts = [getattr(shape, "text", "") for shape in plain.shapes]
    assert "most" in texts and "here" in texts


def test_bars_may_be_stacked():
    rows = {"fp32": {"weights": 28e9, "moments": 56e9}}
    texts = [
        getattr(shape, "text", "")
        for shape in lab.bars(rows, unit="bytes", stacked=True).picture().shapes
    ]
    assert "84.0 GB" in texts and "56.0 GB" not in texts


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        (lambda: lab.curves(), "one series or more"),
        (lambda: lab.curves(measured=[1, 2]), "curves are a dict"),
        (lambda: lab.curves(measured={"a": [1, 2]}), "a curve is a dict from x to y"),
        (lambda: lab.curves(measured={"a": {1: float("nan")}}), "all finite"),
        (lambda: lab.curves(measured={"a": {0: 1.0}}, log_x=True), "above 0"),
        (lambda: lab.curves(measured={"a": {1: 1.0}}, unit="miles"), "a unit"),
        (lambda: lab.bars({}), "there is a bar"),
        (lambda: lab.bars({"a": -1.0}), "0 or more"),
        (lambda: lab.bars([("a", 1.0)]), "bars are a dict"),
    ],
)
def test_what_can_not_be_drawn_is_said_at_once(draw, reason):
    with pytest.raises(ValueError, match=reason):
        draw()
