"""DDP's links take the time that is stated, and leave its gradients as they are."""

import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import labkit as lab
from labkit.launching import rank
from labkit.measure import pace, trace, traffic

pytestmark = pytest.mark.alone  # reads clocks

WIDTH = 32
"""A layer's gradient is WIDTH x WIDTH floats and a bias: 4,224 bytes."""
ALL_REDUCE_US = 30_000.0


@pytest.fixture(autouse=True)
def notes(monkeypatch):
    """A fresh rank for each test."""
    here = rank.Rank(0, 1, None)
    monkeypatch.setattr(rank, "_current", here)
    return here.notes


def seconds(fn):
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def linked(
    overlap=True, all_reduce_us=lambda num_bytes: ALL_REDUCE_US, views=True, layers=3, **options
):
    """A small DDP model, a bucket a layer, its links paced after a warm-up step."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    ddp = DistributedDataParallel(
        model, bucket_cap_mb=WIDTH * (WIDTH + 1) * 4 / 2**20, gradient_as_bucket_view=views
    )
    step(ddp)
    return ddp, pace.link(ddp, all_reduce_us, overlap=overlap, **options)


def step(ddp, scale=1.0):
    """One step on data of this rank's own; returns its seconds from the moment that all ranks are
    there."""
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    ddp.zero_grad()
    dist.barrier()
    return seconds(lambda: ddp(scale * x).square().mean().backward())


def gradients(ddp):
    return [weight.grad.clone() for weight in ddp.parameters()]


def reduce_in_all_ways():
    """Gradients under plain DDP, and how far those of every kind of link are from them."""
    whole, _ = linked(all_reduce_us=None)
    step(whole)
    step(whole, 0.5)
    expected = gradients(whole)
    errors = {}
    for options in ({}, {"overlap": False}, {"views": False}, {"all_reduce_us": None}):
        ddp, kept = linked(**options)
        for scale in (2.0, 0.5):
            took = step(ddp, scale)
        errors[str(options)] = (
            max((a - b).abs().max().item() for a, b in zip(expected, gradients(ddp), strict=True)),
            took,
            kept.num_actions,
        )
    alone = DistributedDataParallel(whole.module)
    step(alone, 0.5)
    plain = max((a - b).abs().max().item() for a, b in zip(expected, gradients(alone), strict=True))
    return plain, errors, rank.current().notes


def test_a_paced_link_gives_ddps_own_gradients_and_takes_its_time():
    for plain, errors, noted in lab.launch(reduce_in_all_ways, ranks=2):
        assert plain < 1e-7 and "paced links" in noted
        for options, (error, took_s, num_actions) in errors.items():
            assert error < 1e-7 and num_actions == 2 * 3, options
            assert took_s >= (0.0 if "None" in options else 3 * ALL_REDUCE_US * 1e-6), options


def accumulate():
    ddp, kept = linked()
    step(ddp)  # before it DDP rebuilds its buckets and broadcasts them
    expected = gradients(ddp)
    ddp.zero_grad()
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    with ddp.no_sync(), traffic.count() as silent:
        ddp(x).square().mean().backward()
    with traffic.count() as counted:
        ddp(x).square().mean().backward()
    error = max(
        (2 * a - b).abs().max().item() for a, b in zip(expected, gradients(ddp), strict=True)
    )
    return (
        error,
        kept.num_actions,
        dict(silent.calls),
        dict(counted.calls),
        dict(counted.payload_bytes),
    )


def test_no_sync_sends_nothing_and_the_links_own_message_is_not_counted():
    for error, num_actions, silent, calls, payload in lab.launch(accumulate, ranks=2):
        assert error < 1e-6 and num_actions == 2 * 3 and silent == {}
        assert calls == {"all_reduce": 3} and payload == {"all_reduce": 3 * WIDTH * (WIDTH + 1) * 4}


def spans(overlap):
    """A recorded step, one rank beginning its backward 40 ms late."""
    ddp, _ = linked(overlap)
    y = ddp(torch.ones(4, WIDTH)).square().mean()
    dist.barrier()
    with trace.record(operators=False):
        if dist.get_rank() == 1:
            time.sleep(0.04)
        y.backward()


@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_go_one_after_another_once_all_ranks_have_them(overlap):
    timeline = lab.launch(spans, overlap, ranks=2).timeline()
    assert set(timeline.lane.tolist()) == {"comm"} and "paced links" in timeline.notes
    early, late = (timeline.select(timeline.rank == r) for r in (0, 1))
    for mine in (early, late):
        assert mine.label.tolist() == ["bucket 0", "bucket 1", "bucket 2"]
        assert mine.num_bytes.tolist() == [WIDTH * (WIDTH + 1) * 4] * 3
        assert np.all(mine.start_us[1:] >= mine.end_us[:-1] - 1)
    took_us = late.end_us - late.start_us
    assert np.all(took_us >= ALL_REDUCE_US - 1)
    assert early.end_us == pytest.approx(late.end_us, abs=ALL_REDUCE_US / 3), (
        "all ranks are done at the same time, but for late wake-ups"
    )
    assert early.start_us[0] < late.start_us[0] - 30_000, (
        "the early rank waits inside its all-reduce"
    )


def oversleep():
    """A recorded step whose links wake up 20 ms late."""
    ddp, kept = linked()
    on_time = pace.sleep_until
    pace.sleep_until = lambda deadline_s: on_time(deadline_s + 0.02)
    with trace.record(operators=False):
        step(ddp)
    return kept.num_overruns


def test_a_bar_ends_when_the_clock_said_so_and_the_next_begins_there():
    run = lab.launch(oversleep, ranks=2)
    timeline = run.timeline()
    for me, num_overruns in enumerate(run):
        mine = timeline.select((timeline.rank == me) & (timeline.kind == "all_reduce"))
        assert np.all(mine.end_us - mine.start_us >= ALL_REDUCE_US + 20_000 - 1)
        assert mine.start_us[1:] == pytest.approx(mine.end_us[:-1], abs=1)
        assert num_overruns == 3 and "overran" in timeline.notes


def compute_beside_the_link():
    """Seconds from a layer's backward to that of the layer before it, a slow bucket under way."""
    ddp, _ = linked(all_reduce_us=lambda num_bytes: 300_000.0)
    moments = []
    for layer in ddp.module:
        layer.weight.register_post_accumulate_grad_hook(lambda _: moments.append(time.time()))
    took_s = step(ddp)
    return moments[-1] - moments[0], took_s


