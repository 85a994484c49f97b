"""The exercises of chapter 22: a script of the reader's own, recorded twice, a step too large to be
timed, and the network on which two layouts take equally long."""

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from math import inf
from pathlib import Path

from labkit.check import exercise, hint, over_budget, status, wrong
from labkit.profiling.recording.record_run import Record
from labkit.units import format_us
from labkit.words import say

__all__ = ["crossing", "forecast", "hint", "script", "status", "yours"]

MACHINES = ((5.0, 2.0, 1.0), (60.0, 1.0, 0.5), (2.0, 6.0, 0.2))
"""made up: milliseconds that a step takes by itself, for each layer, and for each sequence in a
layer"""
ASKED = ((48, 16), (24, 64))
"""(layers, sequences) of the steps that are asked for"""
MOST_TIMED = 4
MOST_LAYERS, MOST_SEQUENCES = 4, 8
NOISE = 0.01
"""of a clock, as a share of what it reads"""
OFF = 0.1
"""as a share: a forecast nearer than this is right"""
REACHED = 0.5
"""of the network cards' bandwidth, what collectives reach: a plan's constant"""
NETWORKS = (
    (8, (11.6, 0.11, 0.09), (17.4, 0.16, 0.0)),
    (8, (4.0, 0.24, 0.10), (6.0, 0.25, 0.02)),
    (1, (1.2, 0.11, 0.08), (1.8, 0.16, 0.01)),
    (4, (24.0, 1.0, 0.3), (36.0, 1.1, 0.02)),
)
"""made up: cards of a machine, and of copies and of shards what leaves it in a step in GB, the
seconds of computing that can hide that, and the other seconds. In the second and the last, all
messages of the copies are hidden where both take equally long"""
FASTEST_GB = 1e4
"""by the second: a card faster than any here"""
NEAR = 0.02
"""as a share: a card's speed nearer than this is right"""
SCRIPT = """\
import time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

class Disk(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.001)  # waits for a disk
        return super().__getitem__(index)

dist.init_process_group()
torch.manual_seed(0)
net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(32)))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = Disk(torch.randn(160, 64))
for (x,) in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    for each in net.parameters():
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()
    optimizer.step()
dist.destroy_process_group()
"""
"""What ``script`` writes. It seems to wait for a disk, and waits for 64 small messages."""


