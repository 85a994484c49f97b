"""What does a pretend device cost, and does it compute the same? A training step on it over the
CPU's.

    python benchmarks/pretend.py [--json] [--rounds 30]

The small transformer (4 layers, width 64, 64 tokens) with AdamW, one thread, in one process: both
devices take a step in turn, so that a busy minute hits both. "ratio" is the median of the rounds'
ratios; "difference" the largest between two losses of the same step. "counted_mib" is the peak that
the device's allocator counts in a step, "watched_mib" that of ``labkit.measure.memory``, which adds
up the storages that torch's operators make: it sees neither workspaces nor blocks of 512 bytes. The
rows after that are single operations on 64 x 64 numbers, in microseconds of the process's CPU time.
Last: of ten programs that mix up two devices (``labkit.devices.mistakes``), how many a pretend
device refuses in CUDA's words, on two ranks. Which launches are held to the device law, and which
are excused with what reason, stands in notebooks/README.md ("Any device").
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from report import tell

import labkit as lab
from labkit import model
from labkit.devices import mistakes, pretend
from labkit.devices.rung import Pretend
from labkit.measure import memory

DEVICES = ("cpu", "pretend")
BATCHES = (1, 8, 32)
WARMUP = 3
CALLS = 2000
OPERATIONS = {
    "add": lambda x: x + x,
    "mm": lambda x: x @ x,
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (64,)),
    "view": lambda x: x.view(-1),
    "item": lambda x: x[0, 0].item(),
    "foreach of 10": lambda x: torch._foreach_add([x] * 10, 1.0),
}


def training(device: str, batch: int) -> tuple[Callable[[], float], list[torch.Tensor]]:
    """A training step, which returns its loss; and what lives on the device between two steps."""
    torch.manual_seed(0)
    net = model.Transformer(4, 64, 4, max_len=64).to(device)
    update = torch.optim.AdamW(net.parameters(), lr=1e-2)
    tokens, targets = (each.to(device) for each in model.story_tokens(batch, 64, seed=0))

    def step() -> float:
        loss = model.loss(net(tokens), targets)
        loss.backward()
        update.step()
        update.zero_grad()
        return loss.item()

    for _ in range(WARMUP):
        step()
    live = [*net.parameters(), tokens, targets]
    for state in update.state.values():
        live += [each for each in state.values() if each.device.type == device]
    return step, live


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """(seconds, loss) of one step."""
    began = time.perf_counter()
    loss = step()
    return time.perf_counter() - began, loss


def peaks_mib(step: Callable[[], float], live: list[torch.Tensor]) -> tuple[float, float]:
    """(counted, watched): the most MiB of one step on the pretend device."""
    torch.accelerator.reset_peak_memory_stats()
    step()
    counted = torch.accelerator.max_memory_allocated()
    with memory.watch() as watched:
        for tensor in live:
            watched.claim("parameters", tensor)
        watched.mark("step")
        step()
    return counted / 2**20, watched.footprint().peak_bytes / 2**20


def step_row(batch: int, num_rounds: int) -> dict:
    """The step at one size of batch, on both devices in turn."""
    steps = {device: training(device, batch) for device in DEVICES}
    rounds = []
    for _ in range(num_rounds):
        rounds.append([timed(steps[device][0]) for device in DEVICES])
    counted, watched = peaks_mib(*steps["pretend"])
    return {
        "what": f"step, batch {batch}",
        "cpu_us": round(1e6 * statistics.median(cpu for (cpu, _), _ in rounds)),
        "pretend_us": round(1e6 * statistics.median(ours for _, (ours, _) in rounds)),
        "ratio": round(statistics.median(ours / cpu for (cpu, _), (ours, _) in rounds), 3),
        "difference": max(abs(ours - cpu) for (_, cpu), (_, ours) in rounds),
        "counted_mib": round(counted, 2),
        "watched_mib": round(watched, 2),
        "rounds": num_rounds,
    }


def microseconds(operation: Callable[[torch.Tensor], object], device: str) -> float:
    """One call of an operation, in CPU time: the least of five averages."""
    x = torch.ones(64, 64, device=device)
    averages = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(CALLS // 5):
            operation(x)
        averages.append((time.process_time() - began) / (CALLS // 5))
    return 1e6 * min(averages)


def rows(num_rounds: int) -> Iterator[dict]:
    """Steps, then operations."""
    for batch in BATCHES:
        yield step_row(batch, num_rounds)
    for name, operation in OPERATIONS.items():
        cpu_us, pretend_us = (microseconds(operation, device) for device in DEVICES)
        yield {
            "what": name,
            "cpu_us": round(cpu_us, 2),
            "pretend_us": round(pretend_us, 2),
            "ratio": round(pretend_us / cpu_us, 2),
        }


def mistakes_row() -> dict:
    """How many of the planted mistakes both ranks refuse in CUDA's words."""
    run = lab.launch(mistakes.refusals, ranks=2, devices="pretend")
    refused = 0
    for mistake, words in mistakes.MISTAKES.items():
        wanted = words.format(device="pretend")
        refused += all(wanted in said[mistake.__name__] for said in run.results)
    return {"what": "planted mistakes", "refused": refused, "of": len(mistakes.MISTAKES)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    mistaken = mistakes_row()
    pretend.install(Pretend())
    tell(itertools.chain(rows(options.rounds), [mistaken]), options.json)


if __name__ == "__main__":
    main()
