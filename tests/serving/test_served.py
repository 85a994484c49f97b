"""The noun: its figures are those of its visits, its timeline and its picture show all of them."""

import numpy as np
import pytest

from labkit.pictures.sketch import Box
from labkit.serving import picture
from labkit.serving.load import Load
from labkit.serving.queue import Visit
from labkit.serving.served import Served
from labkit.timeline import busy_us

TWO = (
    Visit(0, 0, 3, 0.0, 0.0, 10.0, 50.0, 90.0),
    Visit(1, 1, 5, 5.0, 10.0, 20.0, 90.0, 90.0),
)


def served(visits=TWO, slots=2):
    return Served(visits=visits, slots=slots, origin="simulated")


def test_figures_are_those_of_the_visits():
    found = served().figures()
    assert found.latency_p50_us == np.median([90.0, 85.0])
    assert found.first_p95_us == pytest.approx(np.percentile([10.0, 15.0], 95))
    assert found.tokens_per_s == pytest.approx(8 / 90e-6)
    assert found.used_share == pytest.approx((50 + 80) / (2 * 90))


def test_the_parts_of_a_latency_sum_to_it():
    load = Load(policy="static").predict()
    assert sum(load.spent_us().values()) == pytest.approx(load.latency_us.mean())
    assert load.spent_us()["held"] > 0


def test_the_queue_goes_up_with_comers_and_down_to_nothing():
    assert served().waiting() == [(0.0, 0), (5.0, 1), (10.0, 0)]
    levels = [number for _, number in Load(rate=20.0).predict().waiting()]
    assert min(levels) == levels[-1] == 0 < max(levels)


def test_the_timeline_has_every_stretch_and_slots_are_busy_where_tokens_are_made():
    line = served().timeline()
    assert busy_us(line).tolist() == [50.0, 80.0]
    assert {*line.kind.tolist()} == {"queue", "prefill", "decode", "held"}


def test_the_picture_has_a_box_for_every_stretch_as_long_as_it():
    load = Load(policy="static", requests=8)
    line = load.predict()
    drawn = picture.slots(line)
    decode = [box for box in drawn.only(Box) if box.texts]
    at_px = {box.texts[0]: box.width_px for box in decode}
    lasts_us = {str(v.number): v.last_us - v.first_us for v in line.visits}
    ratios = [at_px[name] / lasts_us[name] for name in at_px]
    assert len(ratios) >= 6
    assert max(ratios) == pytest.approx(min(ratios))
    both = load.drawn(line, load.but(policy="continuous").predict())
    assert len(both.only(Box)) > len(drawn.only(Box))
    assert "simulated" in both.badge


def test_a_difference_of_two_servers_sums_to_that_of_their_means():
    load = Load(policy="static")
    one = load.predict()
    other = load.but(policy="continuous").predict()
    found = load.difference(one, other)
    assert found.total == pytest.approx(other.latency_us.mean() - one.latency_us.mean())
    assert found.causes["held"] < 0


def test_continuous_batching_is_better_where_answers_are_unequal_and_alike_where_not():
    for spread, at_least in ((0.0, 0.99), (0.8, 1.3), (1.2, 1.5)):
        p95 = {}
        for policy in ("static", "continuous"):
            load = Load(policy=policy, spread=spread, requests=200, rate=10.0)
            p95[policy] = load.predict().figures().latency_p95_us
        assert p95["static"] > at_least * p95["continuous"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: served((Visit(0, 0, 1, 5.0, 0.0, 1.0, 2.0, 3.0),)), "in this order"),
        (lambda: served(slots=1), "slot is a whole number"),
        (lambda: served(()).figures(), "nobody came"),
        (lambda: Load(policy="fair"), "a policy is one of"),
        (lambda: Load(patience_ms=5.0), "leave it 0"),
        (lambda: Load(step_ms=0.0, sequence_ms=0.0), "takes some time"),
        (lambda: Load(rate=0.0), "rate is a number"),
        (lambda: Load(paced=False).predict(), "a stated pace"),
    ],
)
def test_what_can_t_be_is_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_too_much_for_this_machine_is_said_before_it_starts():
    for load in (Load(slots=99), Load(ranks=5), Load(requests=999), Load(step_ms=9000.0)):
        assert load.refusal("en")
        assert load.refusal("zh")
    with pytest.raises(ValueError, match="real runs take up to"):
        Load(slots=99).run()
    assert Load().refusal() is None
