"""The board of data parallelism: every page true to its setting, runs real, refusals in words."""

import pytest
from browserless import from_browser

from labkit import widgets
from labkit.data_parallel import board as data_parallel_board
from labkit.data_parallel import run as data_parallel_run
from labkit.data_parallel.step import Step
from labkit.launching.verdicts.verdict import RankFailed
from labkit.timeline import step_us
from labkit.units import format_us


@pytest.mark.parametrize("layers", data_parallel_board.SHAPES)
@pytest.mark.parametrize("overlap", [True, False])
def test_every_page_of_a_step_is_the_simulation_of_its_own_setting(layers, overlap):
    board = widgets.ddp_communication(layers=layers, overlap=overlap)
    assert len(board.book.pages) == len(board.controls["bucket_mb"].options)
    for index, page in enumerate(board.book.pages):
        from_browser(board.controls["bucket_mb"], index=index)
        predicted = board.predicted
        assert f"Simulated: step {format_us(step_us(predicted))}" in page.value
        num_buckets = len(set(predicted.label[predicted.lane == "comm"].tolist()))
        buckets = "1 bucket" if num_buckets == 1 else f"{num_buckets} buckets"
        assert f"{buckets}, 4 ranks" in page.value
        assert ("no overlap" in page.value) == (not overlap)
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
    layers = board.step.model()
    bucket_bytes = []
    for bucket in board.step.buckets():
        bucket_bytes.append(sum(layers[number].num_bytes for number in bucket))
    assert run[0]["bucket_bytes"] == bucket_bytes
    measured = step_us(board.measured)
    predicted = step_us(board.predicted)
    assert predicted * 0.9 < measured < predicted * 10
    page = board.book.pages[board.book.at[board.book.slider]].value
    assert "Measured: step" in page and {"paced", "paced links"} <= set(board.measured.notes)


def test_a_run_that_fails_tells_its_verdict(monkeypatch):
    board = widgets.ddp_communication(num_ranks=2)
    monkeypatch.setattr(data_parallel_run, "_train", lambda *_: 1 / 0)
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        board.run()
    assert "ZeroDivisionError" in board.live.children[0].value and not board.button.disabled


def test_a_start_that_fails_leaves_the_button_and_a_second_run_is_refused(monkeypatch):
    board = widgets.ddp_communication(num_ranks=2)
    monkeypatch.setattr(
        data_parallel_run,
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


def test_a_start_that_the_controls_do_not_have_is_added_or_refused():
    board = widgets.ddp_communication(bucket_mb=3)
    assert [value for _, value in board.controls["bucket_mb"].options][3:6] == [2, 3, 4]
    with pytest.raises(ValueError, match="layers is one of even"):
        widgets.ddp_communication(layers="x")


def test_a_step_of_ones_own_has_a_board_with_its_layers():
    step = Step(layers=3, layer_mb=2.0, ranks=2, bucket_mb=4)
    board = step.board("zh")
    assert board.step == step and dict(board.controls["layers"].options)["3 层，6.29 MB"] == 3
    with pytest.raises(ValueError, match="needs a stated link"):
        step.but(link=None).board()


def test_all_bucket_sizes_share_one_axis():
    board = widgets.ddp_communication()
    ends = set()
    for index in range(len(board.book.pages)):
        from_browser(board.controls["bucket_mb"], index=index)
        ends.add(board.scene().end_us)
    assert len(ends) == 1


def test_a_board_holds_a_picture_for_viewers_without_widgets():
    bundle = widgets.ddp_communication("zh")._repr_mimebundle_()
    assert bundle["image/png"] and bundle["text/plain"]
