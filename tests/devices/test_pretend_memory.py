"""A pretend device's memory is counted and limited, and what crosses between host and device is
counted and takes its time."""

import time

import pytest
import torch
from apart import apart
from torch import nn

from labkit.devices import pretend, rung
from labkit.devices.rung import Pretend
from labkit.long_context import Attention

accelerator = torch.accelerator
MIB = 2**20


# --- memory ---


def bytes_are_exact():
    assert accelerator.memory_allocated() == 0
    a = torch.zeros(1000, device="pretend")  # 4,000 bytes: 8 blocks of 512
    assert accelerator.memory_allocated() == torch.pretend.memory_reserved() == 4096
    view = a[10:20]
    b = a.neg()  # a kernel of the CPU made it
    assert accelerator.memory_allocated() == 2 * 4096
    del a
    assert accelerator.memory_allocated() == 2 * 4096, "a view keeps all bytes"
    del view
    assert accelerator.memory_allocated() == 4096
    host = torch.ones(5000, device="cpu")
    assert host.sum() == 5000
    assert accelerator.memory_allocated() == 4096, "the host's memory does not count"
    assert accelerator.max_memory_allocated() == 2 * 4096
    del b
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == accelerator.memory_allocated() == 0
    assert torch.pretend.memory_stats()["num_ooms"] == 0


def workspaces_count():
    x = torch.rand(256, 256, device="pretend")
    accelerator.reset_peak_memory_stats()
    before = accelerator.memory_allocated()
    x.sort(
        dim=0
    )  # values and indices leave; what the kernel copies beside them counts while it runs
    results = x.numel() * (4 + 8)
    assert accelerator.max_memory_allocated() >= before + results
    assert accelerator.memory_allocated() == before


def training_frees_what_it_takes():
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to("pretend")
    update = torch.optim.AdamW(net.parameters(), fused=True)
    seen = []
    for _ in range(4):
        net(torch.ones(32, 64, device="pretend")).sum().backward()
        update.step()
        update.zero_grad()
        seen.append(accelerator.memory_allocated())
    assert len(set(seen[1:])) == 1, seen
    parameters = sum(p.nbytes for p in net.parameters())
    steps = 4 * 512
    assert 3 * parameters <= seen[-1] <= 3 * parameters + steps + 20 * 512


@pytest.mark.parametrize("law", [bytes_are_exact, workspaces_count, training_frees_what_it_takes])
def test_memory_is_counted(law):
    apart(law)


def the_limit_holds():
    free, total = accelerator.get_memory_info()
    assert free == total == torch.pretend.get_device_properties().total_memory == 5 * MIB
    kept = torch.ones(3 * MIB // 4, device="pretend")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        kept.neg()  # the CPU's kernel asks for too much
    told = str(caught.value)
    assert told.startswith(
        "pretend out of memory. Tried to allocate 3.00 MiB. Device pretend:0 has"
    )
    assert "a total capacity of 5.00 MiB of which 2.00 MiB is free" in told
    assert accelerator.memory_allocated() == 3 * MIB, "what failed took nothing"
    kept.mul_(2)
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2 * MIB, device="cpu").to("pretend")
    del kept
    assert torch.ones(5 * MIB // 4 - 512, device="pretend").sum() > MIB, (
        "all of it can be had again"
    )
    assert torch.pretend.memory_stats()["num_ooms"] == 2


def test_a_tensor_too_many_is_cudas_error():
    apart(the_limit_holds, settings=Pretend(memory_mib=5))


# --- crossings ---


def copies_are_counted():
    there = torch.ones(1000, device="cpu").to("pretend")
    assert pretend.copied() == pretend.Copied(to_device_bytes=4000, to_host_bytes=0, crossings=1)
    there.cpu()
    there[0].item()
    bool(there[0] > 0)
    assert pretend.copied() == pretend.Copied(to_device_bytes=4000, to_host_bytes=4005, crossings=4)
    there.clone().add_(1).copy_(there)
    assert pretend.copied().crossings == 4, "within the device nothing crosses"
    pretend.reset_copied()
    torch.ones(10, dtype=torch.float64, device="cpu").to("pretend", torch.float32)
    torch.ones(8, device="pretend").to("cpu", torch.float64)
    assert pretend.copied() == pretend.Copied(to_device_bytes=40, to_host_bytes=32, crossings=2)


def copies_take_their_time():
    began = time.perf_counter()
    there = torch.ones(500_000, device="cpu").to("pretend")  # 2 MB at 0.1 GB/s
    took = time.perf_counter() - began
    assert took >= 0.020 + 0.005
    began = time.perf_counter()
    there[0].item()
    assert time.perf_counter() - began >= 0.005
    return took


def test_copies_are_counted_exactly():
    apart(copies_are_counted)


def test_copies_take_the_stated_time():
    settings = Pretend(link_gb_per_s=0.1, link_latency_us=5000)
    assert min(apart(copies_take_their_time, settings=settings) for _ in range(3)) < 0.25


def pinned_memory_knows_it():
    pinned = torch.ones(100, device="cpu").pin_memory()
    assert pinned.is_pinned() and pinned[50:].is_pinned()
    assert not torch.ones(100, device="cpu").is_pinned()
    assert torch.equal(pinned.to("pretend", non_blocking=True).cpu(), pinned)


def events_are_times():
    first, second = (torch.pretend.Event(enable_timing=True) for _ in range(2))
    first.record()
    time.sleep(0.02)
    second.record(torch.pretend.current_stream())
    torch.pretend.synchronize()
    assert isinstance(first, torch.Event) and second.query()
    assert first.elapsed_time(second) >= 20
    with torch.pretend.stream(torch.pretend.Stream()):
        assert torch.ones(1, device="pretend").item() == 1


@pytest.mark.parametrize("law", [pinned_memory_knows_it, events_are_times])
def test_pinning_and_events(law):
    apart(law)


@pytest.mark.real
@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    "attention",
    [
        Attention(pair_ms=1.0, heads=2, sequence=128, head_dim=64, ranks=2),
        Attention(pair_ms=1.0, heads=2, sequence=128, head_dim=64, ranks=4, balanced=False),
        Attention(pair_ms=1.0, heads=2, sequence=512, head_dim=16, ranks=2, causal=False),
    ],
    ids=["an nth", "an nth of it", "scores are more"],
)
def test_a_ring_adds_to_a_devices_memory_what_is_predicted(attention, monkeypatch):
    monkeypatch.setenv(rung.VARIABLE, "pretend")
    for result in attention.run():
        added_bytes = result["pass_allocated_bytes"]
        assert added_bytes == pytest.approx(attention.pass_bytes(), rel=0.05)
