"""Real DDP at a stated pace does what ``buckets`` simulates, and its gradients are the mean over
the ranks."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import labkit as lab
from labkit import data_parallel
from labkit.collectives.network import Link
from labkit.data_parallel.buckets import Layer
from labkit.data_parallel.run import _max_error, _model, _step
from labkit.timeline import COMM, COMPUTE, step_us

pytestmark = pytest.mark.alone  # reads the clocks of paced runs
LAYER_BYTES = 65_536
LAYERS = [
    Layer(name=str(index), num_bytes=LAYER_BYTES, forward_us=10_000, backward_us=30_000)
    for index in range(3)
]
LINK = Link(alpha_us=1000, bandwidth_gb_per_s=0.003)
BUCKET_MB = LAYER_BYTES / 2**20
STEP = data_parallel.Step(
    layers=tuple(LAYERS), ranks=2, bucket_mb=BUCKET_MB, link=LINK, num_steps=2
)
LATE_US = 15_000.0
"""how much later than it should something may happen here, on a busy machine"""


def both(num_ranks=2, **options):
    """The same step simulated and measured, each as {(rank, label): [(start_us, end_us, num_bytes),
    ...]}."""
    step = STEP.but(ranks=num_ranks, **options)
    run = step.run()
    return step.predict(), run.timeline(), run


def rows(timeline):
    columns = (
        timeline.rank,
        timeline.label,
        timeline.start_us,
        timeline.end_us,
        timeline.num_bytes,
    )
    found = {}
    for rank, label, *times in sorted(zip(*(each.tolist() for each in columns), strict=True)):
        found.setdefault((rank, label), []).append(tuple(times))
    return found


def kinds(timeline):
    return set(zip(timeline.lane.tolist(), timeline.kind.tolist(), strict=True))


@pytest.mark.parametrize(
    "options", [{}, {"overlap": False}, {"slow": {1: 1.5}}, {"accumulate": 2}], ids=str
)
def test_a_real_step_is_the_simulated_one(options):
    predicted, measured, run = both(**options)
    expected = rows(predicted)
    found = rows(measured)
    assert found.keys() == expected.keys()
    for key, spans in expected.items():
        for span, real in zip(spans, found[key], strict=True):
            start_us, end_us, num_bytes = span
            real_start_us, real_end_us, real_bytes = real
            assert real_bytes == num_bytes, key
            if key[1][0] in "FB":
                assert real_end_us - real_start_us >= end_us - start_us - 1, key
    assert kinds(measured) == kinds(predicted)
    assert step_us(predicted) - 1 <= step_us(measured) < step_us(predicted) + 10 * LATE_US
    for each in run:
        assert each["max_error"] < 1e-5 and each["bucket_bytes"] == [LAYER_BYTES] * 3
        assert len(each["step_us"]) == 2 and min(each["step_us"]) > step_us(predicted)
    assert measured.origin == "measured" and {"paced", "paced links", "gloo"} <= set(measured.notes)


def test_an_all_reduce_begins_when_its_layers_box_ends_and_not_before():
    _, measured, _ = both(3)
    found = rows(measured)
    for rank in range(3):
        last_us = 0.0
        for index, layer in enumerate((2, 1, 0)):
            ((start_us, end_us, _),) = found[rank, f"bucket {index}"]
            ready_us = max(found[rank, f"B{layer}"][0][1], last_us)
            assert -100 <= start_us - ready_us < LATE_US, (rank, index)
            last_us = end_us
    assert found[0, "bucket 0"][0][0] < found[0, "B1"][0][1], (
        "communication lies under the backward of the next layer"
    )


def test_without_overlap_nothing_is_sent_under_the_backward():
    _, measured, _ = both(overlap=False)
    for rank in range(2):
        mine = measured.select(measured.rank == rank)
        assert (
            mine.start_us[mine.lane == COMM].min() >= mine.end_us[mine.lane == COMPUTE].max() - 100
        )


def test_large_buckets_hold_several_layers():
    run = STEP.but(bucket_mb=1, num_steps=1).run()
    assert run[0]["bucket_bytes"] == [3 * LAYER_BYTES]
    timeline = run.timeline()
    assert (timeline.label == "bucket 0").sum() == 2 == (timeline.lane == COMM).sum()


def test_without_a_link_the_machines_own_is_recorded():
    own = STEP.but(link=None, num_steps=1)
    run = own.run()
    timeline = run.timeline()
    assert "paced links" not in timeline.notes and "paced" in timeline.notes
    assert sorted(timeline.label[timeline.lane == COMM].tolist()) == sorted(
        2 * ["bucket 0", "bucket 1", "bucket 2"]
    )
    with pytest.raises(ValueError, match="needs a stated link"):
        own.predict()


def unreduced():
    """The error of gradients that were never reduced, and of such that were but from one rank's
    data only."""
    model = _model(tuple(LAYERS))
    inputs = [torch.ones(1) * (1 + dist.get_rank())]
    ddp = DistributedDataParallel(model)
    with ddp.no_sync():
        _step(ddp, inputs)
    alone = _max_error(model, inputs)
    for weight in model.parameters():
        dist.broadcast(weight.grad, 0)
    largest = [weight.grad.abs().max().item() for weight in model.parameters()]
    return alone, _max_error(model, inputs), largest


def test_gradients_that_are_not_the_mean_are_seen():
    for alone, of_rank_0, largest in lab.launch(unreduced, ranks=2):
        assert alone > 0.1 and of_rank_0 > 0.1 and np.min(largest) > 0


def test_what_cannot_run_is_refused():
    with pytest.raises(ValueError, match="'odd' has 6 bytes"):
        STEP.but(layers=[Layer(name="odd", num_bytes=6, forward_us=1.0)]).run()
    with pytest.raises(ValueError, match="a layer or more; got none"):
        STEP.but(layers=[])
    for wrong, words in (
        ({"accumulate": 0}, "accumulate is .*; got 0"),
        ({"num_steps": 0}, "num_steps is .*; got 0"),
        ({"slow": {4: 2.0}}, "got {4: 2.0}"),
        ({"slow": {1: -2.0}}, "got {1: -2.0}"),
        ({"bucket_mb": -1}, "bucket_mb is .*; got -1"),
        ({"bucket_mb": float("nan")}, "got nan"),
    ):
        with pytest.raises(ValueError, match=words):
            STEP.but(**wrong).run()


def test_stated_times_that_were_not_kept_are_told():
    hasty = [Layer(name="layer 0", num_bytes=LAYER_BYTES, forward_us=0.1)]
    fast = Link(alpha_us=0.001, bandwidth_gb_per_s=1e6)
    run = data_parallel.Step(layers=hasty, ranks=2, link=fast, num_steps=1).run()
    assert all(each["overruns"] >= 2 for each in run) and "overran" in run.timeline().notes
