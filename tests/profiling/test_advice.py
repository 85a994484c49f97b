"""Laws of advice: a graph plays its timeline again, shares add up, a change is what it says."""

import numpy as np
import pytest

import labkit as lab
from labkit.pipeline import schedules, simulation
from labkit.profiling import SHARES, Step, slow
from labkit.profiling.graph import edit
from labkit.profiling.graph.replay import played
from labkit.profiling.graph.waits import graph
from labkit.profiling.run import prove
from labkit.timeline import COMM, Timeline, from_rows, step_us

TRAINED = ("input", "link", "bubble", "straggler", "overlap")


def timelines() -> list[Timeline]:
    """Of steps of all layouts, and of a pipeline that knows no messages."""
    steps = [Step(), Step(layout="pipeline", ranks=3), Step(overlap=False, ranks=2, gap_ms=1.0)]
    return [
        *[step.predict() for step in steps],
        *[slow(kind, 1.0).step.predict() for kind in TRAINED],
        simulation.simulate(schedules.gpipe(3, 4), simulation.Cost(message_us=50.0)),
        simulation.simulate(schedules.zbv(2, 4)),
    ]


@pytest.mark.parametrize("timeline", timelines(), ids=repr)
def test_an_unchanged_graph_plays_the_timeline_again(timeline):
    known = graph(timeline.shifted())
    starts, ends = played(known)
    np.testing.assert_allclose(starts, known.timeline.start_us, atol=1e-6)
    np.testing.assert_allclose(ends, known.timeline.end_us, atol=1e-6)


@pytest.mark.parametrize("timeline", timelines(), ids=repr)
def test_shares_and_the_critical_path_add_up(timeline):
    found = lab.advise(timeline)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1.0, atol=1e-9)
    whole_us = step_us(found.timeline)
    assert sum(part.end_us - part.start_us for part in found.path) == pytest.approx(whole_us)
    for before, after in zip(found.path, found.path[1:], strict=False):
        assert after.start_us == pytest.approx(before.end_us, abs=1e-6)


def test_the_critical_path_stays_in_its_spans():
    """Buckets that wait for a busy link are on the path, and not the backward that gave them."""
    made = slow("link", 0.5).step
    found = lab.advise(made.predict())
    line = found.timeline
    for part in found.path:
        mine = line.select((line.rank == part.rank) & (line.label == part.label))
        inside = (mine.start_us <= part.start_us + 1e-6) & (mine.end_us >= part.end_us - 1e-6)
        assert inside.any(), part
    sent_ms = made.num_steps * (made.link_ms + made.messages * made.latency_ms)
    whole_ms = 1e-3 * step_us(line)
    assert found.path_shares()["comm"] == pytest.approx(sent_ms / whole_ms)


def test_what_no_rank_does_has_no_column():
    assert "writing checkpoints" not in lab.advise(slow("input").step.predict()).table().heads
    assert "writing checkpoints" in lab.advise(slow("save").step.predict()).table().heads


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize("severity", [0.1, 0.9])
def test_what_was_made_slow_is_found_and_its_gain_foretold(kind, severity):
    proof = prove(kind, severity, simulated=True)
    assert proof.right
    assert proof.predicted == pytest.approx(proof.achieved, abs=0.05)


def test_a_healthy_step_gets_no_large_advice():
    found = lab.advise(Step(link_ms=1.0, input_ms=1.0).predict())
    assert not found.changes or found.best.gain < 0.06


def test_the_slow_rank_is_named_and_the_others_wait_for_it():
    found = lab.advise(slow("straggler").step.predict())
    assert found.worst_rank == found.best.rank == 2
    assert "rank 2" in found.told("en") and "rank 2" in found.told("zh")
    waiting = found.shares[:, SHARES.index("waiting")]
    assert waiting[2] < waiting[[0, 1, 3]].min()


def test_half_the_bytes_take_half_the_time_beyond_latency():
    rows = []
    for size in (1_000_000, 4_000_000):
        start_us = 1e-3 * size
        rows.append((0, COMM, "all_reduce", str(size), start_us, start_us + 50 + size / 1e4, size))
    known = graph(from_rows(rows, num_ranks=1, origin="simulated"))
    np.testing.assert_allclose(edit.halve_bytes(known).spent_us, [100, 250])


def test_nothing_recorded_is_said_so():
    for empty in (
        from_rows([], num_ranks=2, origin="simulated"),
        from_rows([], num_ranks=0, origin="simulated"),
    ):
        found = lab.advise(empty)
        assert found.best is None and "Nothing was recorded" in found.told("en")


@pytest.mark.parametrize("wrong", [3, "trace.json", None])
def test_what_holds_no_timeline_is_refused(wrong):
    with pytest.raises(ValueError, match=r"about a Timeline"):
        lab.advise(wrong)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_advice_shows_itself(language):
    found = lab.advise(slow("input").step.predict())
    assert repr(found.best) == found.best.told() and found.best.told() in repr(found)
    empty = from_rows([], num_ranks=2, origin="simulated")
    for source in (slow("input").step.predict(), empty):
        shown = lab.advise(source).bundle(language=language)
        assert {"text/html", "image/png", "text/plain"} <= set(shown)
        assert "<table" in shown["text/html"]
