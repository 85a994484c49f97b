"""Laws of charts: data come back from places and lengths, names never collide, measured and
predicted differ."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from drawn import NS, faults, pixel_share

from labkit.pictures import curves
from labkit.pictures.axes import Mark
from labkit.pictures.curves import Series
from labkit.pictures.painters import layout, mpl, svg
from labkit.pictures.sketch import Box, Line, Sketch, Words
from labkit.units import format_bytes, format_us

SIZES = np.logspace(3, 8, 6)
NAMED = {"title": "All-reduce", "badge": "measured, gloo / simulated"}


def raced(**more: object) -> Sketch:
    """Two predicted lines and their measured dots."""
    series = [
        Series("ring", SIZES, 140 + SIZES / 600),
        Series("tree", SIZES, 50 + SIZES / 300),
        Series("ring", SIZES[::2], 150 + SIZES[::2] / 580, points=True),
    ]
    axes = {
        "log_x": True,
        "log_y": True,
        "x_format": format_bytes,
        "y_format": format_us,
        "x_name": "size",
    }
    return curves.curves(series, **NAMED | axes | {"y_name": "time"} | more)


def curves_of(drawn: Sketch) -> list[Line]:
    return [line for line in drawn.only(Line) if line.colour]


def words_of(drawn: Sketch) -> list[str]:
    return [words.text for words in drawn.only(Words)]


def test_data_come_back_from_the_places_of_points_and_ticks() -> None:
    drawn = raced()
    ticks = {words.text: words.x_px for words in drawn.only(Words) if words.anchor == "middle"}
    left, right = ticks["1 kB"], ticks["10 MB"]
    found = [10 ** (3 + 4 * (x - left) / (right - left)) for x, _ in curves_of(drawn)[0].points_px]
    assert found == pytest.approx(SIZES, rel=1e-6)
    high = {words.text: words.y_px - 4 for words in drawn.only(Words) if words.anchor == "end"}
    found = [
        10 ** (5 + 3 * (y - high["100 ms"]) / (high["100 us"] - high["100 ms"]) * -1)
        for _, y in curves_of(drawn)[1].points_px
    ]
    assert found == pytest.approx(50 + SIZES / 300, rel=1e-6)


def test_measured_is_dots_and_predicted_a_line_of_the_same_colour() -> None:
    drawn = raced()
    ring, tree, dots = curves_of(drawn)
    assert (ring.mark, tree.mark, dots.mark) == ("", "", "o")
    assert ring.colour == dots.colour != tree.colour and ring.dash != tree.dash, (
        "told apart without colour too"
    )
    assert words_of(drawn)[-2:] == ["measured", "predicted"] and "measured" not in words_of(
        curves.curves([Series("ring", [1, 2], [3, 4])], **NAMED)
    )
    assert words_of(raced(badge="recorded"))[-2:] == ["recorded", "predicted"]
    root = ET.fromstring(svg.render(drawn))
    assert sum(path.get("stroke") == ring.colour for path in root.iter(f"{NS}path")) == 1, (
        "dots are not joined"
    )


def test_joined_dots_have_a_pale_line_and_very_many_are_the_line_alone() -> None:
    joined = Series("ring", [1, 2, 3], [3, 4, 3], points=True, joined=True)
    way, dots = curves_of(curves.curves([joined], **NAMED))
    assert (way.mark, dots.mark) == ("", "o") and way.opacity < 1
    assert way.points_px == dots.points_px and way.colour == dots.colour
    many = joined._replace(x=range(100), y=range(100))
    assert [line.mark for line in curves_of(curves.curves([many], **NAMED))] == [""]


def test_marks_lie_at_their_values_within_the_axes() -> None:
    marks = [Mark("most", 50.0), Mark("here", 2.5, upright=True)]
    ring = Series("ring", [1, 2, 3], [3, 4, 3], points=True)
    drawn = curves.curves([ring], marks=marks, **NAMED)
    dashed = [line.points_px for line in drawn.only(Line) if line.dash == (4, 3)]
    (_, level), (_, same) = dashed[0]
    (x, _), (also, _) = dashed[1]
    points = curves_of(drawn)[0].points_px
    assert level == same < min(y for _, y in points), "a bound above all points has room"
    assert x == also == pytest.approx((points[1][0] + points[2][0]) / 2)
    assert {"most", "here"} <= set(words_of(drawn))
    with pytest.raises(ValueError, match="above 0"):
        curves.curves([ring], marks=[Mark("none", 0.0)], log_y=True, **NAMED)


def test_stacked_parts_follow_one_another_and_their_sum_is_written() -> None:
    rows = [("a", {"one": 3.0, "two": 1.0}), ("b", {"two": 2.0})]
    drawn = curves.bars(rows, title="t", badge="b", stacked=True)
    one, two, other, *_ = drawn.only(Box)
    assert one.x_px + one.width_px == pytest.approx(two.x_px) and one.y_px == two.y_px
    assert one.width_px == pytest.approx(3 * two.width_px) and two.colour == other.colour
    assert other.x_px == one.x_px and other.width_px == pytest.approx(2 * two.width_px)
    assert "4" in words_of(drawn) and drawn.table[1] == ("a", "3", "1")
    assert one.texts == ("3",) and other.texts == (), "not twice what is the sum"


@pytest.mark.parametrize(("ends", "direct"), [((1.0, 2.0), True), ((1.0, 1.01), False)])
def test_names_stand_at_the_ends_of_lines_or_in_a_legend(
    ends: tuple[float, float], direct: bool
) -> None:
    drawn = curves.curves([Series(f"line {end}", [0, 1], [0, end]) for end in ends], **NAMED)
    places = [
        (words.x_px, words.y_px) for words in drawn.only(Words) if words.text.startswith("line")
    ]
    tips = [
        line.points_px[-1] for line in drawn.only(Line) if line.colour and len(line.points_px) == 2
    ][:2]
    close = [
        abs(x - tip[0]) < 12 and abs(y - tip[1]) < 6
        for (x, y), tip in zip(places, tips, strict=True)
    ]
    assert close == [direct] * 2 and faults(drawn) == []


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("num", [1, 3, 9])
def test_any_curves_stay_in_the_picture_and_no_word_covers_another(
    num: int, log: bool, language: str
) -> None:
    rng = np.random.default_rng(num)
    for scale in (1e-3, 1.0, 1e7):
        series = [
            Series(
                {"en": f"series {i}", "zh": f"曲线 {i}（测试）"},
                rng.uniform(1, 9, 5) * scale,
                rng.uniform(1, 1e4, 5) * scale,
                points=bool(i % 2),
            )
            for i in range(num)
        ]
        drawn = curves.curves(
            series,
            log_x=log,
            log_y=log,
            x_name="x",
            y_name={"en": "y", "zh": "纵轴"},
            language=language,
            x_format=format_bytes,
            y_format=format_us,
            **NAMED,
        )
        assert faults(drawn) == []
        assert ("series 0" in words_of(drawn)) == (language == "en")


def test_a_name_stands_above_the_axis_not_on_it() -> None:
    drawn = curves.curves(
        [Series("lost", [1, 2], [3.0, 0.0]), Series("kept", [1, 2], [0.0, 3.0])], **NAMED
    )
    axis = max(line.points_px[0][1] for line in drawn.only(Line) if not line.colour)
    assert [words.y_px <= axis - 4 for words in drawn.only(Words) if words.text == "lost"] == [True]


def test_points_above_one_another_share_a_cell() -> None:
    drawn = curves.curves([Series("a", [1, 1, 2], [3, 4, 5], points=True)], **NAMED)
    assert [row[1:] for row in drawn.table[1:]] == [("3 / 4",), ("5",)]
    with pytest.raises(ValueError, match="finite values"):
        curves.bars([("a", 1.0)], title="t", badge="b", marks=[("bound", float("nan"))])


def test_table_holds_every_value() -> None:
    drawn = raced()
    assert drawn.table[0] == ("size", "ring —", "tree —", "ring ●")
    assert len(drawn.table) == 1 + len(SIZES) and drawn.table[1] == (
        "1.00 kB",
        "142 us",
        "53.3 us",
        "152 us",
    )
    assert drawn.table[2][3] == "" and "measured, gloo / simulated" in drawn.summary
    many = curves.curves([Series("loss", range(1000), range(1000))], **NAMED)
    assert len(many.table) <= 61


@pytest.mark.parametrize(
    ("x", "y", "log"),
    [
        ([], [], False),
        ([1, 2], [1], False),
        ([1], [np.nan], False),
        ([0, 1], [1, 2], True),
        ([1, 2], [np.inf, 1], False),
    ],
)
def test_points_that_have_no_place_are_refused(x: list, y: list, log: bool) -> None:
    with pytest.raises(ValueError, match="'loss' has x"):
        curves.curves([Series("loss", x, y)], log_x=log, **NAMED)


def test_a_single_value_and_whole_numbers_have_axes_too() -> None:
    drawn = curves.curves([Series("flat", [1, 2, 3], [5, 5, 5], points=True)], **NAMED)
    assert (
        faults(drawn) == []
        and {"1", "2", "3"} <= set(words_of(drawn))
        and "1.5" not in words_of(drawn)
    )


def bytes_sent(**more: object) -> Sketch:
    return curves.bars(
        [("parameter server", 6e6), ("ring", 1.5e6), ("tree", 3e6), ("nothing", 0)],
        title="Bytes",
        badge="measured",
        unit_format=format_bytes,
        **more,
    )


def test_bars_are_as_long_as_their_values() -> None:
    drawn = bytes_sent(marks=[("lower bound", 1.5e6)])
    lengths = [box.width_px for box in drawn.only(Box)]
    assert lengths == pytest.approx([6e6 * lengths[0] / 6e6, lengths[0] / 4, lengths[0] / 2, 0])
    root = ET.fromstring(svg.render(drawn))
    found = []
    for path in root.iter(f"{NS}path"):
        if path.get("data-colour"):
            found += map(float, re.findall(r"h([\d.]+)v", path.get("d")))
    assert found == pytest.approx(lengths, abs=0.01)
    dashed = [line.points_px[0][0] for line in drawn.only(Line) if line.dash]
    assert dashed == pytest.approx([drawn.only(Box)[1].x_px + lengths[1]]), (
        "the ring reaches the bound"
    )
    assert {"6.00 MB", "1.50 MB", "3.00 MB", "0 B", "lower bound 1.50 MB"} <= set(
        words_of(drawn)
    ) and not faults(drawn)


def test_lengths_of_bars_come_back_from_the_pixels() -> None:
    drawn = bytes_sent()
    longest = drawn.only(Box)[0]
    for box, share in zip(drawn.only(Box), (1, 0.25, 0.5), strict=False):
        assert pixel_share(drawn, box._replace(width_px=longest.width_px)) == pytest.approx(
            share, abs=0.02
        )


def test_series_of_bars_differ_in_colour_and_hatch_and_have_a_legend() -> None:
    drawn = curves.bars(
        [(f"{ranks} ranks", {"predicted": ranks, "measured": 1.1 * ranks}) for ranks in (2, 4)],
        title="Step",
        badge="measured / simulated",
        numbers=(("saved", "3 ms"),),
        language="zh",
    )
    looks = [(box.colour, box.hatch) for box in drawn.only(Box)]
    assert looks[0] == looks[2] and looks[1] == looks[3] and not set(looks[0]) & set(looks[1])
    assert (
        words_of(drawn)[-2:] == ["预测", "实测"]
        and drawn.badge == "实测 / 模拟"
        and not faults(drawn)
    )
    assert drawn.table == (
        ("", "预测", "实测"),
        ("2 ranks", "2", "2.2"),
        ("4 ranks", "4", "4.4"),
    )


@pytest.mark.parametrize("points", [True, False])
def test_eight_curves_differ_without_their_colours(points: bool) -> None:
    series = [
        Series(f"series {i}", [1, 2, 3], [i + 1, i + 2, i + 4], points=points) for i in range(8)
    ]
    drawn = curves.curves(series, **NAMED)
    assert len({(line.mark, line.dash) for line in curves_of(drawn)}) == 8
    assert (
        len(
            {
                tuple(np.diff(layout.solids(line)[0], axis=0).round(2).ravel())
                for line in curves_of(drawn)
                if line.mark
            }
        )
        == 8 * points
    )


@pytest.mark.parametrize("rows", [[], [("a", -1.0)], [("a", float("nan"))]])
def test_bars_of_no_length_are_refused(rows: list) -> None:
    with pytest.raises(ValueError, match="finite values of 0 or more"):
        curves.bars(rows, title="Bytes", badge="measured")


def test_no_font_for_chinese_means_english(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = raced(title={"en": "All-reduce", "zh": "全归约"}, language="zh")
    assert drawn.heading == "全归约"
    monkeypatch.setattr(mpl, "chinese_font", lambda: None)
    said = " ".join(text.get_text() for text in mpl.figure(drawn).axes[0].texts)
    assert (
        "All-reduce" in said
        and "measured" in said
        and all(ord(character) < 0x2E80 for character in said)
    )


def test_a_logarithmic_axis_of_few_numbers_has_its_ticks_at_them():
    from labkit.pictures.axes import axis

    told = axis([(1, 2, 4, 8, 16, 32, 64)], str, True, 0.0, 800.0).ticks
    assert [value for value, _ in told] == [1, 2, 4, 8, 16, 32, 64]
    uneven = axis([(1, 3, 64)], str, True, 0.0, 800.0).ticks
    assert 3 not in [value for value, _ in uneven]


def test_the_legend_shows_the_mark_that_dots_have():
    series = [
        curves.Series("line", (1, 2), (1, 2)),
        curves.Series("dots", (1, 2), (2, 3), points=True),
    ]
    drawn = curves.curves(series, title="", badge="measured / predicted")
    marks = {line.mark for line in drawn.only(Line) if line.mark}
    assert marks == {"s"}


def test_dots_that_a_fit_saw_are_hollow_and_named() -> None:
    """Both kinds of dots share a colour; the legend says what hollow ones are, the table shows
    it."""
    seen = Series("ring", [1], [3.0], points=True, hollow=True)
    judged = Series("ring", [2], [4.0], points=True)
    drawn = curves.curves([Series("ring", [1, 2], [3, 4]), judged, seen], **NAMED)
    dots = [line for line in curves_of(drawn) if line.mark]
    assert [line.hollow for line in dots] == [False, True], dots
    assert len({line.colour for line in dots}) == 1
    assert "seen by the fit" in words_of(drawn)
    assert drawn.table[0][1:] == ("ring —", "ring ●", "ring ○")


def test_beside_a_cloud_of_dots_a_line_and_a_single_dot_can_be_seen() -> None:
    cloud, best = (Series(f"{n}", SIZES[:1].repeat(n), SIZES[:1].repeat(n), True) for n in (60, 1))
    drawn = curves.curves([cloud, Series("", [1, 2], [1, 2]), best], **NAMED)
    dots, edge, dot = curves_of(drawn)[:3]
    assert dots.width_px < edge.width_px < dot.width_px
    assert dots.opacity < 1
