"""Widgets without a browser: what they hold, what they send, and that they never wait for
anyone."""

import base64
import re
import subprocess
import sys
import time
from html import escape
from types import SimpleNamespace

import ipywidgets as w
import pytest
from browserless import from_browser, pictures_sent, settle

from labkit import widgets, words
from labkit.launching.verdicts.verdict import Stopped
from labkit.pictures import mime, scene
from labkit.pipeline import board as board_room
from labkit.pipeline import run as pipeline_run
from labkit.pipeline import runtime, simulation
from labkit.pipeline.schedules import SCHEDULES, gpipe
from labkit.widgets import flipbook, gallery, live, trial, usage

PNG = b"\x89PNG\r\n\x1a\n"
CHINESE = re.compile("[\u4e00-\u9fff]")


def test_every_page_is_the_picture_of_its_own_setting():
    board = widgets.pipeline_parallelism(num_ranks=3)
    for index, page in enumerate(board.book.pages):
        num_microbatches = board_room.MICROBATCHES[index]
        bubble = 100 * 2 / (num_microbatches + 2)
        assert f"3 ranks, {num_microbatches} microbatches: bubble {bubble:.1f} %" in page.value
        assert f"Closed form of the literature: bubble {bubble:.1f} %" in page.value
        assert page.value.count("<svg") == 1


def test_moving_the_microbatches_slider_sends_no_picture(sent):
    board = widgets.pipeline_parallelism()
    sent.clear()
    for index in (3, 12, 0):
        from_browser(board.controls["microbatches"], index=index)
        assert board.step.microbatches == board_room.MICROBATCHES[index]
    assert pictures_sent(board, sent) == []
    assert not any("children" in traits for _, traits in sent)


@pytest.mark.parametrize("name", ["schedule", "ranks", "chunks", "backward_ratio", "message_ms"])
def test_a_change_of_another_control_sends_every_page_once_and_the_visible_one_first(sent, name):
    board = widgets.pipeline_parallelism(num_microbatches=5)
    sent.clear()
    control = board.controls[name]
    from_browser(control, index=control.index + 1)
    settle()
    first, *rest = pictures_sent(board, sent)
    others = [page for page in range(len(board_room.MICROBATCHES)) if page != 4]
    assert (
        first == 4 and rest[: len(others)] == others
    )  # the busy sign on the others, and then their pictures
    assert sorted(rest[len(others) :]) == others
    assert not any("children" in traits for _, traits in sent), (
        "new lists of children are slow in the browser"
    )


def test_the_browser_flips_pages_and_the_busy_sign_by_itself():
    board = widgets.pipeline_parallelism()
    ends = {(link.source[0], link.source[1], link.target[1]) for link in board.book.links}
    assert ends == {(control, "index", "selected_index") for control in board.controls.values()}
    assert board.book.links[0].target[0] is board.book.stack
    assert list(board.book.stack.children) == board.book.pages


def test_wherever_a_control_goes_before_the_kernel_has_drawn_it_finds_the_busy_sign():
    board = widgets.pipeline_parallelism()
    board.controls["schedule"].value = "zbv"
    settle()
    marks = [link.target[0] for link in board.book.links[1:]]
    others = [control for name, control in board.controls.items() if name != "microbatches"]
    assert len(marks) == len(others) == 5
    for mark, control in zip(marks, others, strict=True):
        assert len(mark.children) == len(control.options)
        busy = [
            isinstance(child, w.HTML) and "kernel busy" in child.value for child in mark.children
        ]
        assert busy == [i != control.index for i in range(len(control.options))]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pages_are_few_and_light_enough_to_be_flipped_in_the_browser(schedule):
    board = widgets.pipeline_parallelism(schedule=schedule, num_ranks=8, num_microbatches=32)
    assert len(board.book.pages) <= 64
    assert 50_000 < board.book.num_bytes < 1_500_000
    assert all(page.value for page in board.book.pages)


def test_pages_beyond_the_budget_are_drawn_when_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(flipbook, "MAX_BYTES", 20_000)
    board = widgets.pipeline_parallelism(num_microbatches=1)
    stack = board.book.stack
    assert "<svg" in stack.children[0].value
    assert "kernel busy" in stack.children[15].value
    from_browser(board.controls["microbatches"], index=15)
    assert "16 microbatches" in stack.children[15].value


