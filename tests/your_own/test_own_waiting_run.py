"""What recorded scripts wait for: the split of a step, and the one sentence that applies."""

import re
from pathlib import Path

import pytest

from labkit import your_own
from labkit.profiling.advice import advise
from labkit.profiling.recording.record_run import Record
from labkit.timeline import from_rows


def recorded(wait_ms, rest_ms):
    """One rank reads for so long, then computes."""
    ends_us = 1e3 * (wait_ms + rest_ms)
    rows = [
        (0, "compute", "input", "load", 0.0, 1e3 * wait_ms, 0),
        (0, "compute", "compute", "", 1e3 * wait_ms, ends_us, 0),
    ]
    return record_of(from_rows(rows, num_ranks=1, origin="measured"), ends_us)


def record_of(timeline, step_us):
    return Record(
        advice=advise(timeline),
        timeline=timeline,
        steps=1,
        step_us=step_us,
        flops_per_s=None,
        remarks=(),
        folder=Path(),
    )


WAS = recorded(48, 9)


def test_a_step_is_split_in_its_wait_and_the_rest():
    scripts = {"as it was": WAS, "cured": recorded(5, 20)}
    found = your_own.split(scripts)
    assert found.heads == ("script", "one step", "waiting for data", "the rest")
    assert found.cells[0] == ("as it was", "57.0 ms", "48.0 ms", "9.00 ms")
    assert list(your_own.rests_us(scripts)["cured"]) == ["computing"]
    assert your_own.rests_us(scripts)["cured"]["computing"] == pytest.approx(20e3)
    for none in ({}, 3, {"as it was": 3}):
        for told in (your_own.split, your_own.rests_us):
            with pytest.raises(ValueError, match="got"):
                told(none)


@pytest.mark.parametrize(
    ("now_ms", "words"),
    [
        (
            (5, 20),
            "over 4 readers is 12.0 ms. .* 9.00 ms to 20.0 ms, .* longer.* moved. Of the wait 5.00",
        ),
        ((6, 7), "is 12.0 ms. .* to 7.00 ms, which is shorter. So the readers set the pace"),
        ((3, 12.5), "is 12.0 ms. .* about as long: too close"),
    ],
)
def test_the_pace_is_set_by_the_longer_of_two(now_ms, words):
    scripts = {"as it was": WAS, "four readers": recorded(*now_ms)}
    assert re.search(words, your_own.split(scripts, readers=4).title)
    with pytest.raises(ValueError, match="readers"):
        your_own.split(scripts, readers=0)
    with pytest.raises(ValueError, match="give two records"):
        your_own.split({"as it was": WAS}, readers=4)


def test_the_parts_that_grew_are_named():
    assert your_own.grown(WAS, recorded(5, 9.8)).startswith("No part grew")
    found = your_own.grown(WAS, recorded(5, 20))
    assert found.endswith("of the old rest: computing from 9.00 ms to 20.0 ms.")
    with pytest.raises(ValueError, match="got"):
        your_own.grown(WAS, 3)


def test_a_rank_waits_in_a_message_that_another_has_not_begun():
    rows = [
        (0, "comm", "all_reduce", "", 20.0, 110.0, 8),
        (1, "comm", "all_reduce", "", 100.0, 110.0, 8),
        (0, "compute", "compute", "", 0.0, 20.0, 0),
        (1, "compute", "compute", "", 0.0, 100.0, 0),
    ]
    record = record_of(from_rows(rows, num_ranks=2, origin="measured"), 110.0)
    assert your_own.waited_us(record, rank=0) == pytest.approx(80.0)
    assert your_own.waited_us(record, rank=1) == 0.0
    for none, rank in ((3, 0), (record, 2), (record, -1)):
        with pytest.raises(ValueError, match="got"):
            your_own.waited_us(none, rank=rank)
