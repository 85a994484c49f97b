"""Where matplotlib finds no font with Chinese, every picture of a Chinese notebook is a PNG in
English, and nothing warns. The font manager here is left with DejaVu, which comes with it."""

import re
import warnings

import pytest
from matplotlib import font_manager

from labkit import collectives, pipeline, sharding, widgets, words
from labkit.collectives import network_picture, topology_picture
from labkit.collectives.network import Link, islands
from labkit.launching.verdicts.outcome import Finding, Outcome
from labkit.machine import hardware
from labkit.pictures import bytes_held, curves, scene, sketch, waits
from labkit.pictures.painters import mpl
from labkit.planner import picture as planner_picture
from labkit.widgets import gallery

CHINESE = re.compile("[\u2e80-\u9fff\uff00-\uffef]")
STEP = pipeline.simulate(pipeline.SCHEDULES["1f1b"](3, 4))
TITLE = {"en": "A title", "zh": "标题"}


@pytest.fixture(autouse=True)
def latin_only(monkeypatch):
    """Fonts without Chinese; any warning is an error; the language in use is Chinese."""
    found = [font for font in font_manager.fontManager.ttflist if font.name.startswith("DejaVu")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", found)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    monkeypatch.setattr(words, "_language", "zh")
    mpl.chinese_font.cache_clear()
    mpl.painted.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    mpl.chinese_font.cache_clear()
    mpl.painted.cache_clear()


def painted(shown):
    """The words in a picture's PNG."""
    assert mpl.png(shown).startswith(b"\x89PNG")
    return [text.get_text() for text in mpl.figure(shown).axes[0].texts]


LINK = Link(alpha_us=2.0, bandwidth_gb_per_s=10.0)
HELD = sharding.Step(engine="zero2", ranks=2).predict()
PLANS = {"ring": collectives.plan("all_reduce", "ring", 4)}
LOSS = curves.Series({"en": "loss", "zh": "损失"}, [1, 2], [3.0, 4.0])
FAILED = {"type": "KeyError", "message": "x", "where": {}}
ENDINGS = [Outcome(rank=0, how="returned"), Outcome(rank=1, how="failed", error=FAILED)]
FINDING = Finding(fault="exception", ranks=(1,), text="")
PICTURES = {
    "timeline": lambda: scene.timeline(STEP, title=TITLE),
    "untitled": lambda: scene.timeline(STEP),
    "compare": lambda: scene.compare(STEP, STEP, title=TITLE),
    "curves": lambda: curves.curves([LOSS], title=TITLE, badge="measured", x_name=TITLE),
    "bars": lambda: curves.bars([(TITLE, 2.0)], title=TITLE, badge="paced", marks=[(TITLE, 1.0)]),
    "shards": lambda: bytes_held.shards(HELD, HELD, title=TITLE),
    "waits": lambda: waits.diagnosis(ENDINGS, FINDING),
    "network": lambda: network_picture.network(islands(4, 2, inside=LINK, between=LINK)),
    "topology": lambda: topology_picture.topology(hardware.topology()),
    "architectures": lambda: planner_picture.architectures(PLANS, 2),
}
"""A picture of each kind, as a Chinese notebook asks for it."""


@pytest.mark.parametrize("kind", PICTURES)
def test_every_picture_is_english(kind):
    shown = PICTURES[kind]()
    assert shown.language == "zh" and CHINESE.search(shown.title)
    said = " ".join(painted(shown))
    assert not CHINESE.search(said) and "…" not in said and len(said) > 20


@pytest.mark.a_few(6)
@pytest.mark.parametrize("name", sorted(gallery.homes()))
def test_every_board_is_english(name):
    make = gallery.board(name)
    if name == "architectures":
        return
    board = make()
    assert board.language == "zh"
    said = " ".join(painted(board.scene()))
    assert not CHINESE.search(said)
    assert "…" not in said


def test_the_boards_of_runs_are_english():
    for board in (widgets.timeline(STEP), widgets.trace(STEP, STEP, title=TITLE)):
        assert CHINESE.search(board.scene().title)
        assert not CHINESE.search(" ".join(painted(board.scene())))


def test_words_that_have_no_english_are_left_out_and_not_painted_as_boxes():
    shown = scene.timeline(STEP, title="调度 1F1B，三个 rank", language="en")
    assert painted(shown)[0] == "… 1F1B… rank"
    assert shown.title.startswith("调度 1F1B，三个 rank")
    boxed = sketch.Sketch(
        shapes=(sketch.Box(0, 60, 90, 20, texts=("中文", "z")), sketch.Words(0, 90, "文 2 文")),
        height_px=100,
        heading="",
        badge="",
        table=(),
    )
    assert "… 2 …" in painted(boxed)
    assert mpl.paintable("αβ → ≤ 10 µs") == "αβ → ≤ 10 µs" and mpl.paintable("") == ""
