"""Real ranks of unlike speed: weights as in one process, time as predicted, speeds as measured."""

import pytest
import torch
import torch.distributed as dist

import labkit as lab
from labkit import heterogeneous
from labkit.heterogeneous import join_run
from labkit.timeline import step_us

STEP = heterogeneous.Step(batch=20, sample_ms=2.0, num_steps=2)


@pytest.mark.parametrize("split", ["equal", "by speed", "probed"])
def test_weights_are_those_of_one_process(split):
    run = STEP.but(split=split).run()
    assert sum(each["samples"] for each in run) == 20
    assert all(each["weight_difference"] < 1e-6 for each in run)
    assert all(each["payload_bytes"] == 4 * 26_122 for each in run)


def test_ranks_weighed_alike_learn_something_else():
    run = STEP.but(weighted=False).run()
    assert all(each["weight_difference"] > 1e-3 for each in run)


def test_a_rank_without_samples_takes_part():
    step = STEP.but(speeds=(1, 10), batch=8, split="fastest")
    run = step.run()
    assert [each["samples"] for each in run] == [0, 8]
    assert all(each["weight_difference"] < 1e-6 for each in run)


@pytest.mark.alone  # reads the clocks of paced runs
def test_a_step_by_speed_is_faster_as_predicted():
    steps = [heterogeneous.Step(batch=32, split=word) for word in ("equal", "by speed")]
    measured = []
    for step in steps:
        run = step.run()
        measured.append(step_us(run.timeline()))
        predicted = step_us(step.predict())
        assert 0.97 * predicted < measured[-1] < 4 * predicted
        assert run[0]["samples_per_s"] == run[1]["samples_per_s"]
        assert 1.4 < run[0]["samples_per_s"][1] / run[0]["samples_per_s"][0] < 7
    assert measured[1] < 0.8 * measured[0]


def probed():
    torch.set_num_threads(1)
    return heterogeneous.speeds(lambda num: None, 4), dist.get_rank()


def test_every_rank_knows_all_speeds():
    found = lab.launch(probed, ranks=3)
    assert len(found[0][0]) == 3 and found[0][0] == found[1][0] == found[2][0]


@pytest.mark.parametrize("divide_by_initial", [True, False])
def test_join_averages_as_it_says(divide_by_initial):
    run = heterogeneous.join((4, 1, 2), divide_by_initial=divide_by_initial)
    assert [each["steps"] for each in run] == [4, 1, 2]
    assert all(each["weight_difference"] < 1e-6 and each["spread"] == 0 for each in run)


def test_the_two_ways_of_join_are_two():
    data = join_run.images()
    lengths = []
    for divide_by_initial in (True, False):
        net = lab.launch(_weights_alone, (4, 1), divide_by_initial, data, ranks=2)[0]
        lengths.append(net)
    assert (lengths[0] - lengths[1]).abs().max() > 1e-3


def _weights_alone(batches, divide_by_initial, data):
    net = join_run._alone(batches, divide_by_initial, join_run.here(data))
    return torch.cat([each.detach().flatten() for each in net.parameters()]).to("cpu")


@pytest.mark.parametrize(
    "batches, words", [((3,), "ranks"), ((0, 0), "batches of all ranks"), ((1, -1), "rank 1")]
)
def test_what_cannot_be_joined_is_refused(batches, words):
    with pytest.raises(ValueError, match=words):
        heterogeneous.join(batches)
