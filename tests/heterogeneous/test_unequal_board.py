"""The board of unequal machines: every page true to its setting, one run real."""

import pytest
from browserless import from_browser

from labkit import widgets
from labkit.timeline import step_us
from labkit.units import format_us


@pytest.mark.parametrize("split", ["equal", "by speed", "fastest"])
def test_every_page_is_the_simulation_of_its_own_setting(split):
    board = widgets.unequal_machines(split=split)
    for index, page in enumerate(board.book.pages):
        from_browser(board.controls["speeds"], index=index)
        assert f"Simulated: step {format_us(step_us(board.predicted))}" in page.value
        assert " + ".join(map(str, board.step.samples())) in page.value


def test_it_runs_on_real_ranks_and_says_what_the_weights_are():
    board = widgets.unequal_machines(speeds=(1.0, 2.0), batch=6, split="by speed")
    run = board.run()
    assert len(run) == 2
    page = board.page(board.step, None)
    assert "Measured: step" in page and "differ from one process by at most" in page


def test_it_speaks_chinese():
    page = widgets.unequal_machines("zh").book.pages[0].value
    assert "模拟" in page
