"""DDP's own rule for buckets, held against DDP; and laws of the simulated step."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import labkit as lab
from labkit import data_parallel
from labkit.data_parallel import buckets
from labkit.data_parallel.buckets import MIB, Layer, assign, simulate
from labkit.timeline import COMM, COMPUTE, busy_us, hidden_comm, step_us

KB = 1024
MODELS = [
    ([4 * KB] * 7, 10 * KB),
    ([100 * KB, 8, 100 * KB, 8, 100 * KB], 64 * KB),
    ([300 * KB, 12, 40 * KB], 50 * KB),
    ([16, 20, 700 * KB, 24, 28], 100 * KB),
    ([10 * KB, 20 * KB, 10 * KB, 20 * KB], 30 * KB),
    ([64], MIB),
    ([400 * KB] * 5, None),
    ([1200 * KB, 100 * KB], None),
]
"""gradient sizes, and DDP's limit in bytes; None for its default"""


def layers(*num_bytes, forward_us=10.0):
    return [
        Layer(name=str(i), num_bytes=each, forward_us=forward_us)
        for i, each in enumerate(num_bytes)
    ]


def real_bucket_bytes(models):
    """What DDP's communication hook is given, step after step: the bucket sizes of the last one."""
    found = []
    for sizes, limit in models:

        class Chain(nn.Module):
            def __init__(self, sizes):
                super().__init__()
                self.weights = nn.ParameterList(
                    nn.Parameter(torch.ones(size // 4)) for size in sizes
                )

            def forward(self, h):
                for weight in self.weights:
                    h = h + h * weight.mean()
                return h

        ddp = DistributedDataParallel(Chain(sizes), bucket_cap_mb=limit / MIB if limit else None)
        seen = []

        def hook(_, bucket, seen=seen) -> torch.futures.Future[torch.Tensor]:
            seen.append(bucket.buffer().nbytes)
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        ddp.register_comm_hook(None, hook)
        for _ in range(3):
            seen.clear()
            ddp(torch.ones(1)).backward()
        logged = ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", "")
        found.append((list(seen), [int(each) for each in logged.split(",") if each]))
    return found


def bucket_bytes(assigned, sizes):
    found = []
    for bucket in assigned:
        found.append(sum(sizes[index] for index in bucket))
    return found


@pytest.mark.real
def test_assign_is_what_real_ddp_does():
    real = lab.launch(real_bucket_bytes, MODELS, ranks=1)[0]
    for (sizes, limit), (seen, logged) in zip(MODELS, real, strict=True):
        assigned = assign(sizes, limit or 25 * MIB, None if limit else buckets.FIRST_BUCKET_BYTES)
        assert bucket_bytes(assigned, sizes) == seen == logged, (sizes, limit)
        assert list(itertools.chain(*assigned)) == list(reversed(range(len(sizes))))


def test_assign_is_torchs_own_function_for_any_sizes():
    chance = random.Random(0)
    for _ in range(200):
        sizes = [4 * chance.randint(1, 300) for _ in range(chance.randint(1, 12))]
        limit = chance.randint(0, 3000)
        first = chance.choice([None, chance.randint(0, 3000)])
        backward = [torch.empty(size // 4) for size in reversed(sizes)]
        expected, _ = dist._compute_bucket_assignment_by_size(
            backward, [limit if first is None else first, limit]
        )
        last = len(sizes) - 1
        for ours, theirs in zip(assign(sizes, limit, first), expected, strict=True):
            assert [last - index for index in ours] == list(theirs)
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == buckets.FIRST_BUCKET_BYTES


@pytest.mark.parametrize("limit", [1, 100, 250, 10**9])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_step_ends_neither_before_its_work_nor_later_than_without_overlap(limit, num_ranks):
    model = layers(100, 40, 200, 60, 10)
    plan = assign([layer.num_bytes for layer in model], limit)
    with_it = simulate(model, plan, lambda n: 0.3 * n, num_ranks=num_ranks)
    without = simulate(model, plan, lambda n: 0.3 * n, num_ranks=num_ranks, overlap=False)
    compute_us = 5 * 30.0
    comm_us = 0.3 * 410
    assert step_us(without) == pytest.approx(compute_us + comm_us) and hidden_comm(without) == 0
    last_us = 0.3 * sum(model[i].num_bytes for i in plan[-1])
    assert max(compute_us, comm_us) + last_us <= step_us(with_it) + 1e-9 <= step_us(without) + 1e-6
    for timeline in (with_it, without):
        assert busy_us(timeline).tolist() == pytest.approx([compute_us] * num_ranks)
        assert busy_us(timeline, COMM).tolist() == pytest.approx([comm_us] * num_ranks), (
            "one link, a bucket at a time"
        )
        sent = timeline.num_bytes[timeline.lane == COMM].reshape(-1, num_ranks).sum(axis=0)
        assert sent.tolist() == [410] * num_ranks


def test_equal_layers_hide_all_but_the_last_all_reduce():
    model = layers(*[100] * 6)
    timeline = simulate(model, assign([100] * 6, 100), lambda n: 20.0, num_ranks=4)
    assert step_us(timeline) == 6 * 30 + 20 and hidden_comm(timeline) == pytest.approx(5 / 6)
    whole = simulate(model, assign([100] * 6, 600), lambda n: 120.0, num_ranks=4)
    assert step_us(whole) == 6 * 30 + 120 and hidden_comm(whole) == 0, "one bucket hides nothing"


def test_an_all_reduce_begins_after_its_last_gradient_and_after_the_one_before():
    model = layers(100, 40, 200, 60, 10)
    plan = assign([layer.num_bytes for layer in model], 100)
    timeline = simulate(model, plan, lambda n: n, num_ranks=1)
    spans = zip(timeline.start_us.tolist(), timeline.end_us.tolist(), strict=True)
    at = dict(zip(timeline.label.tolist(), spans, strict=True))
    before = 0.0
    for index, bucket in enumerate(plan):
        start_us, end_us = at[f"bucket {index}"]
        assert start_us == max(before, *(at[f"B{layer}"][1] for layer in bucket))
        before = end_us


def test_a_straggler_keeps_the_others_waiting_in_their_all_reduces():
    model = layers(*[100] * 4)
    timeline = simulate(model, assign([100] * 4, 100), lambda n: 5.0, num_ranks=3, slow={2: 1.5})
    assert busy_us(timeline).tolist() == [120, 120, 180]
    waited = busy_us(timeline, COMM)
    assert waited[2] == 20 and waited[0] == waited[1] > 60
    ends = [timeline.end_us[(timeline.rank == rank) & (timeline.lane == COMM)] for rank in range(3)]
    assert np.array_equal(ends[0], ends[2]) and step_us(timeline) == 185


def test_accumulated_microbatches_communicate_once():
    model = layers(*[100] * 4)
    timeline = simulate(model, assign([100] * 4, 100), lambda n: 5.0, num_ranks=2, accumulate=3)
    comm = timeline.lane == COMM
    assert comm.sum() == 2 * 4 and (timeline.lane == COMPUTE).sum() == 2 * 3 * 8
    assert timeline.start_us[comm].min() == 2 * 120 + 60 and step_us(timeline) == 3 * 120 + 5


def test_backward_takes_twice_the_forward_unless_it_is_said():
    assert layers(4, forward_us=7.0)[0].backward_us == 14.0
    assert Layer(name="a", num_bytes=4, forward_us=7.0, backward_us=1.0).backward_us == 1.0


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="'a' has 0 bytes"):
        Layer(name="a", num_bytes=0, forward_us=1.0)
    with pytest.raises(ValueError, match="in one bucket, and none is empty; 2 layers"):
        simulate(layers(4, 4), [(1,)], lambda n: 1.0, num_ranks=1)
    with pytest.raises(ValueError, match="limit is 0 bytes or more; got -1"):
        assign([4], -1)
    for wrong, words in (
        ({"num_ranks": 0}, "num_ranks is a whole"),
        ({"num_ranks": 1, "accumulate": 0}, "accumulate is a whole"),
        ({"num_ranks": 2, "slow": {2: 1.5}}, "slow gives some of 2 ranks"),
        ({"num_ranks": 2, "slow": {0: -1.0}}, "factors of 0 or more; got {0: -1.0}"),
    ):
        with pytest.raises(ValueError, match=words):
            simulate(layers(4), [(0,)], lambda n: 1.0, **wrong)


def test_a_speedup_is_ideal_without_messages_and_bends_where_none_can_be_hidden():
    whole = data_parallel.Step(layers=4, layer_mb=1, forward_ms=5, overlap=False)
    shared, grown = data_parallel.speedup(whole, (1, 2, 4, 64))
    assert shared[1] == grown[1] == 1
    assert shared[64] < shared[4] < 4 and grown[64] > grown[4] > shared[4]
    alone_us = step_us(whole.but(ranks=1).predict())
    assert grown[4] == pytest.approx(4 * alone_us / step_us(whole.but(ranks=4).predict()))
    quarter = whole.but(ranks=4, forward_ms=whole.forward_ms / 4)
    assert shared[4] == pytest.approx(alone_us / step_us(quarter.predict()))
    best, _ = data_parallel.speedup(whole.but(overlap=True), (4,), (0.5, 1, 4))
    each = [
        data_parallel.speedup(whole.but(overlap=True, bucket_mb=mb), (4,)) for mb in (0.5, 1, 4)
    ]
    assert best[4] == max(found[4] for found, _ in each)
    with pytest.raises(ValueError, match="got none"):
        data_parallel.speedup(whole, ())
    with pytest.raises(ValueError, match="gets no faster"):
        data_parallel.speedup(whole.but(forward_ms=0), (2,))
