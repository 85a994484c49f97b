"""Pictures show what their data say: shares read back from the pixels of a few; of all in
``benchmarks/truth.py``."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import exhibits, makers, painted, readings

from labkit.pictures import scene

SOURCE = Path(__file__).parents[2] / "benchmarks" / "truth.py"
POINTS = 2.0


@pytest.fixture(scope="module")
def truth():
    sys.path.insert(0, str(SOURCE.parent))
    try:
        spec = importlib.util.spec_from_file_location("truth", SOURCE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SOURCE.parent))


@pytest.fixture(scope="module")
def shoot(chrome):
    with painted.chromium() as shoot:
        yield shoot


def some(truth, name, numbers=(0,)):
    """A few cases of a picture."""
    cases = list(truth.MEASURED[name]())
    return [cases[number] for number in numbers]


def test_every_picture_is_measured_or_excused_with_a_reason(truth):
    assert makers.makers() == {*truth.MEASURED, *truth.EXCUSED}
    assert not truth.MEASURED.keys() & truth.EXCUSED and all(map(str.strip, truth.EXCUSED.values()))


def test_a_new_picture_would_be_missed(truth, monkeypatch):
    def another(tl: int) -> scene.Scene:
        """A picture that nobody measures."""

    another.__module__ = "labkit.pictures.scene"
    monkeypatch.setattr(scene, "another", another, raising=False)
    assert makers.makers() - {*truth.MEASURED, *truth.EXCUSED} == {"pictures.another"}


@pytest.mark.parametrize(
    "name",
    [
        "pictures.timeline",
        "pictures.compare",
        "pictures.bars",
        "pictures.curves",
        "pictures.shards",
        "pictures.footprint",
        "sharding.layers",
        "sharding.flow",
        "planner.architectures",
    ],
)
def test_matplotlib_shows_what_the_data_say(truth, name):
    row = truth.row(
        name,
        "matplotlib",
        "light",
        truth.painted_by(None, some(truth, name), "matplotlib", "light"),
    )
    assert row["num_shares"] > 1 and row["largest_error"] <= POINTS, row


def untrue(truth, cases):
    """What matplotlib paints wrongly, by picture."""
    faults = {}
    for name, some_of_it in cases.items():
        for case, each in truth.painted_by(None, some_of_it, "matplotlib", "light"):
            worst = max(truth.errors(case, each))
            if worst > POINTS:
                faults[name] = max(worst, faults.get(name, 0.0))
    return faults


def test_the_last_case_of_every_sixth_picture_is_true(truth):
    some = list(truth.MEASURED.items())[::6]
    assert untrue(truth, {name: list(make())[-1:] for name, make in some}) == {}


@pytest.mark.again
@pytest.mark.timeout(1200)
def test_every_case_of_every_picture_is_true(truth):
    assert untrue(truth, {name: list(make()) for name, make in truth.MEASURED.items()}) == {}


def test_slices_thinner_than_a_pixel_keep_their_share(truth):
    row = truth.row(
        "shards",
        "",
        "",
        truth.painted_by(None, some(truth, "pictures.shards", (14,)), "matplotlib", "light"),
    )
    assert row["num_shares"] == 64 and row["largest_error"] <= POINTS, row


@pytest.mark.again
@pytest.mark.browser
@pytest.mark.parametrize("theme", painted.THEMES)
def test_chromium_shows_what_the_data_say(truth, shoot, theme):
    cases = []
    for name in (
        "pictures.timeline",
        "pictures.bars",
        "collectives.collective",
        "pictures.shards",
        "sharding.layers",
        "planner.architectures",
    ):
        cases += some(truth, name)
    row = truth.row("some", "SVG", theme, truth.painted_by(shoot, cases, "SVG", theme))
    assert row["num_shares"] > 100 and row["largest_error"] <= POINTS, row


@pytest.mark.again
@pytest.mark.browser
def test_what_only_a_browser_shows_is_true_as_well(truth, shoot):
    pages = []
    for name, first in (("widgets.trace", 2), ("widgets.timeline", 0)):
        cases = list(truth.MEASURED[name]())[first:]
        pages.append(next(case for case in cases if isinstance(case.drawn, exhibits.Page)))
    # 20,000 boxes, and a table's bar
    row = truth.row("pages", "HTML", "dark", truth.painted_by(shoot, pages, "HTML", "dark"))
    assert row["num_shares"] > 50 and row["largest_error"] <= POINTS, row


def test_boxes_a_twentieth_too_narrow_are_noticed(truth):
    (case,) = some(truth, "pictures.timeline")
    drawn = case.drawn
    shorter = drawn.x1_us - 0.05 * (drawn.x1_us - drawn.x0_us)
    narrow = replace(drawn, x1_us=np.where(drawn.kind == "B", shorter, drawn.x1_us))
    both = [max(truth.errors(case, painted.by_matplotlib(each))) for each in (drawn, narrow)]
    assert both[0] <= POINTS < both[1], both


def test_letters_and_edges_belong_to_what_lies_beside_them():
    labels = painted.filled(painted.np.array([[0, -1, -1, 1, -1, 0], [-1, 2, -1, -1, -1, 2]]))
    assert labels.tolist() == [[0, 0, 1, 1, 1, 0], [2, 2, 2, 2, 2, 2]]


def test_a_picture_of_other_data_is_noticed(truth):
    (case,) = some(truth, "pictures.bars", (1,))
    other = [
        ("ring", {"measured": 31.0, "predicted": 24.0}),
        ("tree", {"measured": 7.5, "predicted": 16.0}),
        ("star", {"measured": 88.0, "predicted": 96.6}),
    ]  # 5 % more
    found = list(readings.bars(painted.by_matplotlib(case.drawn), case.drawn, other))
    assert max(abs(shown - true) for shown, true in found) > POINTS / 100