def test_a_bucket_on_its_way_does_not_hold_up_the_backward():
    for backward_s, took_s in lab.launch(compute_beside_the_link, ranks=2):
        assert backward_s < 0.3 and took_s >= 3 * 0.3


def compress():
    ddp, _ = linked(
        all_reduce_us=lambda num_bytes: num_bytes * 20.0,
        hook=fp16_compress_hook,
        sent_bytes=lambda bucket: bucket.buffer().nbytes // 2,
    )
    with trace.record(operators=False), traffic.count() as counted:
        took_s = step(ddp)
    return (
        took_s,
        counted.payload_bytes["all_reduce"],
        [str(weight.grad.dtype) for weight in ddp.parameters()],
    )


def test_a_compressing_hook_is_paced_by_what_it_sends():
    run = lab.launch(compress, ranks=2)
    half = 3 * WIDTH * (WIDTH + 1) * 4 // 2
    for took_s, sent_bytes, dtypes in run:
        assert took_s >= half * 20e-6 and sent_bytes == half and set(dtypes) == {"torch.float32"}
    timeline = run.timeline()
    assert timeline.num_bytes[timeline.kind == "all_reduce"].sum() == 2 * half


def low_rank(overlap):
    """Six steps of PowerSGD, the last three compressed, with several buckets."""
    torch.manual_seed(0)
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=4)
    ddp, kept = linked(
        overlap=overlap, all_reduce_us=lambda num_bytes: 1000.0, hook=powerSGD_hook, state=state
    )
    for _ in range(6):
        step(ddp)
    return kept.num_actions, gradients(ddp)


@pytest.mark.parametrize("overlap", [True, False])
def test_hooks_that_send_twice_take_turns(overlap):
    (num_actions, one), (_, other) = lab.launch(low_rank, overlap, ranks=2, hang_s=20, timeout_s=60)
    assert num_actions == 6 * 3 and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def broken(failing):
    def hook(state, bucket):
        if failing == "at once":
            raise KeyError("a mistake of the hook")
        return allreduce_hook(None, bucket).then(lambda real: {}["a mistake of the hook"])

    ddp, _ = linked(hook=hook)
    step(ddp)


@pytest.mark.parametrize("failing", ["at once", "later"])
def test_a_mistake_in_a_hook_is_the_ranks_exception_and_no_hang(failing):
    with pytest.raises(lab.RankFailed, match="a mistake of the hook"):
        lab.launch(broken, failing, ranks=2, timeout_s=30, hang_s=20)


def leave_out_a_layer():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(WIDTH, WIDTH)
            self.unused = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.used(x)

    ddp = DistributedDataParallel(Partly())
    pace.link(ddp, lambda num_bytes: 1000.0)
    step(ddp)
    step(ddp)


def test_a_parameter_without_gradient_is_ddps_own_error():
    with pytest.raises(lab.RankFailed, match="find_unused_parameters=True"):
        lab.launch(leave_out_a_layer, ranks=2, timeout_s=30, hang_s=20)


def too_slow():
    ddp, kept = linked(all_reduce_us=lambda num_bytes: 1.0)
    step(ddp)
    return kept.num_actions, kept.num_overruns, rank.current().notes


def test_a_real_all_reduce_slower_than_its_stated_time_is_an_overrun():
    for num_actions, num_overruns, noted in lab.launch(too_slow, ranks=2):
        assert num_actions == 3 and num_overruns > 0 and "overran" in noted


def test_only_the_links_of_ddp_are_paced():
    with pytest.raises(ValueError, match="a DistributedDataParallel are paced; got Linear"):
        pace.link(nn.Linear(1, 1), None)
