"""Steps that are slow on purpose: what the rules say of them, and the same on real ranks."""

import numpy as np
import pytest

import labkit as lab
from labkit.profiling import KINDS, Bottleneck, Step, prove, recorded, slow, slow_compute
from labkit.profiling.board import bottlenecks
from labkit.profiling.graph.waits import prepared
from labkit.profiling.picture import read_beside
from labkit.profiling.program import Act
from labkit.profiling.simulation import simulate
from labkit.timeline import COMPUTE, bubble, busy_us, from_rows, step_us


@pytest.mark.parametrize("kind", KINDS)
def test_every_cure_helps_and_a_worse_step_is_slower(kind):
    for severity in (0.0, 0.5, 1.0):
        made = slow(kind, severity)
        assert step_us(made.cured.predict()) < 0.95 * step_us(made.step.predict())
    mild = slow(kind, 0.0).step.predict()
    worst = slow(kind, 1.0).step.predict()
    assert step_us(worst) > step_us(mild)


def test_a_pipeline_has_the_bubble_of_its_formula():
    step = Step(
        layout="pipeline", num_steps=1, microbatches=6, latency_ms=0, optimizer_ms=0, ranks=3
    )
    assert bubble(step.predict()) == pytest.approx(2 / 8)


def test_ranks_compute_what_is_stated():
    step = Step(num_steps=2, layers=3, forward_ms=2.0, optimizer_ms=1.0, slow=((1, 2.0),))
    timeline = step.predict()
    works = timeline.select(timeline.kind != "input")
    np.testing.assert_allclose(busy_us(works, COMPUTE)[:2], [38_000, 76_000])


def test_programs_that_wait_for_ever_are_refused():
    alone = Act(what="recv", kind="recv", label="1>0", peer=1)
    with pytest.raises(ValueError, match="wait for ever"):
        simulate([[alone], []])


@pytest.mark.parametrize(
    "wrong", [{"layout": "tree"}, {"weights": (1.0, 2.0)}, {"slow": ((9, 2.0),)}, {"ranks": 1}]
)
def test_what_is_no_step_is_refused(wrong):
    with pytest.raises(ValueError):
        Step(**wrong)


@pytest.mark.real
def test_real_ranks_do_what_was_simulated():
    experiment = Bottleneck(kind="save", severity=0.0)
    run = experiment.run()
    predicted = experiment.predict()
    measured = run.timeline()
    assert {"paced", "paced links"} <= set(measured.notes)
    count = np.unique(predicted.kind[predicted.kind != "input"], return_counts=True)
    found = np.unique(measured.kind[measured.kind != "input"], return_counts=True)
    assert list(map(list, count)) == list(map(list, found))
    assert step_us(measured) > 0.95 * step_us(predicted)
    assert all(rank["sums"] == [10.0] * 12 for rank in run)


@pytest.mark.alone
def test_the_cure_brings_what_was_predicted():
    proof = prove("straggler", 1.0, runs=3)
    assert proof.right and proof.predicted == pytest.approx(proof.achieved, abs=0.15)
    assert "was achieved" in proof.told("en")


def test_the_board_advises_every_kind():
    board = bottlenecks(severity=1.0)
    for kind in KINDS:
        page = board.page(Bottleneck(kind=kind, severity=1.0), None)
        assert "<svg" in page and "<table" in page


def _late():
    slow_compute(0.02)
    return recorded(slow_compute, 0.05)


@pytest.mark.real
def test_what_is_recorded_is_the_work_alone_and_a_slow_card_computes():
    line = lab.launch(_late, ranks=2).timeline()
    slept = line.select(line.label == "slow card")
    assert sorted(slept.rank) == [0, 1] and set(slept.kind) == set(slept.lane) == {COMPUTE}
    assert (slept.end_us - slept.start_us >= 50e3).all()
    with pytest.raises(ValueError):
        slow_compute(-1.0)


def test_what_is_read_is_drawn_beside_the_work():
    line = Bottleneck(kind="input").predict()
    drawn = read_beside(line)
    assert set(drawn.lane[drawn.kind == "input"]) == {"input"}
    assert bubble(lab.advise(line).as_drawn) == pytest.approx(bubble(drawn))
    assert bubble(drawn) > bubble(line) + 0.1


def test_what_is_read_alone_is_advised_alike_in_a_lane_of_its_own():
    line = slow("input", 1.0).step.predict()
    beside = lab.advise(read_beside(line)).best
    assert beside.kind == "input" and beside.gain == pytest.approx(lab.advise(line).best.gain)


def test_what_is_read_beside_the_work_is_not_waited_for():
    rows = [(0, "compute", "compute", "C", 0.0, 9.0, 0), (0, "input", "input", "L", 1.0, 5.0, 0)]
    line = from_rows(rows, num_ranks=1, origin="simulated")
    assert prepared(line).kind.tolist() == ["compute"]
