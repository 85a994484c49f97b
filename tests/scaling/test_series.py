"""The experiment: what theory says of a step on more ranks, and what real ranks do."""

import pytest

from labkit import model, scaling
from labkit.scaling import picture, recorded
from labkit.scaling.run import PER_CORE
from labkit.scaling.series import Link

FAST = Link(alpha_us=0.0, bandwidth_gb_per_s=1e6)


def small(**fields):
    return scaling.Scaling(ranks=(1, 2), batch=4, sample_ms=4.0, num_steps=2, **fields)


@pytest.fixture(scope="module")
def run():
    return small().run()


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_a_link_that_costs_nothing_and_no_fixed_part_lose_nothing(kind):
    found = scaling.Scaling(kind=kind, fixed_ms=0.0, link=FAST).predict()
    assert list(found.efficiencies.values()) == pytest.approx([1, 1, 1], abs=1e-4)


@pytest.mark.parametrize("serial", [0.1, 0.4])
def test_without_messages_strong_scaling_is_amdahls(serial):
    step = scaling.Scaling(sample_ms=1 - serial, batch=16, fixed_ms=16 * serial, link=FAST)
    found = step.predict()
    for ranks in found.ranks:
        assert found.speedup(ranks) == pytest.approx(scaling.amdahl(ranks, serial), rel=1e-4)


@pytest.mark.parametrize("kind", scaling.KINDS)
def test_what_is_lost_and_the_efficiency_are_the_whole_step(kind):
    found = scaling.Scaling(kind=kind).predict()
    for ranks in found.ranks:
        assert found.efficiency(ranks) + sum(found.lost(ranks).values()) == pytest.approx(1)
    assert found.lost()["communication"] > 0
    assert (found.lost()["fixed"] > 0) == (kind == "strong")


def test_a_slower_link_a_smaller_batch_and_no_overlap_lose_more():
    step = scaling.Scaling()
    slow = step.but(link=Link(alpha_us=500.0, bandwidth_gb_per_s=0.05))
    assert slow.predict().efficiency() < step.predict().efficiency()
    assert step.but(batch=4).predict().efficiency() < step.predict().efficiency()
    # a bucket that holds all leaves only after the backward
    assert step.but(bucket_mb=100).predict().lost()["communication"] > 0


def test_the_weights_are_those_of_the_real_model():
    step = scaling.Scaling(layers=3, hidden=32)
    real = model.Transformer(3, 32)
    assert [each.num_bytes for each in step.parameters(1)] == [w.nbytes for w in real.parameters()]
    forward_us = sum(each.forward_us for each in step.parameters(4))
    assert 3 * forward_us == pytest.approx(1e3 * step.samples(4) * step.sample_ms)


@pytest.mark.real
def test_real_ranks_are_split_into_parts_that_make_the_step(run):
    found = small().measured(run)
    for ranks in (1, 2):
        own = [run[rank]["step_us"][ranks] for rank in range(ranks)]
        assert found.spent[ranks].step_us == pytest.approx(sum(own) / ranks)
    assert found.efficiency(1) == 1
    # a stated step takes its time, whoever else is there
    assert run[0]["alone_us"][1] >= 1e3 * (4 * 4.0 + 2.0)
    assert run[0]["step_us"][2] >= 1e3 * (2 * 4.0 + 2.0)
    # all tell of the same step, and whoever came last in it waited for nobody
    assert min(told["waiting_us"][2] for told in run) == 0
    assert "paced" in found.badge and found.rows()[1]["ranks"] == 2
    kinds = set(run.timeline().kind)
    assert {"forward", "backward", "all_reduce", "optimizer"} <= kinds


@pytest.mark.real
def test_a_comparison_says_what_efficiency_is_lost_to(run):
    step = small()
    predicted = step.predict()
    measured = step.measured(run)
    told = step.difference(predicted, measured)
    assert told.total == pytest.approx(measured.efficiency() - predicted.efficiency())
    drawn = step.drawn(predicted, measured, "en")
    assert "Strong scaling, 4 samples a step" in drawn.title
    assert "zh" in repr(step.drawn(predicted, measured, "zh")) or drawn.title


@pytest.mark.real
@pytest.mark.again
def test_the_machines_own_pace_is_measured_and_not_predicted():
    step = small(paced=False)
    found = step.measured(step.run())
    assert found.ranks == (1, 2) and found.spent[2].step_us > 0
    with pytest.raises(ValueError, match="stated times"):
        step.predict()


def test_more_ranks_than_the_cores_carry_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr("labkit.machine.resources.cores", lambda: 2)
    monkeypatch.setattr("labkit.machine.resources.num_gpus", lambda: 0)
    step = scaling.Scaling(ranks=(1, 2, 4, 8))
    assert "8 ranks on 2 cores" in step.refusal("en")
    assert str(2 * PER_CORE) in step.refusal("zh")
    assert scaling.Scaling().refusal() is None
    with pytest.raises(ValueError, match="take turns"):
        step.run()


@pytest.mark.parametrize("kind", scaling.KINDS)
@pytest.mark.parametrize("paced", [True, False])
def test_what_was_recorded_says_so(kind, paced):
    found = recorded.scaled(kind, paced=paced)
    assert found.ranks == (1, 2, 4) and found.efficiency(1) == 1
    assert found.badge.startswith("recorded")
    assert "recorded" in picture.lost(found, language="en").title


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"ranks": (2, 4)}, "ranks begin with 1"),
        ({"ranks": 4}, "several numbers"),
        ({"batch": 6}, "dealt evenly"),
        ({"kind": "both"}, "a kind of scaling"),
        ({"hidden": 30}, "4 heads"),
    ],
)
def test_what_is_no_series_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        scaling.Scaling(**fields)