def test_a_schedule_that_does_not_exist_says_why_in_words():
    board = widgets.pipeline_parallelism(
        schedule="interleaved_1f1b", num_ranks=4, num_microbatches=8
    )
    page = board.book.pages[board_room.MICROBATCHES.index(9)].value
    assert "<svg" not in page
    assert "No such schedule" in page and "multiple of 4" in page
    board.controls["microbatches"].value = 9
    assert board.scene() is None and board.button.disabled
    assert "image/png" not in board._repr_mimebundle_()


def test_the_button_is_off_exactly_where_torch_refuses_and_says_why():
    board = widgets.pipeline_parallelism(schedule="1f1b", num_ranks=4)
    for num_microbatches in board_room.MICROBATCHES:
        board.controls["microbatches"].value = num_microbatches
        reason = runtime.refusal("1f1b", 4, num_microbatches)
        assert board.button.disabled == (num_microbatches < 4) == (reason is not None)
        assert board.why_off.value == (f"Off: {escape(reason)}." if reason else "")
    board.controls["microbatches"].value = 2
    with pytest.raises(ValueError, match="fewer than 4 stages"):
        board.run()


def test_run_lays_the_measured_timeline_under_the_predicted_one_and_explains_the_rest(monkeypatch):
    monkeypatch.setattr(board_room, "FORWARD_MS", 10.0)
    board = widgets.pipeline_parallelism(num_ranks=2, num_microbatches=2)
    assert board.measured is None
    run = board.run()
    settle()
    assert len(run) == 2
    assert {"paced", "gloo"} <= set(board.measured.notes) and board.measured.origin == "measured"
    assert sorted(board.measured.label[board.measured.lane == "compute"]) == sorted(
        board.predicted.label
    )
    page = board.book.pages[1].value
    badge = board.measured.badge
    assert badge in page and "Idle time of all ranks together" in page
    assert "measured" in board.scene().title and not board.button.disabled
    board.controls["backward_ratio"].value = 3.0
    settle()
    assert board.measured is None and badge not in board.book.pages[1].value
    board.controls["backward_ratio"].value = 2.0
    settle()
    assert badge in board.book.pages[1].value


def test_the_button_runs_in_the_background_and_its_stop_button_stops(monkeypatch):
    monkeypatch.setattr(board_room, "FORWARD_MS", 500.0)
    board = widgets.pipeline_parallelism(num_ranks=2, num_microbatches=16)
    board.button.click()
    assert board.button.disabled
    _until(lambda: board.live.children and board.live.children[0].job.progress)
    panel = board.live.children[0]
    _until(lambda: panel.lines.value.count("rank ") >= 2)
    panel.stop.click()
    _until(lambda: board.error is not None and not board.button.disabled)
    assert isinstance(board.error, Stopped) and panel.job.done
    assert "Stopped" in board.live.children[0].value
    assert board.measured is None


def test_a_run_that_fails_shows_its_verdict(monkeypatch):
    monkeypatch.setattr(pipeline_run, "_train", _fail)
    board = widgets.pipeline_parallelism(num_ranks=2, num_microbatches=2)
    board.button.click()
    _until(lambda: board.error is not None and not board.button.disabled)
    assert (
        "RankFailed" in board.live.children[0].value
        and "out of luck" in board.live.children[0].value
    )


def _fail(step):
    raise RuntimeError("out of luck")


def _until(true, timeout_s=30):
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["pipeline_parallelism", "timeline"])
def test_a_viewer_without_widgets_gets_a_png_and_text(name):
    given = {"pipeline_parallelism": (), "timeline": (simulation.simulate(gpipe(2, 2)),)}[name]
    data = getattr(widgets, name)(*given)._repr_mimebundle_()
    assert set(data) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert base64.b64decode(data["image/png"]).startswith(PNG)
    assert "rank 0" in data["text/plain"]


def test_a_shown_picture_is_svg_where_scripts_are_trusted_and_png_elsewhere():
    data = mime.bundle(scene.timeline(simulation.simulate(gpipe(2, 2))))
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert base64.b64decode(data["image/png"]).startswith(PNG)
    assert "<svg" in data["text/html"] and f"base64,{data['image/png']}" in data["text/html"]


