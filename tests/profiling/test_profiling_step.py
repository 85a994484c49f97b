"""Steps that are slow on purpose: what the rules say of them, and the same on real ranks."""

import numpy as np
import pytest

from labkit.profiling import KINDS, Step, slow
from labkit.profiling.program import Act
from labkit.profiling.simulation import simulate
from labkit.timeline import COMPUTE, bubble, busy_us, step_us


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


def test_real_ranks_do_what_was_simulated():
    step = Step(num_steps=2, ranks=3, save_ms=1.0)
    run = step.run()
    predicted = step.predict()
    measured = run.timeline()
    assert {"paced", "paced links"} <= set(measured.notes)
    count = np.unique(predicted.kind[predicted.kind != "input"], return_counts=True)
    found = np.unique(measured.kind[measured.kind != "input"], return_counts=True)
    assert list(map(list, count)) == list(map(list, found))
    assert step_us(measured) > 0.95 * step_us(predicted)
    assert all(rank["sums"] == [6.0] * 8 for rank in run)
