"""Laws of sketches: what is drawn lies in the picture, no word covers another, and shares come back
from the pixels."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from drawn import NS, faults, pixel_share, rgb

from labkit.pictures import mime, sketch, style
from labkit.pictures.painters import layout, mpl, svg, text
from labkit.pictures.sketch import Box, Line, Sketch, Words
from labkit.words import WORDS


def drawn(*shapes: sketch.Shape, **more: object) -> Sketch:
    return Sketch(
        **{
            "shapes": shapes,
            "height_px": 200,
            "heading": "Shards",
            "badge": "simulated",
            "summary": "Half.",
            "table": (("rank", "held"), ("0", "50 %")),
            "numbers": (("held", "50 %"),),
        }
        | more
    )


@pytest.mark.parametrize("share", [0.0, 0.25, 0.6, 1.0])
def test_a_box_is_filled_as_far_as_it_says_in_both_painters(share: float) -> None:
    box = Box(100, 80, 600, 40, "#4f9fe3", fill=share)
    assert pixel_share(drawn(box), box) == pytest.approx(share, abs=0.02)
    root = ET.fromstring(svg.render(drawn(box)))
    found = {
        path.get("data-colour"): float(re.search(r"h([\d.]+)", path.get("d"))[1])
        for path in root.iter(f"{NS}path")
        if path.get("data-colour")
    }
    assert found.get(box.colour, 0.0) == pytest.approx(600 * share)
    assert len(found) == (share < 1) + (share > 0), "the rest is pale"


def test_every_painter_says_the_words_of_the_picture() -> None:
    shown = drawn(
        Box(0, 60, 100, 20, "#f2954b", "/", ("shard 0", "0")),
        Words(0, 120, "on <every> rank"),
        Line(((0, 140), (90, 150)), arrow=True, dash=(4, 2)),
        Line(((5, 170),), mark="D"),
    )
    root = ET.fromstring(svg.html(shown))
    said = "".join(root.itertext())
    for words in (
        "Shards",
        "50 %",
        "simulated",
        "shard 0",
        "on <every> rank",
        "Half.",
        shown.title,
    ):
        assert words in said
    head, row = root.iter("tr")
    assert [cell.text for cell in head] == ["rank", "held"]
    assert [cell.text for cell in row] == ["0", "50 %"]
    artists = [artist.get_text() for artist in mpl.figure(shown).axes[0].texts]
    assert {"Shards", "held", "50 %", "simulated", "on <every> rank"} <= set(artists)
    assert text.render(shown).splitlines() == [
        shown.title,
        "",
        "rank  held",
        "   0  50 %",
        "",
        "Half.",
    ]
    assert set(mime.bundle(shown)) == {"text/html", "image/png", "text/plain"}


def test_only_boxes_and_lines_have_a_colour_of_their_own() -> None:
    root = ET.fromstring(
        svg.render(
            drawn(
                Box(0, 60, 99, 20, "#f2954b", texts=("a",)),
                Box(0, 90, 99, 20, texts=("b",)),
                Line(((0, 130), (9, 130))),
                Words(0, 150, "c"),
            )
        )
    )
    assert root.get("fill") == "currentColor"
    inked = set()
    for group in root.iter(f"{NS}g"):
        if group.get("fill") == svg.INK:
            inked |= {each.text for each in group}
    assert inked == {"a"}, "dark ink on colours only; all else follows the page"
    assert {each.get("stroke") for each in root.iter(f"{NS}path")} <= {None, "currentColor"}


def test_texts_stand_in_boxes_only_where_they_fit() -> None:
    shapes = [
        Box(0, 60, width, height, texts=("shard 12", "12"))
        for width, height in ((80, 20), (30, 20), (9, 20), (80, 9))
    ]
    assert [text for *_, text, _ in layout.middles(drawn(*shapes))] == ["shard 12", "12"]


def test_marks_and_arrows_lie_where_they_should() -> None:
    for mark in "os^D":
        (corners,) = layout.solids(Line(((50, 60),), mark=mark))
        assert np.hypot(*(np.array(corners) - (50, 60)).T) == pytest.approx(2.4 * 1.8)
    (head,) = layout.solids(Line(((0, 0), (30, 40)), arrow=True))
    assert head[0] == (30, 40) and np.mean(head, axis=0) @ (0.6, 0.8) == pytest.approx(
        50 - 2 / 3 * 8.6
    )
    assert layout.solids(Line(((0, 0), (30, 40)))) == []


@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_few_round_and_in_range(log: bool) -> None:
    rng = np.random.default_rng(0)
    for low, factor in zip(
        10 ** rng.uniform(-3, 9, 300), 10 ** rng.uniform(0.05, 12, 300), strict=True
    ):
        found = sketch.ticks(low, low * factor, log=log)
        assert 2 <= len(found) <= 9 and found[-1] <= 1.01 * low * factor
        assert found[0] >= (0.99 * low if log else low - 1e-6 * low * factor) and not np.signbit(
            found[0]
        )
        assert all(
            len(f"{tick:.6g}".replace(".", "").strip("0").split("e")[0]) <= 4 for tick in found
        ), found


def test_numbers_on_an_axis_lose_their_empty_digits() -> None:
    said = {
        "1.00 kB": "1 kB",
        "1.50 GB": "1.5 GB",
        "10.0 ms": "10 ms",
        "100 us": "100 us",
        "0": "0",
        "27.3 %": "27.3 %",
        "1.05 s": "1.05 s",
    }
    assert {full: sketch.short(full) for full in said} == said


def test_a_legend_breaks_its_lines_within_the_picture() -> None:
    shapes, end_px = sketch.legend(
        [((Box(0, -7, 22, 14, "#4f9fe3"),), f"thing {'x' * n}") for n in range(30)], 60, 60
    )
    assert faults(drawn(*shapes, height_px=end_px)) == []
    assert end_px > 100 and sum(isinstance(shape, Words) for shape in shapes) == 30


def test_a_badge_is_said_in_the_language() -> None:
    badge = "measured, paced, gloo / simulated"
    assert sketch.origin(badge, WORDS["zh"]) == "实测，固定时长，gloo / 模拟"
    assert (
        sketch.said({"en": "loss", "zh": "损失"}, "zh") == "损失"
        and sketch.said("loss", "zh") == "loss"
    )


def test_things_that_are_counted_have_sixteen_looks_that_bear_ink() -> None:
    assert len(set(style.CYCLE)) == 16
    assert all((rgb(colour) @ (0.299, 0.587, 0.114)) > 120 for colour, _ in style.CYCLE)


@pytest.mark.parametrize(
    "low, high, most, expected",
    [
        (3.4, 24, 8, [4, 5, 6, 8, 10, 20]),
        (0.4, 2.5, 6, [0.4, 0.5, 0.6, 0.8, 1, 2]),
        (3.6, 30, 6, [5, 10, 20, 30]),
        (1, 100, 8, [1, 2, 5, 10, 20, 50, 100]),
    ],
)
def test_a_short_logarithmic_axis_has_more_than_two_or_three_ticks(
    low: float, high: float, most: int, expected: list[float]
) -> None:
    assert sketch.ticks(low, high, most, log=True).tolist() == pytest.approx(expected)


def test_a_marked_box_shows_on_a_page_of_any_colour() -> None:
    """A pale box on a dark page: its thick edge has the page's ink outside and dark ink inside."""
    marked = Box(100, 80, 60, 40, "#f6cf65", fill=0.0, marked=True)
    root = ET.fromstring(svg.render(drawn(marked)))
    inks = {path.get("stroke"): path.get("d") for path in root.iter(f"{NS}path")}
    assert inks["currentColor"].startswith("M100 80h60v40")
    assert inks[svg.INK].startswith("M101.5 81.5h57v37")
    assert svg.INK not in {
        path.get("stroke")
        for path in ET.fromstring(svg.render(drawn(marked._replace(colour="")))).iter(f"{NS}path")
    }