def test_the_panel_sends_one_message_per_change_and_none_without(sent):
    stopped = []
    row = {"rank": 0, "state": "running", "step": 1, "where": {"line": 7, "text": "x = y"}}
    job = SimpleNamespace(progress=[row], ahead=0, done=False, stop=lambda: stopped.append(True))
    panel = live.Panel(job)
    assert "rank 0   running   step 1   line 7: x = y" in panel.lines.value
    sent.clear()
    panel.refresh()
    assert sent == []
    job.progress = [{**row, "step": 2, "loss": 0.5}]
    panel.refresh()
    assert [(widget is panel.lines, traits) for widget, traits in sent] == [(True, {"value"})]
    assert "step 2   loss 0.500" in panel.lines.value
    panel.stop.click()
    assert stopped == [True]


@pytest.mark.parametrize(
    ("language", "line", "says"),
    [
        ("en", "4 ranks, 2.50 s with their start", "Stop"),
        ("zh", "4 个 rank，连同启动共 2.50 s", "停止"),
    ],
)
def test_a_long_launch_gets_a_panel_that_leaves_one_line_and_a_short_one_gets_none(
    monkeypatch, language, line, says
):
    import IPython.display

    monkeypatch.setattr(words, "_language", language)
    shown = []
    left = []
    handle = SimpleNamespace(update=lambda data, raw: left.append(data))
    monkeypatch.setattr(
        IPython.display, "display", lambda panel, display_id: shown.append(panel) or handle
    )
    job = SimpleNamespace(
        progress=[],
        ahead=0,
        done=False,
        stop=None,
        began=time.monotonic(),
        seconds=2.5,
        num_ranks=4,
    )
    live.watch(job)
    assert shown == []
    job.began -= 2
    live.watch(job)
    live.watch(job)
    assert len(shown) == 1 and left == [] and shown[0].stop.description == says
    job.done = True
    live.watch(job)
    live.watch(job)
    assert left == [{"text/plain": line}]
    assert shown[0].comm is None
    job.done = False
    monkeypatch.setenv("LABKIT_BOOK", "1")
    live.watch(job)
    assert len(shown) == 1  # a page of the book has nobody who waits


@pytest.mark.parametrize("room", [live, usage])
def test_a_word_has_one_key(room):
    _one_meaning_each(room._WORDS)


@pytest.mark.parametrize("name", [name for name in gallery.homes() if name != "architectures"])
def test_a_boards_words_have_one_key_each_and_hide_none_of_the_kits(name):
    board = gallery.board(name)
    rows = board().words
    _one_meaning_each(rows)
    assert not {key for key, *_ in trial._WORDS} & {key for key, *_ in rows}


@pytest.mark.parametrize("name", [name for name in gallery.homes() if name != "architectures"])
def test_a_board_says_which_picture_stands_for_it_where_there_is_no_kernel(name):
    assert gallery.board(name)().scene() is not None


def _one_meaning_each(rows):
    assert len({key for key, *_ in rows}) == len(rows) > 1


def test_a_chinese_board_speaks_chinese_and_another_language_is_refused():
    board = widgets.pipeline_parallelism("zh")
    assert (
        "4 个 rank，8 个微批次" in board.book.pages[7].value and "真实" in board.button.description
    )
    with pytest.raises(ValueError, match="a language is one of en, zh; got 'fr'"):
        widgets.pipeline_parallelism("fr")


@pytest.mark.a_few(14)
@pytest.mark.parametrize("name", [name for name in gallery.homes() if name != "architectures"])
@pytest.mark.parametrize(("language", "is_chinese"), [("en", False), ("zh", True)])
def test_what_a_board_asks_for_is_named_in_its_language(name, language, is_chinese):
    asked = [each.description for each in gallery.board(name)(language).controls.values()]
    assert asked and {bool(CHINESE.search(words)) for words in asked} == {is_chinese}, asked


def test_a_board_opens_and_draws_without_torch_pyplot_or_a_kernel():
    code = (
        "import sys; from labkit import widgets; "
        "widgets.pipeline_parallelism()._repr_mimebundle_(); "
        "print(*{'torch', 'matplotlib.pyplot', 'plotly', 'ipympl'} & set(sys.modules))"
    )
    assert (
        subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).strip() == ""
    )
