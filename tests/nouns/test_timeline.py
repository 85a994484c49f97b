"""Laws of the Timeline: what it refuses, its shares and their denominators, and that it survives a
file."""

import json

import numpy as np
import pytest

from labkit.data_parallel import buckets
from labkit.timeline import (
    Timeline,
    bubble,
    busy_us,
    exposed_comm_us,
    from_rows,
    hidden_comm,
    in_flight,
    straggler,
)


def compute(
    *spans: tuple, num_ranks: int = 2, origin: str = "measured", notes: tuple = ()
) -> Timeline:
    """A Timeline of compute spans (rank, start_us, end_us)."""
    rows = [
        (rank, "compute", "F", f"{rank}F{i}", start, end, 0)
        for i, (rank, start, end) in enumerate(spans)
    ]
    return from_rows(rows, num_ranks=num_ranks, origin=origin, notes=notes)


def collectives(*spans: tuple, num_ranks: int = 3) -> Timeline:
    """A Timeline of communication (rank, kind, start_us, end_us)."""
    rows = [(rank, "comm", kind, kind, start, end, 8) for rank, kind, start, end in spans]
    return from_rows(rows, num_ranks=num_ranks, origin="measured")


MIXED = from_rows(
    [
        (0, "compute", "F", "0F0", 5.0, 15.0, 0),
        (0, "comm", "send", "0F0", 12.0, 22.0, 4096),
        (1, "compute", "B", "1B0", 20.0, 45.0, 0),
    ],
    num_ranks=3,
    origin="measured",
    notes=("paced", "gloo"),
)


def same(one: Timeline, other: Timeline) -> bool:
    names = ("rank", "lane", "kind", "label", "start_us", "end_us", "num_bytes")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names) and (
        one.num_ranks,
        one.origin,
        one.notes,
    ) == (other.num_ranks, other.origin, other.notes)


def test_a_timeline_survives_a_file(tmp_path):
    path = MIXED.save(tmp_path / "new" / "trace.json")
    assert same(Timeline.load(path), MIXED)


def test_an_empty_timeline_survives_too(tmp_path):
    empty = from_rows([], num_ranks=2, origin="recorded")
    assert len(empty) == 0 and same(Timeline.load(empty.save(tmp_path / "empty.json")), empty)
    assert empty.span_us == 0 and bubble(empty) == 0 and busy_us(empty).tolist() == [0, 0]
    assert same(empty.shifted(), empty) and hidden_comm(empty) == 0
    assert exposed_comm_us(empty).tolist() == [0, 0] and straggler(empty)[1] == 0.0


def test_the_file_is_a_chrome_trace():
    events = MIXED.to_chrome()["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["pid"] for event in events if event["ph"] == "M"] == [0, 1, 2]
    assert [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in spans] == [
        (0, "compute", "0F0", 5.0, 10.0),
        (0, "comm", "0F0", 12.0, 10.0),
        (1, "compute", "1B0", 20.0, 25.0),
    ]
    json.dumps(events)


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "kineto.json").write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match=r"trace\.read"):
        Timeline.load(tmp_path / "kineto.json")


def test_the_badge_says_where_it_comes_from():
    assert (
        MIXED.badge == "measured, paced, gloo" and compute(origin="simulated").badge == "simulated"
    )


def test_wrong_timelines_are_refused():
    with pytest.raises(ValueError, match="origin"):
        compute((0, 0, 1), origin="guessed")
    with pytest.raises(ValueError, match=r"0F0.* on rank 0"):
        compute((0, 2, 1))
    for rank in (2, -1):
        with pytest.raises(ValueError, match="ranks are 0 to 1"):
            compute((rank, 0, 1))
    one = compute((0, 0, 1))
    two = compute((0, 0, 1), (1, 0, 1))
    with pytest.raises(ValueError, match="one length"):
        Timeline(
            rank=one.rank,
            lane=two.lane,
            kind=two.kind,
            label=two.label,
            start_us=two.start_us,
            end_us=two.end_us,
            num_bytes=two.num_bytes,
            num_ranks=2,
            origin="measured",
        )


def test_the_span_counts_compute_and_not_messages():
    assert MIXED.span_us == 40.0
    assert MIXED.select(MIXED.rank == 0).span_us == 10.0


def test_where_nobody_computes_the_span_is_that_of_all_spans():
    messages = collectives((0, "send", 3.0, 8.0), (1, "recv", 4.0, 9.0), (0, "send", 8.0, 9.5))
    assert messages.span_us == 6.5 and messages.shifted().end_us.max() == 6.5
    assert bubble(messages) == 1.0 and bubble(messages, "ideal") == float("inf")


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
    elsewhere = from_rows(
        [(0, "comm", "send", "x", 0.0, 10.0, 1), (1, "compute", "F", "1F0", 0.0, 10.0, 0)],
        num_ranks=2,
        origin="measured",
    )
    assert hidden_comm(elsewhere) == 0.0


