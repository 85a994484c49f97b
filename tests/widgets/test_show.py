"""Laws of ``lab.show``: whatever can be drawn is displayed in a notebook and printed elsewhere."""

from types import SimpleNamespace

import IPython
import IPython.display
import pytest

import labkit as lab
from labkit.pictures import scene
from labkit.pipeline import schedules, simulation
from labkit.widgets import usage

TIMELINE = simulation.simulate(schedules.gpipe(2, 2))
TABLE = lab.table([{"a": 1}], title="Numbers")


@pytest.fixture
def displayed(monkeypatch):
    """What a notebook is given to display."""
    found = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(
        IPython.display, "display", lambda thing, raw=False: found.append((thing, raw))
    )
    return found


def test_a_notebook_is_given_every_form(displayed):
    lab.show(TIMELINE, title="Mine")
    lab.show(scene.timeline(TIMELINE))
    lab.show(TABLE, title="Other")
    texts = [data["text/plain"].splitlines()[0] for data, raw in displayed if raw]
    assert [text.partition(":")[0] for text in texts] == ["Mine", "Timeline", "Other"]
    assert [set(data) for data, _ in displayed] == [
        {"text/html", "image/png", "text/plain"},
        {"text/html", "image/png", "text/plain"},
        {"text/html", "text/plain"},
    ]


def test_a_board_and_a_list_have_their_title_above_them(displayed):
    board = usage.timeline(TIMELINE)
    lab.show(board, title={"en": "A <board>", "zh": "板"})
    lab.show([TIMELINE, board], title="Two")
    assert displayed[0][0] == {"text/html": "<b>A &lt;board&gt;</b>", "text/plain": "A <board>"}
    assert displayed[1] == (board, False) and displayed[4] == (board, False)
    assert displayed[2][0]["text/plain"] == "Two" and len(displayed) == 5


def test_elsewhere_the_text_is_printed(capsys):
    lab.show([TIMELINE, TABLE, usage.timeline(TIMELINE)], title="All")
    printed = capsys.readouterr().out
    assert printed.startswith("All\nTimeline: bubble") and "Numbers\na\n1\n" in printed
    assert printed.count("Timeline: bubble") == 2  # the board's as well


@pytest.mark.parametrize("thing", [3, "text", None, {"a": 1}])
def test_what_cannot_be_drawn_is_refused(thing):
    with pytest.raises(ValueError, match="show takes what can be drawn"):
        lab.show(thing)
