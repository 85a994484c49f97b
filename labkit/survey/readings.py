"""The numbers of a trial: what theory predicts, and what its run measured, side by side."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from labkit.collectives import network, published
from labkit.pipeline.schedules import TITLES
from labkit.survey.summary import Number
from labkit.survey.trials import Trial
from labkit.timeline import bubble, hidden_comm, step_us
from labkit.units import format_bytes
from labkit.words import to_say

OVERLAP = {True: to_say("overlap"), False: to_say("no overlap")}
TRAINING = to_say("one training step")
ALPHA = to_say("the line's latency")
BANDWIDTH = to_say("the line's bandwidth")


def numbers(trial: Trial, run: Any) -> list[Number]:
    """What a run of a trial gives, measured and predicted; ``run`` is a Run."""
    found = []
    about = {"part": trial.part, "ranks": trial.ranks, "rung": run.devices}
    for reading in _OF_PART[_kind(trial)](trial, run):
        for origin in ("predicted", "measured"):
            value = getattr(reading, origin)
            if value is not None:
                own = reading._asdict()
                del own["predicted"], own["measured"]
                found.append(Number(**about, **own, value=float(value), origin=origin))
    return found


def _kind(trial: Trial) -> str:
    return "sharding" if "engine" in trial.fields else trial.part


class Reading(NamedTuple):
    """A prediction and a measurement of one thing; None where there is none."""

    group: str
    case: tuple[str, ...]
    what: str
    unit: str
    predicted: float | None
    measured: float | None
    headline: bool = False
    at: float | None = None


def _device(trial: Trial, run: Any) -> Iterator[Reading]:
    """Throughput is 2 n^3 operations, by formula, over the time that a clock read."""
    found = run[0]
    last = {each["dtype"]: each["side"] for each in found["matmul"]}
    for each in found["matmul"]:
        case = (each["dtype"], f"n = {each['side']}")
        rate = 2 * each["side"] ** 3 / each["time_us"] / 1e6
        yield Reading("matmul", case, "time", "us", None, each["time_us"])
        is_last = last[each["dtype"]] == each["side"]
        yield Reading("matmul", case, "throughput", "tflop_per_s", None, rate, is_last)
    most = max(each["num_bytes"] for each in found["copies"])
    for each in found["copies"]:
        case = (*each["way"], format_bytes(each["num_bytes"]))
        rate = network.algbw(each["num_bytes"], each["time_us"])
        is_last = each["num_bytes"] == most
        yield Reading("copy", case, "time", "us", None, each["time_us"])
        yield Reading("copy", case, "speed", "gb_per_s", None, rate, is_last)


def _collectives(trial: Trial, run: Any) -> Iterator[Reading]:
    """Predicted is the line alpha + S / bandwidth through the measured times."""
    primitive = trial.fields["primitive"]
    sizes = run[0]["num_bytes"]
    times_us = np.median(np.max([each["times_us"] for each in run], axis=0), axis=1)
    line = None
    if len(sizes) > 1:
        line = network.fit(primitive, trial.ranks, sizes, times_us)
    for size, time_us in zip(sizes, times_us.tolist(), strict=True):
        case = (format_bytes(size),)
        is_last = size == sizes[-1]
        line_us = line.us(size) if line else None
        rates = [
            each and network.busbw(primitive, trial.ranks, size, each)
            for each in (line_us, time_us)
        ]
        yield Reading(primitive, case, "time", "us", line_us, time_us, False, size)
        yield Reading(primitive, case, "bus_bandwidth", "gb_per_s", *rates, is_last, size)
    if line:
        yield Reading(primitive, (ALPHA,), "time", "us", line.alpha_us, None)
    if line and np.isfinite(line.bandwidth_gb_per_s):
        rate = line.bandwidth_gb_per_s * network.busbw_factor(primitive, trial.ranks)
        yield Reading(primitive, (BANDWIDTH,), "bus_bandwidth", "gb_per_s", rate, None)


def _data_parallel(trial: Trial, run: Any) -> Iterator[Reading]:
    step = trial.experiment()
    predicted = step.predict()
    measured = run.timeline()
    case = (OVERLAP[step.overlap], f"bucket_mb = {step.bucket_mb:g}")
    taken_us = max(float(np.median(each["step_us"])) for each in run)
    yield Reading("step", case, "step", "us", step_us(predicted), taken_us, step.overlap)
    hidden = (hidden_comm(predicted), hidden_comm(measured))
    yield Reading("step", case, "hidden", "share", *hidden)


def _sharding(trial: Trial, run: Any) -> Iterator[Reading]:
    """Bytes of the rank that holds most. The allocator counts what torch asked of the device."""
    step = trial.experiment()
    case = (TRAINING, f"dim = {step.dim}") if trial.part == "device" else (step.engine,)
    held = (max(step.predict().rank_bytes), max(step.measured(run).rank_bytes))
    yield Reading("memory", case, "held", "bytes", *held, True)
    peaks = (step.footprint().peak_bytes, max(each["footprint"].peak_bytes for each in run))
    yield Reading("memory", case, "peak", "bytes", *peaks)
    allocated = [each["allocated_bytes"] for each in run]
    if None not in allocated:
        yield Reading("memory", case, "allocated", "bytes", None, max(allocated))
    if trial.ranks > 1:
        payload = step.payload()
        counted = [run[0]["payload_bytes"].get(name, 0) for name in payload]
        yield Reading("traffic", case, "payload", "bytes", sum(payload.values()), sum(counted))
    taken_us = max(each["step_us"] for each in run)
    yield Reading("traffic", case, "step", "us", None, taken_us)


def _pipeline(trial: Trial, run: Any) -> Iterator[Reading]:
    step = trial.experiment()
    predicted = step.predict()
    measured = run.timeline()
    case = (TITLES[step.schedule], f"m = {step.microbatches}")
    is_usual = step.microbatches == 2 * step.ranks
    idle = (bubble(predicted), bubble(measured))
    yield Reading("bubble", case, "bubble", "share", *idle, is_usual, step.microbatches)
    yield Reading("bubble", case, "step", "us", step_us(predicted), step_us(measured))


_OF_PART = {
    "device": _device,
    "collectives": _collectives,
    "data_parallel": _data_parallel,
    "sharding": _sharding,
    "pipeline": _pipeline,
}


def published_numbers(machine: str) -> list[Number]:
    """Bus bandwidths of NCCL's all-reduce that others measured, as numbers of a survey."""
    sizes, times_us = published.all_reduce_times(machine)
    num_gpus = published.num_gpus(machine)
    found = []
    for size, time_us in zip(sizes, times_us, strict=True):
        found.append(
            Number(
                part="collectives",
                group="all_reduce",
                case=(format_bytes(size),),
                what="bus_bandwidth",
                unit="gb_per_s",
                value=network.busbw("all_reduce", num_gpus, size, time_us),
                origin="recorded",
                ranks=num_gpus,
                rung="cuda",
            )
        )
    return found
