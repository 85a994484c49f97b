"""Laws of the SVG: well-formed, as wide as time, readable on any page, safe with any title,
small."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from drawn import NS, busy, predicted, shares

from labkit.pictures import scene
from labkit.pictures.painters import svg
from labkit.pictures.style import IDLE, KINDS
from labkit.timeline import COMPUTE, from_rows


def drawn_shares(picture: str) -> dict[str, float]:
    """The share of each kind, from the lengths of the strokes in the picture."""
    lengths = {
        group.get("data-kind"): 0.0
        for group in ET.fromstring(picture).iter(f"{NS}g")
        if group.get("data-kind")
    }
    for group in ET.fromstring(picture).iter(f"{NS}g"):
        for path in group.iter(f"{NS}path") if group.get("data-kind") else ():
            lengths[group.get("data-kind")] += sum(
                map(float, re.findall(r"h([\d.]+)", path.get("d")))
            )
    return {kind: length / sum(lengths.values()) for kind, length in lengths.items()}


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zbv"])
def test_strokes_have_the_shares_of_the_timeline(name: str) -> None:
    drawn = scene.timeline(predicted(name))
    found = drawn_shares(svg.render(drawn))
    assert set(found) == set(drawn.kinds)
    assert all(
        found[kind] == pytest.approx(share, abs=0.001) for kind, share in shares(drawn).items()
    )


def test_forty_thousand_boxes_stay_small_and_keep_their_shares() -> None:
    drawn = scene.timeline(busy(40_000))
    picture = svg.render(drawn)
    assert len(picture) < 300_000
    found = drawn_shares(picture)
    assert all(
        found[kind] == pytest.approx(share, abs=0.02) for kind, share in shares(drawn).items()
    )


def test_every_stroke_lies_in_the_picture() -> None:
    drawn = scene.timeline(predicted("zbv"))
    for path in re.findall(r'd="(M0 [\d.]+m[^"]+)"', svg.render(drawn)):
        moves = [sum(map(float, pair)) for pair in re.findall(r"m([-\d.]+) 0h([\d.]+)", path)]
        assert moves and sum(moves) <= scene.LEFT_PX + scene.PLOT_PX + 0.01


def test_text_and_lines_follow_the_theme() -> None:
    root = ET.fromstring(svg.render(scene.timeline(predicted(message_us=200.0))))
    assert root.get("fill") == "currentColor"
    groups = [group for group in root.iter(f"{NS}g") if group.get("fill") == svg.INK]
    on_boxes = set(itertools.chain.from_iterable(groups))
    letters = {text for text in root.iter(f"{NS}text") if text.get("fill")}
    outside = set(root.iter(f"{NS}text")) - on_boxes - letters
    assert len(on_boxes) > 50 and len(outside) > 10
    assert all(len(text.text) == 1 for text in letters), (
        "only a letter on a legend's colour has its own"
    )


@pytest.mark.parametrize("paper", ["#ffffff", "#111111"])
def test_boxes_stand_out_from_both_papers_and_bear_their_ink(paper: str) -> None:
    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    for kind in KINDS.values():
        if kind.colour:
            ink, fill, page = (luminance(colour) + 0.05 for colour in (svg.INK, kind.colour, paper))
            assert fill / ink > 4.5, f"WCAG AA for text in a {kind.words['en']} box"
            assert max(fill, page) / min(fill, page) > 1.4, f"{kind.words['en']} on {paper}"


def test_screen_readers_get_title_summary_and_table() -> None:
    drawn = scene.timeline(predicted(), title="GPipe")
    root = ET.fromstring(svg.render(drawn))
    assert (
        root.get("role") == "img" and root[0].text == drawn.title and root[1].text == drawn.summary
    )
    assert (root.get("aria-labelledby"), root.get("aria-describedby")) == (
        root[0].get("id"),
        root[1].get("id"),
    )
    table = ET.fromstring(svg.html(drawn)).find(".//details/table")
    for line, cells in zip(table.iter("tr"), drawn.table, strict=True):
        assert [cell.text for cell in line] == list(cells)


def test_ids_are_unique_and_the_rest_is_the_same_every_time() -> None:
    drawn = scene.timeline(predicted())
    first = svg.render(drawn)
    second = svg.render(drawn)
    ids = [set(re.findall(r' id="([^"]+)"', picture)) for picture in (first, second)]
    assert len(ids[0]) >= 3 and not ids[0] & ids[1]
    assert set(re.findall(r"url\(#([^)]+)\)", first)) <= ids[0]
    assert svg.render(drawn, uid="a") == svg.render(drawn, uid="a")


def test_any_words_are_escaped() -> None:
    nasty = '<script>"&\x00\x1b[0m</script>'
    rows = [(0, COMPUTE, nasty, nasty, 0, 100, 0)]
    drawn = scene.timeline(
        from_rows(rows, num_ranks=1, origin="measured", notes=(nasty,)), title=nasty
    )
    root = ET.fromstring(svg.html(drawn))
    assert not list(root.iter("script")) and "<script>" in "".join(root.itertext())


def test_letters_are_big_enough() -> None:
    sizes = [
        float(size)
        for size in re.findall(r'font-size="([\d.]+)"', svg.render(scene.timeline(predicted())))
    ]
    assert len(sizes) > 4 and min(sizes) >= 11


def test_long_titles_are_cut_in_the_picture_but_not_for_readers() -> None:
    drawn = scene.timeline(predicted(), title="long " * 60)
    root = ET.fromstring(svg.render(drawn))
    heading = root.find(f"{NS}text").text
    assert heading.endswith("…") and len(heading) < 120 and root[0].text == drawn.title


def test_every_sample_is_well_formed() -> None:
    for drawn in (
        scene.timeline(from_rows([], num_ranks=2, origin="recorded"), language="zh"),
        scene.timeline(
            from_rows([(0, COMPUTE, "F", "0F0", 0, 1, 0)], num_ranks=1, origin="simulated")
        ),
        scene.compare(predicted("zbv"), predicted("zbv", message_us=50.0), language="zh"),
        dataclasses.replace(scene.timeline(predicted()), heading=""),
    ):
        assert ET.fromstring(svg.render(drawn)).tag == f"{NS}svg"
    assert IDLE in KINDS


def test_a_coordinate_is_short_and_zero_has_no_sign():
    numbers = [-0.0, 0.0, 12.0, 0.25, -0.5, 3.14159]
    assert [svg._n(number) for number in numbers] == ["0", "0", "12", ".25", "-.5", "3.14"]
