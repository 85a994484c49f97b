"""What the prose of chapter 03 says of its predictions: where a constant changes, a sentence may
have to."""

import pytest

import labkit as lab
from labkit import collectives, data_parallel, planner
from labkit.data_parallel.buckets import ring_us
from labkit.timeline import hidden_comm, step_us

LINK = collectives.Link(alpha_us=4000, bandwidth_gb_per_s=0.1)
STEP = data_parallel.Step(
    layers=12, layer_mb=0.5, forward_ms=3, ranks=2, bucket_mb=2, link=LINK, num_steps=1
)


def test_two_mib_are_the_best_bucket():
    by_size = lab.sweep(STEP, bucket_mb=(0.5, 1, 2, 4, 8)).line
    assert min(by_size, key=by_size.get) == 2
    assert min(us for size, us in by_size.items() if size != 2) > 1.05 * by_size[2]
    assert len(STEP.but(bucket_mb=8).buckets()) == 1


def test_small_buckets_pay_latency_and_never_rest():
    small = STEP.but(bucket_mb=0.5)
    comm = small.predict().select(small.predict().lane == "comm")
    mine = comm.select(comm.rank == 0)
    assert len(mine) == len(small.buckets()) == 12
    assert mine.start_us[1:] == pytest.approx(mine.end_us[:-1])
    assert (mine.end_us - mine.start_us).sum() == pytest.approx(159e3, rel=5e-3)
    assert 12 * ring_us(2, LINK)(0) == 96e3


def test_the_best_bucket_pays_24_ms_and_leaves_48_ms_before_the_end():
    line = STEP.predict()
    comm = line.select((line.lane == "comm") & (line.rank == 0))
    compute = line.select((line.lane == "compute") & (line.rank == 0))
    assert len(comm) * ring_us(2, LINK)(0) == 24e3
    assert compute.end_us.max() - comm.start_us.min() == pytest.approx(48e3)


def test_one_large_bucket_hides_nothing():
    line = STEP.but(bucket_mb=8).predict()
    assert hidden_comm(line) == 0
    assert (line.end_us - line.start_us)[line.lane == "comm"].max() == pytest.approx(71e3, rel=5e-3)
    assert line.end_us[line.lane == "compute"].max() == pytest.approx(108e3)


def test_64_gpus_are_56_times_as_fast():
    one = planner.Plan(model="LLaMA 7B", gpu="H200 141 GB", gpus=1, batch=512)
    many = one.but(gpus=64)
    assert round(step_us(one.predict()) / step_us(many.predict())) == 56
    lacking_us = step_us(many.predict()) - step_us(one.predict()) / 64
    assert many.time().data["all_reduce"] > lacking_us / 2
    assert hidden_comm(many.predict()) == 0
    assert round(many.memory().stages[0]["gradients"] / 1e9) == 27
    tokens_per_s = 512 * 2048 / (step_us(one.predict()) / 1e6)
    assert round(tokens_per_s * 42e9 / 1e12) == 548
