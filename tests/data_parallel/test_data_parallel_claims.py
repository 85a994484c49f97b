"""What the prose of chapter 03 says of its predictions: where a constant changes, a sentence may
have to."""

import pytest

import labkit as lab
from labkit import collectives, data_parallel, planner
from labkit.data_parallel.buckets import ring_us
from labkit.timeline import hidden_comm, step_us

LINK = collectives.Link(alpha_us=15_000, bandwidth_gb_per_s=0.04)
STEP = data_parallel.Step(
    layers=12, layer_mb=0.5, forward_ms=10, ranks=2, bucket_mb=2, link=LINK, num_steps=1
)


def test_two_mib_are_the_best_bucket_by_far():
    by_size = lab.sweep(STEP, bucket_mb=(0.5, 1, 2, 4, 8)).line
    assert min(by_size, key=by_size.get) == 2
    assert by_size[0.5] - by_size[2] > 200e3 and by_size[8] - by_size[2] == pytest.approx(100e3)
    assert len(STEP.but(bucket_mb=8).buckets()) == 1


def test_small_buckets_pay_latency_and_never_rest():
    small = STEP.but(bucket_mb=0.5)
    comm = small.predict().select(small.predict().lane == "comm")
    mine = comm.select(comm.rank == 0)
    assert len(mine) == len(small.buckets()) == 12
    assert mine.start_us[1:] == pytest.approx(mine.end_us[:-1])
    assert (mine.end_us - mine.start_us).sum() == pytest.approx(517e3, rel=5e-3)
    assert 12 * ring_us(2, LINK)(0) == 360e3


def test_the_best_bucket_pays_90_ms_and_leaves_160_ms_before_the_end():
    line = STEP.predict()
    comm = line.select((line.lane == "comm") & (line.rank == 0))
    compute = line.select((line.lane == "compute") & (line.rank == 0))
    assert len(comm) * ring_us(2, LINK)(0) == 90e3
    assert compute.end_us.max() - comm.start_us.min() == pytest.approx(160e3)


def test_one_large_bucket_hides_nothing():
    line = STEP.but(bucket_mb=8).predict()
    assert hidden_comm(line) == 0
    lasted_us = (line.end_us - line.start_us)[line.lane == "comm"]
    assert lasted_us.max() == pytest.approx(187e3, rel=5e-3)
    assert line.end_us[line.lane == "compute"].max() == pytest.approx(360e3)


def test_the_first_board_ends_earliest_at_4_mib_and_overlaps_from_16_down():
    first = data_parallel.Step(layers=24, layer_mb=1, forward_ms=2, ranks=2, bucket_mb=25)
    sizes = [value for _, value in first.board().controls["bucket_mb"].options]
    steps = {size: first.but(bucket_mb=size).predict() for size in sizes}
    assert min(sizes, key=lambda size: step_us(steps[size])) == 4
    assert round(step_us(steps[4]) / 1e3) == 160 and round(step_us(steps[25]) / 1e3) == 230
    assert max(size for size in sizes if hidden_comm(steps[size]) > 0) == 16


def test_64_gpus_are_56_times_as_fast():
    one = planner.Plan(model="LLaMA 7B", gpu="H200 141 GB", gpus=1, batch=512)
    many = one.but(gpus=64)
    assert round(step_us(one.predict()) / step_us(many.predict())) == 56
    parts = many.time().parts()
    assert round(parts["data"] / 1e3) == 119 and round(parts["optimizer"] / 1e3) == 53
    assert parts["optimizer"] == one.time().parts()["optimizer"]
    lacking_us = step_us(many.predict()) - step_us(one.predict()) / 64
    assert parts["data"] + parts["optimizer"] == pytest.approx(lacking_us, rel=0.01)
    few = one.but(gpus=64, batch=64)
    assert round(few.tokens_per_s() / one.tokens_per_s()) == 31
    assert hidden_comm(many.predict()) == 0
    assert round(many.memory().stages[0]["gradients"] / 1e9) == 27
    tokens_per_s = 512 * 2048 / (step_us(one.predict()) / 1e6)
    assert round(tokens_per_s * 42e9 / 1e12) == 548