@exercise
def forecast(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(clock, layers, sequences)`` is how many milliseconds a step of so many layers and
    sequences takes, too large to be tried.

    ``clock(layers, sequences)`` times one of at most 4 layers and 8 sequences, and returns its
    milliseconds: something for the step, for each layer, and for each sequence in each layer, and
    up to 1 % that a clock adds or leaves out. The machines are made up. Budget: 4 steps timed.
    """
    for machine in MACHINES:
        for layers, sequences in ASKED:
            clock = _Clock(machine)
            told = answer(clock, layers, sequences)
            right = _step_ms(machine, layers, sequences)
            case = say("{layers} layers, {sequences} sequences", layers=layers, sequences=sequences)
            if not abs(float(told) - right) <= OFF * right:  # not a number is wrong as well
                yield wrong(
                    "{case}: {told:.1f} ms foretold, the step takes {right:.1f}; timed: {timed}",
                    case=case,
                    told=float(told),
                    right=right,
                    timed=", ".join(clock.told) or "-",
                )
                return
            if len(clock.told) > MOST_TIMED:
                yield over_budget(
                    "{case}: {trials} steps timed; {most} are enough",
                    case=case,
                    trials=len(clock.told),
                    most=MOST_TIMED,
                )
                return


@exercise
def crossing(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(copies, shards, cards)`` is the GB/s of a network card at which both layouts take
    equally long, ``cards`` of them in a machine.

    A layout is {"sent_gb": what leaves a machine in a step, "hiding_s": computing that can hide it,
    "rest_s": the rest}. A step is the rest and the longer of computing and messages, and messages
    reach half of the cards' bandwidth. Slower cards favour copies, faster ones shards.
    """
    for cards, *sizes in NETWORKS:
        copies, shards = (_way(each) for each in sizes)
        told_gb = float(answer(dict(copies), dict(shards), cards))
        right_gb = _crossing_gb(copies, shards, cards)
        if not abs(told_gb - right_gb) <= NEAR * right_gb:  # not a number is wrong as well
            took_s = [_network_s(each, cards, told_gb) for each in (copies, shards)]
            yield wrong(
                "{cards} cards, copies {copies}, shards {shards}: at {told:.3g} GB/s copies take "
                "{copies_s:.3f} s and shards {shards_s:.3f} s",
                cards=cards,
                copies=copies,
                shards=shards,
                told=told_gb,
                copies_s=took_s[0],
                shards_s=took_s[1],
            )
            return


@exercise(limit_s=120.0)
def yours(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer()`` is (part, before, after): the longest part of a script's step, and its records
    before and after a change that shortens it.

    The part is a key of ``before.parts_us()``; in the second record it and the whole step are
    shorter. Nothing runs here but what the answer records.
    """
    said = answer()
    if not isinstance(said, (tuple, list)) or len(said) != 3:
        yield wrong("the answer is (part, before, after); got {said!r}", said=said)
        return
    part, before, after = said
    for each in (before, after):
        if not isinstance(each, Record) or not each.steps:
            yield wrong("before and after are what record(...) gives of a script with steps")
            return
    parts_us = before.parts_us()
    longest = max(parts_us, key=lambda name: parts_us[name])
    if part != longest:
        yield wrong(
            "you say {part}; the longest part is {longest}, {took}",
            part=part,
            longest=longest,
            took=format_us(parts_us[longest]),
        )
        return
    pairs = {
        say("the step"): (before.step_us, after.step_us),
        part: (parts_us[part], after.parts_us().get(part, 0.0)),
    }
    for name, (was_us, is_us) in pairs.items():
        if is_us >= was_us:
            yield wrong(
                "{name}: {was} before, {now} after",
                name=name,
                was=format_us(was_us),
                now=format_us(is_us),
            )
            return


def script() -> Path:
    """Writes a script for two ranks whose longest wait isn't what it seems, to a new folder; its
    path. It is what ``yours`` is about, where there is no script of one's own."""
    path = Path(tempfile.mkdtemp(prefix="labkit-script-")) / "train.py"
    path.write_text(SCRIPT)
    return path


class _Clock:
    """What an answer may time, and what it read."""

    def __init__(self, machine: tuple[float, float, float]) -> None:
        self.machine = machine
        self.told: list[str] = []

    def __call__(self, layers: int, sequences: int) -> float:
        if layers not in range(1, MOST_LAYERS + 1) or sequences not in range(1, MOST_SEQUENCES + 1):
            raise ValueError(
                f"a step that can be tried has 1 to {MOST_LAYERS} layers and 1 to "
                f"{MOST_SEQUENCES} sequences; got {layers!r} and {sequences!r}"
            )
        dice = random.Random(f"{self.machine} {layers} {sequences} {len(self.told)}")
        noise = 1 + NOISE * dice.uniform(-1, 1)
        took_ms = noise * _step_ms(self.machine, layers, sequences)
        self.told.append(f"({layers}, {sequences}): {took_ms:.1f} ms")
        return took_ms


def _step_ms(machine: tuple[float, float, float], layers: int, sequences: int) -> float:
    """A step's time on a machine that is made up."""
    step, layer, sequence = machine
    return step + layers * (layer + sequence * sequences)


def _way(sizes: tuple[float, float, float]) -> dict[str, float]:
    """A layout, as an answer is given it."""
    return dict(zip(("sent_gb", "hiding_s", "rest_s"), sizes, strict=True))


def _network_s(way: Mapping[str, float], cards: int, gb_per_s: float) -> float:
    """A step of a layout on network cards of this speed; endless where nothing is sent."""
    if not gb_per_s > 0:
        return inf
    messages_s = way["sent_gb"] / (REACHED * cards * gb_per_s)
    return max(messages_s, way["hiding_s"]) + way["rest_s"]


def _crossing_gb(copies: Mapping[str, float], shards: Mapping[str, float], cards: int) -> float:
    """Where shards begin to win, by halving in logarithms."""
    slow = 1 / FASTEST_GB
    fast = FASTEST_GB
    for _ in range(60):
        middle = (slow * fast) ** 0.5
        if _network_s(copies, cards, middle) < _network_s(shards, cards, middle):
            slow = middle
        else:
            fast = middle
    return slow
