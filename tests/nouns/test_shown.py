"""Laws of nouns that show themselves: three mime types in the language in use, a short line for
print, and no picture loaded before it is asked for."""

import subprocess
import sys

import pytest

from labkit import footprint, shards, timeline, words
from labkit.collectives import algorithms, network
from labkit.launching.run import Run
from labkit.pipeline import schedules, simulation

TIMELINE = simulation.simulate(schedules.gpipe(2, 2))
SHARDS = shards.from_rows(
    [(0, "parameter", "w", 0, 4, "float32", "cpu")], num_ranks=2, origin="measured"
)
FOOTPRINT = footprint.from_moments([("F0", {"parameters": 8.0})], "predicted")
PLAN = algorithms.plan("all_reduce", "ring", 4)
NETWORK = network.uniform(4, network.Link(alpha_us=5.0, bandwidth_gb_per_s=10.0))
NOUNS = {
    "timeline": (TIMELINE, "Timeline(2 ranks, ", "时间线"),
    "shards": (SHARDS, "Shards(2 ranks, 1 slices, 16 B, measured)", "谁存哪一片"),
    "footprint": (FOOTPRINT, "Footprint(1 moments, peak 8 B at F0, predicted)", "一步之内的字节"),
}
SHOWN = {**{name: row[0] for name, row in NOUNS.items()}, "plan": PLAN, "network": NETWORK}


@pytest.fixture(autouse=True)
def english_again():
    yield
    words.use("en")


def run_of(*results, **fields):
    return Run(
        results=results,
        logs=fields.pop("logs", ("",) * len(results)),
        seconds=1.0,
        backend="gloo",
        notes=("gloo",),
        **fields,
    )


@pytest.mark.parametrize("name", SHOWN)
def test_a_noun_is_html_with_svg_png_and_text(name):
    data = SHOWN[name]._repr_mimebundle_(include=None, exclude=None)
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert "<svg" in data["text/html"]
    assert data["text/plain"].startswith(SHOWN[name].picture().heading)


@pytest.mark.parametrize("name", NOUNS)
def test_print_is_one_short_line_and_the_picture_speaks_the_language_in_use(name):
    noun, line, chinese = NOUNS[name]
    assert repr(noun).startswith(line) and len(repr(noun)) < 100 and str(noun) == repr(noun)
    english = noun.picture().heading
    words.use("zh")
    assert noun.picture().heading == chinese != english
    assert noun.picture(language="en").heading == english


@pytest.mark.parametrize("name", SHOWN)
def test_a_title_takes_the_place_of_the_heading_in_every_form(name):
    noun = SHOWN[name]
    pair = {"en": "Mine", "zh": "我的"}
    assert noun.picture(title=pair).title.startswith("Mine")
    chinese = noun.picture(title=pair, language="zh")
    assert chinese.heading == "我的" and chinese.in_english().heading == "Mine"
    own = noun.picture().heading
    assert own not in noun.picture(title="Mine").summary
    # words that no font may have: the drawing without that font keeps its own heading
    assert noun.picture(title="我的", language="zh").in_english().heading == own
    assert noun.picture(title="A × B", language="zh").in_english().heading == "A × B"


def test_a_title_that_is_no_words_is_refused():
    with pytest.raises(ValueError, match="a text, or one for each language"):
        TIMELINE.picture(title={"zh": "我的"})


def test_too_many_spans_are_a_line_that_says_where_to_open_them():
    row = (0, "compute", "F", "0F0", 0.0, 1.0, 0)
    rows = [row] * (timeline.MOST_DRAWN + 1)
    large = timeline.from_rows(rows, num_ranks=1, origin="measured")
    assert set(large.bundle()) == {"text/plain"} and "widgets.trace" in large.bundle()["text/plain"]
    with pytest.raises(ValueError, match="at most 10,000 spans; got 10,001"):
        large.picture()


def test_a_run_shows_its_timeline(tmp_path):
    TIMELINE.save(tmp_path / "timeline.json")
    run = run_of(1, 2, folder=tmp_path)
    data = run._repr_mimebundle_()
    assert "<svg" in data["text/html"] and data["text/plain"].startswith("Timeline")
    assert run.bundle(title="Mine")["text/plain"].startswith("Mine")


def test_a_run_without_a_timeline_shows_its_results():
    run = run_of({"loss": 0.25, "took_us": 1500.0}, {"loss": 0.5, "took_us": 12.0})
    text = run._repr_mimebundle_()["text/plain"].splitlines()
    assert text[0] == repr(run) and text[2:] == [
        "rank  loss     took",
        "   0  0.25  1.50 ms",
        "   1   0.5  12.0 us",
    ]
    odd = run_of({"a": 1}, {"b": 1}, logs=("x\ny\n", ""))
    assert str(odd.table()).splitlines()[1:] == [
        "rank  returned  printed",
        "   0  {'a': 1}  y",
        "   1  {'b': 1}",
    ]
    assert odd.table(title="T").title == "T"


def test_nouns_load_no_picture_until_one_is_shown():
    program = """
import sys, labkit
light = [name for name in sys.modules if name.startswith("labkit")]
assert light == ["labkit"], light
from labkit import footprint, shards, tables, timeline
assert not any(name.startswith("labkit.pictures") for name in sys.modules)
repr(timeline.from_rows([], num_ranks=1, origin="simulated"))
assert not any(name.startswith("labkit.pictures") for name in sys.modules)
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
