"""The board of FSDP: every page true to its setting, runs real."""

import pytest
from browserless import from_browser, settle

from labkit import footprint, widgets
from labkit.fsdp import board as fsdp_board
from labkit.pictures.sketch import Box
from labkit.units import format_bytes


@pytest.mark.parametrize("strategy", fsdp_board.STRATEGIES)
def test_fsdp_has_a_page_for_every_moment(strategy):
    board = widgets.fsdp_sharding(strategy=strategy, num_layers=2)
    settle()
    predicted = board.step.footprint()
    assert len(board.book.pages) == len(predicted.labels) == 10
    for label, page in zip(predicted.labels, board.book.pages, strict=True):
        assert page.value.count("<svg") == 2 and f">{label}:" in page.value
        assert (
            f"Predicted peak {format_bytes(predicted.peak_bytes)} at {predicted.peak}" in page.value
        )
    assert board.book.num_bytes < 1_500_000


@pytest.mark.parametrize("language", ["en", "zh"])
def test_its_still_has_the_layers_above_the_bytes(language):
    board = widgets.fsdp_sharding(num_layers=2, language=language)
    still = board.scene()
    upper = board._layers(board.step, 0)
    lower = board._bytes(board.step, 0)
    assert still.height_px == upper.height_px + lower.height_px - 8
    assert len(still.only(Box)) == len(upper.only(Box)) + len(lower.only(Box))
    lowest_px = max(box.y_px + box.height_px for box in upper.only(Box))
    bars = still.only(Box)[len(upper.only(Box)) :]
    assert min(box.y_px for box in bars) > lowest_px
    assert all(box.y_px + box.height_px <= still.height_px for box in bars)
    english = still.in_english() if language == "zh" else still
    assert english.heading == "F0: all-gather embed"


def test_fsdp_runs_for_real_and_its_peak_is_the_predicted_one(sent):
    board = widgets.fsdp_sharding(num_layers=2, num_ranks=2)
    run = board.run()
    settle()
    from_browser(board.controls["moment"], index=6)
    assert isinstance(run[0]["footprint"], footprint.Footprint) and board.measured is not None
    page = board.book.pages[6].value
    assert (
        "every live slice is the predicted one" in page
        and "all_gather" in page
        and "Measured peak" in page
    )
    shown = run[0]["footprint"].peak_bytes / board.step.footprint().peak_bytes - 1
    assert abs(shown) < 0.02
    board.controls["layers"].value = 6  # more moments, another run
    settle()
    assert len(board.book.stack.children) == 18 and board.measured is None
