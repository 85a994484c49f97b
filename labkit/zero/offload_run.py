"""A step with DeepSpeed's offload, for real: what its ranks hold, and what each phase took and
moved."""

import time
from typing import TYPE_CHECKING, NamedTuple

from labkit.devices import place, rung
from labkit.sharding import run as sharding_run
from labkit.sharding.step import Step
from labkit.zero.offload_times import PHASES

if TYPE_CHECKING:
    from labkit.launching.job import Job


class Taken(NamedTuple):
    """What a phase of a real step took on one rank."""

    name: str
    """one of PHASES"""
    took_us: float
    """by the clock, copies included"""
    link_us: float
    """of it, copies between device and host, by the clock; 0 where they aren't counted"""
    num_bytes: float
    """what they carried, both ways together"""
    copies: float
    """how many they were"""


def start(step: Step, gb_per_s: float) -> "Job":
    """Trains as ``sharding`` does, then a step whose phases are clocked. A pretend device's copies
    last as long as a link of ``gb_per_s`` needs; any other device has a link of its own."""
    devices: str | rung.Pretend = rung.DEEPSPEED
    if place.choose(step.ranks, devices=devices).name == "pretend":
        devices = rung.Pretend(link_gb_per_s=gb_per_s)
    return sharding_run.start(step, devices=devices, clock=_Clock())


class _Clock:
    """Reads the clock and the counters of copies at the end of each phase."""

    def __init__(self) -> None:
        self._spent = {name: [0.0] * 4 for name in PHASES}
        self._before: tuple[float, ...] | None = None

    def __call__(self, phase: str) -> None:
        """What has gone by since the last call belongs to this phase; "" begins."""
        now = _readings()
        if phase:
            for index, (then, at) in enumerate(zip(self._before, now, strict=True)):
                self._spent[phase][index] += at - then
        self._before = now

    def phases(self) -> list[Taken]:
        """All of a step's, microbatches together."""
        return [Taken(name, *spent) for name, spent in self._spent.items()]


def _readings() -> tuple[float, ...]:
    """The clock; of all copies so far time, bytes and number, 0 where they aren't counted."""
    import torch

    place.synchronize()
    now_us = time.perf_counter() * 1e6
    if not hasattr(torch, "pretend"):
        return now_us, 0.0, 0.0, 0.0
    from labkit.devices import pretend

    copied = pretend.copied()
    num_bytes = copied.to_device_bytes + copied.to_host_bytes
    return now_us, copied.took_us, float(num_bytes), float(copied.crossings)