def test_communication_is_hidden_or_exposed_and_nothing_else():
    rows = [
        (0, "compute", "B", "0B0", 0.0, 30.0, 0),
        (0, "compute", "B", "0B1", 35.0, 40.0, 0),
        (0, "comm", "all_reduce", "a", 20.0, 38.0, 1),
        (0, "comm", "all_reduce", "b", 25.0, 50.0, 1),
        (1, "comm", "all_reduce", "a", 20.0, 38.0, 1),
        (2, "compute", "F", "2F0", 0.0, 10.0, 0),
    ]
    mixed = from_rows(rows, num_ranks=4, origin="simulated")
    assert exposed_comm_us(mixed).tolist() == [5.0 + 10.0, 18.0, 0.0, 0.0]
    assert busy_us(mixed, "comm").tolist() == [30.0, 18.0, 0.0, 0.0]
    assert hidden_comm(mixed) == pytest.approx(15 / 48)
    covered = from_rows(
        [*rows, (1, "compute", "F", "1F0", 0.0, 60.0, 0), (0, "compute", "F", "0F9", 0.0, 60.0, 0)],
        num_ranks=4,
        origin="simulated",
    )
    assert hidden_comm(covered) == 1.0 and exposed_comm_us(covered).sum() == 0


def test_the_straggler_is_the_rank_that_the_others_wait_for_most():
    one = collectives(
        (0, "all_reduce", 0.0, 12.0), (1, "all_reduce", 10.0, 12.0), (2, "all_reduce", 4.0, 12.0)
    )
    assert straggler(one) == (1, 10.0 + 6.0)
    # rank 2 is last once, by more than rank 1 is each time, and by less than rank 1 is in all
    more = collectives(
        (2, "all_reduce", 31.0, 40.0),
        (0, "all_reduce", 20.0, 40.0),
        (1, "all_reduce", 20.0, 40.0),
        (0, "all_reduce", 0.0, 12.0),
        (1, "all_reduce", 10.0, 12.0),
        (2, "all_reduce", 4.0, 12.0),
        (0, "barrier", 45.0, 50.0),
        (1, "barrier", 50.0, 50.0),
        (2, "barrier", 44.0, 50.0),
    )
    assert straggler(more) == (1, 16.0 + 11.0)
    assert straggler(more.select(more.kind == "all_reduce")) == (2, 11.0 + 11.0)


def test_who_leaves_a_collective_early_waits_no_longer_and_messages_have_no_straggler():
    broadcast = collectives(
        (0, "broadcast", 0.0, 2.0), (1, "broadcast", 1.0, 11.0), (2, "broadcast", 10.0, 11.0)
    )
    assert straggler(broadcast) == (2, 2.0 + 9.0)
    assert (
        straggler(
            collectives((0, "send", 0.0, 9.0), (1, "recv", 8.0, 9.0), (2, "recvAnySource", 3, 4))
        )[1]
        == 0.0
    )
    together = collectives(*[(rank, "all_reduce", 5.0, 9.0) for rank in range(3)])
    assert straggler(together)[1] == 0.0


def test_a_slow_rank_of_a_simulated_step_is_the_straggler():
    layers = [buckets.Layer(name=f"{i}", num_bytes=1000, forward_us=100.0) for i in range(4)]
    for slow in range(3):
        step = buckets.simulate(
            layers, [(3, 2), (1, 0)], lambda num_bytes: 50.0, num_ranks=3, slow={slow: 1.5}
        )
        # two ranks enter 800 us after the start, and again when the link is free: the slow one at
        # 1200 and 1800
        assert straggler(step) == (slow, 2 * (1200.0 - 800.0) + 2 * (1800.0 - 1250.0))


def test_select_keeps_the_masked_rows_and_the_rest_of_the_facts():
    chosen = MIXED.select(MIXED.rank == 1)
    assert chosen.label.tolist() == ["1B0"] and (chosen.num_ranks, chosen.badge) == (3, MIXED.badge)


@pytest.mark.parametrize("pieces", [1, 3])
def test_pieces_of_an_action_are_one_activation(pieces):
    rows = []
    for label in ("0F0", "0F1", "0B0", "0F2", "0B1", "0B2"):
        for _ in range(pieces):
            start = float(len(rows))
            rows.append((0, "compute", label[1], label, start, start + 1, 0))
    assert in_flight(from_rows(rows, num_ranks=2, origin="measured")).tolist() == [2, 0]
    unnamed = [(*row[:3], "", *row[4:]) for row in rows[: 2 * pieces]]
    assert in_flight(from_rows(unnamed, num_ranks=1, origin="measured")).tolist() == [2 * pieces]
