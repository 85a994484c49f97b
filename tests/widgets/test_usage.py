"""Laws of a timeline's board: shares agree with the clock, a window cuts what crosses its edges."""

import numpy as np
import pytest

from labkit import widgets
from labkit.pipeline import simulation
from labkit.pipeline.schedules import gpipe
from labkit.timeline import from_rows
from labkit.widgets import usage


def test_the_times_of_a_rank_are_told_apart_without_colour():
    patterns = [fill.removeprefix("background:").split(",")[0] for fill in usage._FILLS.values()]
    assert sum(pattern.startswith("#") for pattern in patterns) == 1 and len(set(patterns)) == 3


def _spans(seed):
    """Random spans in both lanes, overlapping across lanes and within them."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(40):
        start = rng.uniform(0, 1000)
        rows.append(
            (
                int(rng.integers(3)),
                ["compute", "comm"][rng.integers(2)],
                "compute",
                "x",
                start,
                start + rng.uniform(0, 80),
                0,
            )
        )
    return from_rows(rows, num_ranks=3, origin="measured")


@pytest.mark.parametrize("seed", range(5))
def test_compute_communication_and_idle_time_agree_with_sampling_the_clock(seed):
    timeline = _spans(seed)
    clock_us = np.linspace(timeline.start_us.min(), timeline.end_us.max(), 20_001)
    for rank, used in enumerate(usage.usage(timeline)):
        on = {}
        for lane in ("compute", "comm"):
            mine = timeline.select((timeline.rank == rank) & (timeline.lane == lane))
            on[lane] = np.any(
                [
                    (s <= clock_us) & (clock_us < e)
                    for s, e in zip(mine.start_us, mine.end_us, strict=True)
                ],
                axis=0,
            )
        whole_us = clock_us[-1] - clock_us[0]
        both = on["compute"] & on["comm"]
        neither = ~on["compute"] & ~on["comm"]
        sampled = [on["compute"], on["comm"] & ~both, both, neither]
        found = [used.compute_us, used.exposed_us, used.hidden_us, used.idle_us]
        assert np.allclose(
            [share.mean() * whole_us for share in sampled], found, atol=5e-3 * whole_us
        )


def test_a_window_shows_what_lies_in_it_cut_at_its_edges():
    board = widgets.timeline(simulation.simulate(gpipe(2, 4)))
    board.window.index = (0, 50)
    half = board.shown
    assert half.end_us.max() == pytest.approx(board.timeline.end_us.max() / 2)
    assert 0 < len(half) < len(board.timeline)
    assert half.start_us.min() == board.timeline.start_us.min()


def test_of_many_spans_the_trace_viewer_shows_the_window(monkeypatch):
    monkeypatch.setattr(usage, "MANY", 15)
    board = widgets.timeline(simulation.simulate(gpipe(2, 4)))
    assert (
        board.viewer in board.children
        and board.window not in board.children
        and "<svg" not in board.page.value
    )
    whole = board.shown
    table = board.page.value
    assert len(whole) == len(board.timeline) == 16
    board.viewer.selection = [0.0, float(whole.end_us.max()) / 2]
    assert board.shown.end_us.max() == whole.end_us.max() / 2 and board.page.value != table
    board.viewer.selection = []
    assert board.page.value == table
    monkeypatch.setattr(usage, "MANY", 16)
    assert widgets.timeline(simulation.simulate(gpipe(2, 4))).viewer is None


def test_a_timeline_without_spans_is_shown_too():
    assert "<svg" in widgets.timeline(from_rows([], num_ranks=2, origin="measured")).page.value
