"""The map in CONTRIBUTING.md is what the imports say."""

from pathlib import Path

import house
import pytest
import rooms

ROOT = Path(__file__).resolve().parents[2]
TREE = house.sources(ROOT / "labkit")
SMALL = {
    "units": "",
    "pictures.svg": "from labkit import units",
    "juggling.throws": "",
    "circus.run": "def f():\n    from labkit.juggling import throws",
    "tour.run": "from labkit.circus import run\nfrom labkit.juggling import throws",
    "tour.__init__": "from labkit.zoo import cages",
    "zoo.cages": "",
}


def test_the_map_in_contributing_is_current():
    assert rooms.main(["--check"]) == 0, "python tests/house/rooms.py"


def test_every_room_stands_above_what_it_imports():
    graph = rooms.graph(TREE)
    text = rooms.drawn(TREE)
    assert all(name in text for name in graph)
    assert max(map(len, text.splitlines())) <= 100
    ground = (rooms.NOUNS, *house.STAGE)
    subjects = {name: known - set(ground) for name, known in graph.items() if name not in ground}
    heights = rooms.floors(subjects)
    for name, known in subjects.items():
        assert all(heights[name] > heights[other] for other in known)


def test_a_small_house_is_drawn():
    assert [line.split() for line in rooms.drawn(SMALL).splitlines() if line.strip()][1:5] == [
        ["floor", "3", "tour", "->", "circus,", "juggling"],
        ["floor", "2", "circus", "->", "juggling"],
        ["floor", "1", "juggling,", "zoo"],
        ["stage", "check"],
    ]


def test_a_stale_map_is_found_and_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("head\n<!-- map -->\nold\n<!-- /map -->\ntail\n", encoding="utf-8")
    assert rooms.main(["--check"], page) == 1
    text = rooms.written(page.read_text(encoding="utf-8"), SMALL)
    assert text.startswith("head\n<!-- map -->\n```\nfloor") and text.endswith("-->\ntail\n")
    assert rooms.written(text, SMALL) == text
    assert rooms.written(text, SMALL | {"zoo.run": "from labkit.circus import run"}) != text


def test_a_page_without_a_place_for_the_map_is_named():
    with pytest.raises(ValueError, match="the page needs the lines"):
        rooms.written("words", SMALL)
