"""The trace viewer: the columns Python sends, and its pure half under node; ``tests/browser`` has
all of it."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from labkit import widgets
from labkit.pictures import scene, style
from labkit.pictures.painters import svg
from labkit.pipeline import schedules, simulation
from labkit.timeline import from_rows
from labkit.widgets import viewer


def timelines():
    predicted = simulation.simulate(schedules.gpipe(4, 8))
    rows = [
        (r, lane, kind, label, 1.1 * a, 1.1 * b, size)
        for r, lane, kind, label, a, b, size in predicted._rows()
    ]
    return predicted, from_rows(rows, num_ranks=4, origin="measured", notes=("gloo",))


def test_columns_are_the_boxes_of_the_scene_in_its_order():
    shown = scene.compare(*timelines())
    keep = shown.kind != style.IDLE
    columns = viewer.columns(shown)
    about = viewer.about(shown)
    read = {
        name: np.frombuffer(columns[name], dtype)
        for name, dtype in (
            ("row", "<u2"),
            ("look", "<u1"),
            ("label", "<u4"),
            ("x0", "<f8"),
            ("x1", "<f8"),
            ("size", "<f8"),
        )
    }
    assert (read["row"] == shown.row[keep]).all() and (np.diff(read["row"].astype(int)) >= 0).all()
    assert (read["x0"] == shown.x0_us[keep]).all() and (read["x1"] == shown.x1_us[keep]).all()
    assert [about["looks"][look]["kind"] for look in read["look"]] == shown.kind[keep].tolist()
    assert [tuple(about["labels"][label]) for label in read["label"]] == [
        tuple(t) for t in shown.texts[keep].tolist()
    ]
    assert {row["owner"] for row in about["rows"]} == {"Predicted", "Measured"}
    assert [row["panel"] for row in about["rows"]] == sorted(row["panel"] for row in about["rows"])


def test_a_message_keeps_its_bytes_and_is_joined_to_its_receive():
    rows = [
        (0, "comm", "send", "0>1", 0.0, 5.0, 64),
        (1, "comm", "recv", "0>1", 1.0, 6.0, 64),
        (0, "comm", "send", "0>1", 7.0, 9.0, 32),
        (1, "comm", "recv", "0>1", 7.0, 9.5, 32),
        (0, "compute", "F", "F0", 0.0, 9.0, 0),
        (1, "compute", "F", "F0", 0.0, 9.0, 0),
    ]
    measured = from_rows(rows, num_ranks=2, origin="measured")
    shown = scene.timeline(measured, every_message=True)
    sizes = np.frombuffer(viewer.columns(shown)["size"], "<f8")
    flows = viewer.about(shown)["flows"]
    assert sorted(sizes.tolist()) == [0, 0, 32, 32, 64, 64]
    assert sorted(sizes[list(pair)].tolist() for pair in flows) == [[32, 32], [64, 64]]
    looks = {look["kind"]: look["hatch"] for look in viewer.about(shown)["looks"]}
    assert (
        looks["recv"] == svg.HATCHES[style.KINDS["recv"].hatch] and looks["send"] is None
    )  # as the SVG form has it


def test_words_follow_the_language_and_every_one_is_used():
    english, chinese = (
        viewer.about(scene.compare(*timelines(), language=code))["words"] for code in ("en", "zh")
    )
    assert english.keys() == chinese.keys() and all(english[key] != chinese[key] for key in english)
    assert all(f"words.{key}" in viewer.SOURCE for key in english)


def test_the_board_holds_a_picture_for_who_can_not_run_it():
    board = widgets.trace(*timelines())
    bundle = board._repr_mimebundle_()
    assert "image/png" in bundle and "Predicted and measured" in bundle["text/plain"]
    assert board.selection_us is None
    board.viewer.selection = [1.0, 2.5]
    assert board.selection_us == (1.0, 2.5)


def test_without_anywidget_the_picture_is_an_svg(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    board = widgets.trace(timelines()[0])
    assert board.viewer is None and "<svg" in board.children[0].value


def test_the_pure_half_keeps_its_laws_under_node():
    node = shutil.which("node")
    if node is None:
        pytest.fail("needs node") if os.environ.get("CI") else pytest.skip(
            "needs node: apt-get install nodejs"
        )
    done = subprocess.run(
        [node, "--test", Path(__file__).with_name("viewer.test.mjs")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:]
