"""The boards of collectives and of data parallelism: every page true to its setting, runs real,
refusals in words."""

import pytest
from browserless import from_browser, pictures_sent, settle

from labkit import widgets
from labkit.collectives import algorithms
from labkit.collectives import board as collectives_board
from labkit.collectives.network import time_us
from labkit.data_parallel import board as data_parallel_board
from labkit.launching.verdict import RankFailed
from labkit.pictures.sketch import Sketch
from labkit.timeline import step_us
from labkit.units import format_bytes, format_us


@pytest.mark.parametrize("what", collectives_board.CHOICES, ids="-".join)
@pytest.mark.parametrize("num_ranks", [2, 5, 16])
def test_a_collective_has_a_page_for_every_step_each_with_its_figures(what, num_ranks):
    board = widgets.collectives(primitive=what[0], algorithm=what[1], num_ranks=num_ranks)
    plan = algorithms.plan(*what, num_ranks)
    assert len(board.book.pages) == len(plan.steps) + 1 == len(board.controls["step"].options)
    assert board.player.max == len(plan.steps)
    most = format_bytes(algorithms.sent_bytes(plan, 1e6).max())
    time = format_us(time_us(plan, board.setting.links(), 1e6))
    for page in board.book.pages:
        assert page.value.count("<svg") == 1
        assert (
            f"the busiest rank sends {most}" in page.value
            and f"Simulated time {time}" in page.value
        )
    assert board.book.num_bytes < 1_500_000


def test_another_algorithm_has_its_own_number_of_steps_and_begins_at_the_first(sent):
    board = widgets.collectives(num_ranks=4)
    from_browser(board.controls["step"], index=5)
    assert board.setting.step == 5
    sent.clear()
    board.controls["what"].value = ("all_reduce", "tree")
    settle()
    steps = len(algorithms.plan("all_reduce", "tree", 4).steps)
    assert board.setting.step == 0
    assert len(board.controls["step"].options) == steps + 1 == len(board.book.pages)
    spare = board.book.stack.children[
        steps + 1 :
    ]  # the pages of the longer one stay, for the next that needs them
    assert spare and all("kernel busy" in page.value for page in spare)
    assert sorted(set(pictures_sent(board, sent))) == list(range(steps + 1))


def test_the_player_moves_the_slider_in_the_browser_alone(sent):
    board = widgets.collectives()
    (link,) = board.links
    assert link.source == (board.player, "value") and link.target == (
        board.controls["step"],
        "index",
    )
    sent.clear()
    from_browser(board.controls["step"], index=3)
    assert pictures_sent(board, sent) == []


def test_a_plan_runs_on_real_ranks_over_paced_links_and_its_bytes_are_counted():
    board = widgets.collectives("zh", num_ranks=3)
    run = board.run()
    plan = board.setting.plan()
    assert [result["sent_bytes"] for result in run] == pytest.approx(
        algorithms.sent_bytes(plan, 1e6), rel=1e-3
    )
    assert max(result["max_error"] for result in run) < 1e-5
    assert "paced links" in board.measured.notes
    page = board.book.pages[board.setting.step].value
    assert "实测" in page and page.count("<svg") == 2
    from_browser(board.controls["step"], index=4)  # the run did all steps, whichever is shown
    assert board.measured is not None


@pytest.mark.parametrize(
    ("control", "value", "why"),
    [
        ("network", "nvlink", "choose a paced network"),
        ("ranks", 16, "up to 8 ranks"),
        ("size", 1e9, "up to 4.00 MB"),
    ],
)
def test_what_this_machine_cannot_do_is_off_and_says_why(control, value, why):
    board = widgets.collectives()
    board.controls[control].value = value
    assert board.button.disabled and why in board.why_off.value
    with pytest.raises(ValueError, match=why):
        board.run()


def test_an_unknown_algorithm_says_what_there_is():
    with pytest.raises(ValueError, match="all_reduce: parameter_server, ring"):
        widgets.collectives(primitive="all_reduce", algorithm="star")


@pytest.mark.parametrize("layers", data_parallel_board.SHAPES)
@pytest.mark.parametrize("overlap", [True, False])
def test_every_page_of_a_step_is_the_simulation_of_its_own_setting(layers, overlap):
    board = widgets.ddp_communication(layers=layers, overlap=overlap)
    assert len(board.book.pages) == len(board.controls["bucket"].options)
    for index, page in enumerate(board.book.pages):
        from_browser(board.controls["bucket"], index=index)
        predicted = board.predicted
        assert f"Simulated: step {format_us(step_us(predicted))}" in page.value
        num_buckets = len(set(predicted.label[predicted.lane == "comm"].tolist()))
        assert f"{num_buckets} buckets, 4 ranks" in page.value
    assert board.book.num_bytes < 1_500_000


def test_no_overlap_hides_nothing_and_costs_time():
    on, off = (widgets.ddp_communication(overlap=overlap) for overlap in (True, False))
    assert step_us(on.predicted) < step_us(off.predicted)
    assert "0.0 % of the communication hidden" in off.book.pages[off.book.at[off.book.slider]].value


@pytest.mark.alone  # reads the clock of a paced run
def test_the_same_step_runs_with_real_ddp():
    board = widgets.ddp_communication(num_ranks=2)
    run = board.run()
    assert max(result["max_error"] for result in run) < 1e-5
    assert run[0]["bucket_bytes"] == [
        sum(board.setting.model()[i].num_bytes for i in bucket)
        for bucket in data_parallel_board._buckets(board.setting)
    ]
    measured, predicted = step_us(board.measured), step_us(board.predicted)
    assert predicted * 0.9 < measured < predicted * 10
    page = board.book.pages[board.book.at[board.book.slider]].value
    assert "Measured: step" in page and {"paced", "paced links"} <= set(board.measured.notes)


def test_a_run_that_fails_tells_its_verdict(monkeypatch):
    board = widgets.ddp_communication(num_ranks=2)
    monkeypatch.setattr(data_parallel_board.data_parallel, "_train", lambda *_: 1 / 0)
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        board.run()
    assert "ZeroDivisionError" in board.live.children[0].value and not board.button.disabled


def test_a_start_that_fails_leaves_the_button_and_a_second_run_is_refused(monkeypatch):
    board = widgets.ddp_communication(num_ranks=2)
    monkeypatch.setattr(
        data_parallel_board.data_parallel,
        "start",
        lambda *_, **__: (_ for _ in ()).throw(OSError("no processes")),
    )
    board._start()
    assert (
        "no processes" in board.live.children[0].value
        and not board.button.disabled
        and board._job is None
    )
    board._job = object()
    with pytest.raises(ValueError, match="this board is running"):
        board.run()


@pytest.mark.parametrize(
    ("make", "start", "words"),
    [
        (widgets.ddp_communication, {"bucket_mb": 3}, "bucket is one of 0.1, 0.5, .*; got 3"),
        (widgets.ddp_communication, {"layers": "x"}, "layers is one of even"),
        (widgets.collectives, {"num_ranks": 40}, "ranks is one of 2, 3, .*; got 40"),
    ],
)
def test_a_start_that_the_controls_do_not_have_says_what_there_is(make, start, words):
    with pytest.raises(ValueError, match=words):
        make(**start)


def test_boards_hold_a_picture_for_viewers_without_widgets():
    for board in (widgets.collectives(), widgets.ddp_communication("zh")):
        bundle = board._repr_mimebundle_()
        assert bundle["image/png"] and bundle["text/plain"]
    assert isinstance(widgets.collectives().scene(), Sketch)
