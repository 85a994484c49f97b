"""The input pipeline: what theory says of a step that waits for data, and a real DataLoader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import scaling
from labkit.timeline import step_us

MS = st.floats(0.1, 50)


@given(MS, MS, st.integers(1, 12))
def test_reading_and_computing_in_turn_take_the_sum(read_ms, step_ms, batches):
    feeding = scaling.Feeding(read_ms=read_ms, step_ms=step_ms, batches=batches, ranks=1)
    assert step_us(feeding.predict()) == pytest.approx(1e3 * batches * (read_ms + step_ms))


@given(MS, MS, st.integers(1, 12), st.integers(1, 4), st.integers(1, 3))
def test_workers_leave_the_larger_of_the_two(read_ms, step_ms, batches, workers, ahead):
    feeding = scaling.Feeding(
        read_ms=read_ms, step_ms=step_ms, batches=batches, workers=workers, ahead=ahead, ranks=1
    )
    took_ms = step_us(feeding.predict()) / 1e3
    least = max(read_ms + batches * step_ms, batches / workers * read_ms + step_ms)
    assert least * (1 - 1e-9) <= took_ms <= batches * (read_ms + step_ms) * (1 + 1e-9)
    if workers * step_ms >= read_ms and ahead > 1:
        assert took_ms <= 1.5 * read_ms + batches * max(step_ms, read_ms / workers) + step_ms


def test_more_ahead_never_reads_more_than_is_allowed():
    feeding = scaling.Feeding(read_ms=1, step_ms=50, workers=2, ahead=2, batches=12, ranks=1)
    line = feeding.predict()
    reads = sorted(line.start_us[line.lane == "input"].tolist())
    starts = sorted(line.start_us[line.lane == "compute"].tolist())
    for number, read_us in enumerate(reads):
        taken = sum(start <= read_us for start in starts)
        assert number - taken < 4


@pytest.mark.real
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.again)])
def test_a_real_loader_keeps_order_and_the_stated_times(workers):
    feeding = scaling.Feeding(workers=workers, batches=4, ranks=2)
    found = feeding.compare()
    assert found.difference().told().startswith("All steps together: ")
    assert all(told["in_order"] for told in found.run)
    assert step_us(found.measured) >= 0.95 * step_us(found.predicted)
    assert sorted(set(found.measured.lane)) == ["compute", "input"]
    if not workers:
        assert min(told["waited_us"] for told in found.run) >= 4 * 30e3


@pytest.mark.real
def test_a_worker_reads_while_its_rank_computes():
    feeding = scaling.Feeding(workers=1, batches=3, ranks=1, read_ms=40, step_ms=60)
    line = feeding.measured(feeding.run())
    reads = line.select(line.lane == "input")
    steps = line.select(line.lane == "compute")
    under = [steps.start_us[0] <= start < steps.end_us[-1] for start in reads.start_us]
    assert any(under[1:])
