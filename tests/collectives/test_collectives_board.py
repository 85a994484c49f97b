"""The board of collectives: every page true to its setting, runs real, refusals in words."""

import pytest
from browserless import from_browser, pictures_sent, settle

from labkit import widgets
from labkit.collectives import algorithms
from labkit.collectives import board as collectives_board
from labkit.collectives.call import Call
from labkit.collectives.network import time_us
from labkit.collectives.plans import sent_bytes
from labkit.pictures.sketch import Sketch
from labkit.units import format_bytes, format_us


@pytest.mark.a_few(16)
@pytest.mark.parametrize("what", collectives_board.CHOICES, ids="-".join)
@pytest.mark.parametrize("num_ranks", [2, 5, 16])
def test_a_collective_has_a_page_for_every_step_each_with_its_figures(what, num_ranks):
    board = widgets.collectives(primitive=what[0], algorithm=what[1], num_ranks=num_ranks)
    plan = algorithms.plan(*what, num_ranks)
    assert len(board.book.pages) == len(plan.steps) + 1 == len(board.controls["step"].options)
    assert board.player.max == len(plan.steps)
    most = format_bytes(sent_bytes(plan, 1e6).max())
    time = format_us(time_us(plan, board.step.links(), 1e6))
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
    assert board.at == 5
    sent.clear()
    board.controls["what"].value = ("all_reduce", "tree")
    settle()
    steps = len(algorithms.plan("all_reduce", "tree", 4).steps)
    assert board.at == 0
    assert len(board.controls["step"].options) == steps + 1 == len(board.book.pages)
    spare = board.book.stack.children[
        steps + 1 :
    ]  # the pages of the longer one stay, for the next that needs them
    assert spare and all("kernel busy" in page.value for page in spare)
    assert sorted(set(pictures_sent(board, sent))) == list(range(steps + 1))


def test_a_board_can_open_at_a_later_step():
    board = widgets.collectives(num_ranks=4).turn_to(3)
    assert board.at == board.controls["step"].index == board.player.value == 3
    with pytest.raises(ValueError, match="step"):
        board.turn_to(7)


def test_a_plain_board_says_nothing_of_bytes_times_and_bounds():
    board = widgets.collectives(num_ranks=4)
    assert (
        "is the least" in board.book.pages[0].value and "lower bound" in board.book.pages[0].value
    )
    pages = [page.value for page in board.plain().turn_to(3).book.pages]
    assert len(pages) == 7 and all(page.count("<svg") == 1 for page in pages)
    for words in ("is the least", "lower bound", "busiest rank", "Simulated time"):
        assert not any(words in page for page in pages)
    shown = board.children[0].children
    assert board.controls["ranks"] in shown and board.controls["network"] not in shown


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
    plan = board.step.plan()
    assert [result["sent_bytes"] for result in run] == pytest.approx(
        sent_bytes(plan, 1e6), rel=1e-3
    )
    assert max(result["max_error"] for result in run) < 1e-5
    assert "paced links" in board.measured.notes
    page = board.book.pages[board.at].value
    assert "实测" in page and page.count("<svg") == 2
    from_browser(board.controls["step"], index=4)  # the run did all steps, whichever is shown
    assert board.measured is not None


@pytest.mark.parametrize(
    ("control", "value", "why"),
    [
        ("network", "nvlink", "choose a paced network"),
        ("ranks", 16, "up to 8 ranks"),
        ("num_bytes", 1e9, "up to 4.00 MB"),
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


def test_a_plan_is_simulated_once_for_all_its_pages(monkeypatch):
    simulated = []
    predict = Call.predict
    monkeypatch.setattr(
        Call, "predict", lambda call: simulated.append(call.network) or predict(call)
    )
    board = widgets.collectives(num_ranks=5)
    assert len(simulated) == 1 < len(board.book.pages)
    board.controls["network"].value = "nvlink"
    settle()
    assert simulated == ["slow", "nvlink"]


def test_a_start_that_the_controls_do_not_have_is_added_to_them():
    board = widgets.collectives(num_ranks=18)
    assert [label for label, _ in board.controls["ranks"].options][-2:] == ["16", "18"]
    assert board.step.ranks == 18 and len(board.book.pages) == 2 * 17 + 1


def test_a_board_holds_a_picture_for_viewers_without_widgets():
    bundle = widgets.collectives()._repr_mimebundle_()
    assert bundle["image/png"] and bundle["text/plain"]
    assert isinstance(widgets.collectives().scene(), Sketch)
