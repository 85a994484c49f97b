"""What the meter counts is what autograd holds: counted by hand here, and in real stages in
test_pipeline."""

import gc

import numpy as np
import pytest
import torch
from torch import nn

from labkit.footprint import PARTS
from labkit.measure import memory
from labkit.sharding import engines


def saved_by(fn, parameters=()):
    """Peak bytes while ``fn`` makes a result and drops it."""
    held = memory.Activations(parameters)
    with held.chunk(0):
        result = fn()
    assert held.num_bytes == held.peak_bytes
    del result
    gc.collect()
    assert held.num_bytes == 0
    return held.peak_bytes


def test_a_storage_is_counted_once_and_parameters_are_not():
    x = torch.randn(10, requires_grad=True)
    assert saved_by(lambda: x * x) == 40
    assert (
        saved_by(lambda: (x * x) + (x.view(2, 5) * 2).exp().sum()) == 80
    )  # x, and the result of exp
    linear = nn.Linear(10, 3)
    assert saved_by(lambda: linear(x), linear.parameters()) == 40
    assert saved_by(lambda: linear(x)) == 40 + 3 * 10 * 4


def test_an_operator_that_saves_its_own_output_does_not_keep_it_alive():
    x = torch.randn(1000, requires_grad=True)
    held = memory.Activations()
    gc.disable()
    try:
        with held.chunk(0):
            y = x.exp()
        assert held.num_bytes == 4000
        del y
        assert held.num_bytes == 0
    finally:
        gc.enable()


def test_bytes_are_held_until_the_backward_and_chunks_with_them():
    layer = nn.Linear(8, 8)
    held = memory.Activations(layer.parameters())
    outputs = []
    for mb in range(3):
        with held.chunk(mb):
            outputs.append(layer(torch.randn(4, 8)).sum())
    assert (held.num_bytes, held.peak_chunks) == (3 * 128, 3)
    for num_left in (2, 1, 0):
        outputs.pop(0).backward()
        assert held.num_bytes == num_left * 128
    with held.chunk(3):
        layer(torch.randn(4, 8))
    assert (held.peak_bytes, held.peak_chunks) == (3 * 128, 3)


def test_the_history_rises_with_what_is_saved_and_falls_with_what_is_let_go():
    layer = nn.Linear(8, 8)
    held = memory.Activations(layer.parameters())
    assert held.history == [0]
    with held.chunk("step"):
        layer(torch.randn(4, 8)).exp().sum().backward()
    assert max(held.history) == held.peak_bytes == 2 * 128
    assert held.history[-1] == held.num_bytes == 0
    assert held.history.index(256) == 2, "one entry for each tensor"


def test_gradients_are_the_same_with_the_meter():
    x = torch.randn(5, 8, requires_grad=True)
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Softmax(-1))
    expected = torch.autograd.grad(module(x).square().sum(), x)[0]
    with memory.Activations(module.parameters()).chunk(0):
        loss = module(x).square().sum()
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)


def test_resident_memory_never_falls_below_what_was_used():
    before = memory.peak_rss_bytes()
    block = torch.ones(20_000_000)
    assert memory.peak_rss_bytes() >= before
    assert memory.peak_rss_bytes() > block.nbytes


def test_a_watch_counts_every_storage_once_and_forgets_what_is_dropped():
    with memory.watch() as watched:
        first = torch.zeros(1000)
        view = first[10:20]
        watched.mark("F0")
        second = torch.zeros(500)
        del second
        watched.mark("B0")
        third = view + 1
    footprint = watched.footprint()
    assert footprint.labels == ("F0", "B0") and footprint.totals.tolist() == [6000, 4040]
    assert watched.live_bytes == 4040 and footprint.peak == "F0" and third.numel() == 10


def test_a_watch_sees_resizing_without_an_operator():
    with memory.watch() as watched:
        tensor = torch.zeros(100)
        tensor.untyped_storage().resize_(0)
        freed = watched.live_bytes
        tensor.untyped_storage().resize_(80)
    assert (freed, watched.live_bytes) == (0, 80)
    other = torch.zeros(7)
    other.untyped_storage().resize_(0)  # the patch is gone with the watch
    assert watched.live_bytes == 80


def test_what_the_forward_leaves_is_kept_what_has_a_name_is_not():
    torch.manual_seed(0)
    with memory.watch() as watched:
        layer = nn.Linear(8, 4, bias=False)
        optimizer = torch.optim.AdamW(layer.parameters())
        engines.claim(watched, layer, optimizer)
        watched.layers([layer])
        loss = layer(torch.ones(2, 8)).tanh().sum()
        watched.kept()
        watched.mark("loss")
        loss.backward()
        engines.claim(watched, layer, optimizer)
    parts = dict(
        zip(
            PARTS,
            watched.footprint().num_bytes[watched.footprint().labels.index("loss")],
            strict=True,
        )
    )
    assert parts["parameters"] == 8 * 4 * 4 and parts["activations"] >= 2 * 4 * 4


def test_a_storage_from_below_torchs_operators_is_not_counted():
    foreign = torch.from_numpy(np.zeros(100, dtype=np.float32))
    with memory.watch() as watched:
        foreign.view(10, 10)
        assert watched.live_bytes == 0
        made = foreign * 2
    assert watched.live_bytes == made.nbytes


def test_live_shards_of_a_plain_model_and_of_sgd():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, lr=0.1)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    shards = engines.shards(model, optimizer)
    rows = {row[1:3]: row[3:] for row in shards.rows()}
    assert rows["momentum", "0.weight"] == rows["gradient", "0.weight"] == (0, 6, "float32", "cpu")
    assert (
        rows["buffer", "1.num_batches_tracked"] == (0, 1, "int64", "cpu") and shards.num_ranks == 1
    )


def test_an_engine_that_nobody_can_read_is_refused():
    class Engine(nn.Module):
        def zero_optimization_stage(self):
            return 9

    engine = Engine()
    engine.module = nn.Linear(1, 1)
    engine.optimizer = object()
    with pytest.raises(
        ValueError, match="ZeRO 0 to 3 can be read; the optimizer of this engine is object"
    ):
        engines.shards(engine)


def test_torchs_own_tracker_sees_the_same_peak():
    """MemTracker is private and takes one step at a time; where it can look, it is a second
    opinion."""
    from torch.distributed._tools.mem_tracker import MemTracker

    from labkit import model

    def step():
        net = model.Transformer(2, 32, 2, max_len=16)
        tokens, targets = model.story_tokens(2, 16)
        loss = model.loss(net(tokens), targets)
        loss.backward()

    with MemTracker() as tracker:
        step()
    theirs = sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())
    with memory.watch() as watched:
        watched.mark("step")
        step()
    assert watched.footprint().peak_bytes == pytest.approx(theirs, rel=0.02)


@pytest.mark.gpu
def test_cudas_allocator_sees_the_same_peak():
    def train():
        net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
        net(torch.randn(256, 1024, device="cuda")).sum().backward()

    train()  # cuBLAS takes its workspace, 64 MiB on an H100, from the same allocator
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with memory.watch() as watched:
        watched.mark("step")
        train()
    theirs = torch.cuda.max_memory_allocated() - before
    assert watched.footprint().peak_bytes == pytest.approx(theirs, rel=0.05)
