"""Laws of the Timeline: what it refuses, its shares and their denominators, and that it survives a file."""

import json

import numpy as np
import pytest

from labkit.timeline import Timeline, bubble, busy_us, from_rows, hidden_comm


def compute(*spans: tuple, num_ranks: int = 2, origin: str = "measured", notes: tuple = ()) -> Timeline:
    """A Timeline of compute spans (rank, start_us, end_us)."""
    rows = [(rank, "compute", "F", f"{rank}F{i}", start, end, 0) for i, (rank, start, end) in enumerate(spans)]
    return from_rows(rows, num_ranks=num_ranks, origin=origin, notes=notes)


MIXED = from_rows([(0, "compute", "F", "0F0", 5.0, 15.0, 0), (0, "comm", "send", "0F0", 12.0, 22.0, 4096),
                   (1, "compute", "B", "1B0", 20.0, 45.0, 0)], num_ranks=3, origin="measured", notes=("paced", "gloo"))


def same(one: Timeline, other: Timeline) -> bool:
    names = ("rank", "lane", "kind", "label", "start_us", "end_us", "num_bytes")
    return (all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
            and (one.num_ranks, one.origin, one.notes) == (other.num_ranks, other.origin, other.notes))


def test_a_timeline_survives_a_file(tmp_path):
    path = MIXED.save(tmp_path / "new" / "trace.json")
    assert same(Timeline.load(path), MIXED)


def test_an_empty_timeline_survives_too(tmp_path):
    empty = from_rows([], num_ranks=2, origin="recorded")
    assert len(empty) == 0 and same(Timeline.load(empty.save(tmp_path / "empty.json")), empty)
    assert empty.span_us == 0 and bubble(empty) == 0 and busy_us(empty).tolist() == [0, 0]
    assert same(empty.shifted(), empty) and hidden_comm(empty) == 0


def test_the_file_is_a_chrome_trace():
    events = MIXED.to_chrome()["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["pid"] for event in events if event["ph"] == "M"] == [0, 1, 2]
    assert [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        (0, "compute", "0F0", 5.0, 10.0), (0, "comm", "0F0", 12.0, 10.0), (1, "compute", "1B0", 20.0, 25.0)]
    json.dumps(events)


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "kineto.json").write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match=r"trace\.read"):
        Timeline.load(tmp_path / "kineto.json")


def test_the_badge_says_where_it_comes_from():
    assert MIXED.badge == "measured, paced, gloo" and compute(origin="simulated").badge == "simulated"


def test_wrong_timelines_are_refused():
    with pytest.raises(ValueError, match="origin"):
        compute((0, 0, 1), origin="guessed")
    with pytest.raises(ValueError, match=r"0F0.* on rank 0"):
        compute((0, 2, 1))
    for rank in (2, -1):
        with pytest.raises(ValueError, match="ranks are 0 to 1"):
            compute((rank, 0, 1))
    one, two = compute((0, 0, 1)), compute((0, 0, 1), (1, 0, 1))
    with pytest.raises(ValueError, match="one length"):
        Timeline(rank=one.rank, lane=two.lane, kind=two.kind, label=two.label, start_us=two.start_us,
                 end_us=two.end_us, num_bytes=two.num_bytes, num_ranks=2, origin="measured")


def test_the_span_counts_compute_and_not_messages():
    assert MIXED.span_us == 40.0


def test_shifting_starts_the_first_compute_at_zero_and_keeps_durations():
    shifted = MIXED.shifted()
    assert shifted.start_us.tolist() == [0.0, 7.0, 15.0]
    assert np.array_equal(shifted.end_us - shifted.start_us, MIXED.end_us - MIXED.start_us)
    assert bubble(shifted) == bubble(MIXED)


def test_busy_counts_overlapping_spans_once_and_idle_ranks_as_zero():
    overlapping = compute((0, 0, 10), (0, 5, 15), (0, 5, 7), (0, 20, 30), num_ranks=2)
    assert busy_us(overlapping).tolist() == [25.0, 0.0]
    assert busy_us(MIXED, "comm").tolist() == [10.0, 0.0, 0.0]


def test_the_two_denominators_of_a_bubble():
    """The textbook's 4 ranks and 4 microbatches: 3/7 of all time is 3/4 of the ideal."""
    staggered = compute(*[(rank, rank, rank + 4) for rank in range(4)], num_ranks=4)
    assert bubble(staggered, "total") == pytest.approx(3 / 7)
    assert bubble(staggered, "ideal") == pytest.approx(3 / 4)
    share = bubble(MIXED)
    assert bubble(MIXED, "ideal") == pytest.approx(share / (1 - share))
    with pytest.raises(ValueError, match="total"):
        bubble(staggered, "all")


def test_hidden_communication_is_the_part_under_compute_of_the_same_rank():
    assert hidden_comm(MIXED) == pytest.approx(0.3)
    elsewhere = from_rows([(0, "comm", "send", "x", 0.0, 10.0, 1), (1, "compute", "F", "1F0", 0.0, 10.0, 0)],
                          num_ranks=2, origin="measured")
    assert hidden_comm(elsewhere) == 0.0


def test_select_keeps_the_masked_rows_and_the_rest_of_the_facts():
    chosen = MIXED.select(MIXED.rank == 1)
    assert chosen.label.tolist() == ["1B0"] and (chosen.num_ranks, chosen.badge) == (3, MIXED.badge)
