"""The exercises of chapter 22: a step too large to be timed, a setting that is found by runs, and a
script of the reader's own, recorded twice."""

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from labkit.check import exercise, hint, over_budget, status, wrong
from labkit.profiling.recording.record_run import Record
from labkit.units import format_us
from labkit.words import say

__all__ = ["forecast", "hint", "script", "status", "tune", "yours"]

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
BATCH = 16
MEMORIES = ((450_000, 3.0, 3.0), (450_000, 3.0, 24.0), (2_000_000, 3.0, 3.0))
"""(bytes, milliseconds of a sample, of a microbatch besides)"""
MOST_TRIALS = 6
NEAR = 1.12
"""times the fastest step that counts as fast"""
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
def tune(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(trial, batch)`` is (microbatch, recompute): the fastest way to take ``batch``
    samples a step on each rank.

    ``trial(microbatch, recompute)`` takes such a step on two real ranks, accumulating over
    batch / microbatch microbatches, and returns its milliseconds; None where it does not fit into
    their memory. Recomputation keeps less and computes a third more; a microbatch costs something
    by itself; how much, you are not told, and it differs from case to case. Budget: 6 trials.
    """
    for memory_bytes, sample_ms, call_ms in MEMORIES:
        stated = {"sample_ms": sample_ms, "call_ms": call_ms}
        trial = _Trials(memory_bytes, stated)
        microbatch, recompute = answer(trial, BATCH)
        chosen = _setting(microbatch, bool(recompute), stated)
        case = say("memory of {memory:,} bytes", memory=memory_bytes)
        yield from _judged(case, chosen, memory_bytes, trial.tried)
        if len(trial.tried) > MOST_TRIALS:
            yield over_budget(
                "{case}: {trials} trials; {most} are enough",
                case=case,
                trials=len(trial.tried),
                most=MOST_TRIALS,
            )


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


class _Trials:
    """What an answer may call, and what came of it."""

    def __init__(self, memory_bytes: int, stated: dict[str, float]) -> None:
        self.memory_bytes = memory_bytes
        self.stated = stated
        self.tried: dict[tuple[int, bool], float | None] = {}

    def __call__(self, microbatch: int, recompute: bool = False) -> float | None:
        from labkit.scaling import tuning_run

        setting = _setting(microbatch, recompute, self.stated)
        found = tuning_run.trial(setting, self.memory_bytes)["step_us"]
        took_ms = None if found is None else found / 1e3
        self.tried[microbatch, recompute] = took_ms
        return took_ms


def _setting(microbatch: int, recompute: bool, stated: dict[str, float]) -> Any:
    """What is to be tried. Raises ValueError for a microbatch that does not divide the batch."""
    from labkit.scaling.tuning_run import Setting

    if microbatch not in range(1, BATCH + 1) or BATCH % microbatch:
        raise ValueError(f"a microbatch divides the batch of {BATCH}; got {microbatch!r}")
    accumulate = BATCH // microbatch
    return Setting(microbatch=microbatch, accumulate=accumulate, recompute=recompute, **stated)


def _judged(case: str, chosen: Any, memory_bytes: int, tried: dict) -> Iterator[tuple[str, str]]:
    """What is wrong with a choice: it does not fit, or another that fits is faster by its stated
    times, and the trials did not say otherwise. No clock is read here."""
    if not _fits(chosen, memory_bytes, tried):
        yield wrong(
            "{case}: microbatch {mine}{mine_again} does not fit",
            case=case,
            mine=chosen.microbatch,
            mine_again=_again(chosen.recompute),
        )
        return
    from labkit.scaling import tuning_run

    stated = {"sample_ms": chosen.sample_ms, "call_ms": chosen.call_ms}
    every = tuning_run.settings(BATCH, **stated)
    for each in sorted(every, key=lambda one: one.step_us):
        if each.step_us * NEAR >= chosen.step_us:
            break  # all that follow are no faster
        if _fits(each, memory_bytes, tried) and not _shown_faster(chosen, each, tried):
            yield wrong(
                "{case}: you chose microbatch {mine}{mine_again}, {took:.0f} ms a step by its "
                "stated times; microbatch {other}{other_again} fits and takes {faster:.0f} ms. "
                "Tried: {tried}",
                case=case,
                mine=chosen.microbatch,
                mine_again=_again(chosen.recompute),
                took=chosen.step_us / 1e3,
                other=each.microbatch,
                other_again=_again(each.recompute),
                faster=each.step_us / 1e3,
                tried=_listed(tried),
            )
            return


def _fits(setting: Any, memory_bytes: int, tried: dict) -> bool:
    """Whether what autograd keeps fits: as a trial showed it, or counted now."""
    from labkit.scaling import tuning_run

    key = setting.microbatch, setting.recompute
    if key not in tried:
        tried = {key: tuning_run.trial(setting, memory_bytes)["step_us"]}
    return tried[key] is not None


def _shown_faster(chosen: Any, other: Any, tried: dict) -> bool:
    """Whether the trials showed the chosen setting to be no slower than another: on a busy machine
    a clock may say so, and who believes it is not wrong."""
    mine = tried.get((chosen.microbatch, chosen.recompute))
    its = tried.get((other.microbatch, other.recompute))
    return mine is not None and its is not None and mine <= its


def _again(recompute: bool) -> str:
    return say(" with recomputation") if recompute else ""


def _listed(tried: dict) -> str:
    told = []
    for (microbatch, recompute), took_ms in tried.items():
        took = say("does not fit") if took_ms is None else f"{took_ms:.0f} ms"
        told.append(f"{microbatch}{_again(recompute)}: {took}")
    return "; ".join(told) or "-"
