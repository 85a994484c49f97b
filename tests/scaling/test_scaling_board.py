"""The board: a predicted line to many ranks, dots where something was recorded or measured."""

import pytest

from labkit import scaling
from labkit.scaling import board as boards
from labkit.scaling import recorded


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_the_line_goes_on_where_no_run_can(kind):
    made = boards.scaling(kind=kind)
    line = made.line(made.step)
    assert line.ranks[-1] == boards.MOST[kind]
    told = made.page(made.step, None)
    assert told.count("<svg") == 2 and "Simulated" in told


def test_what_was_recorded_stands_where_it_was_taken_and_nowhere_else():
    for kind in scaling.KINDS:
        step = recorded.STEPS[kind, True]
        made = boards.board(step)
        assert made.dots(step).efficiencies == recorded.scaled(kind).efficiencies
        assert made.dots(step.but(sample_ms=12.0)) is None
    assert "既有数据" in boards.board(step, "zh").page(step, None)


def test_a_step_without_stated_times_has_no_board():
    with pytest.raises(ValueError, match="stated times"):
        boards.board(scaling.Scaling(paced=False))


def test_the_board_opens_where_the_experiment_stands():
    step = scaling.Scaling(kind="weak", sample_ms=12.0, batch=4)
    assert step.board().step == step
