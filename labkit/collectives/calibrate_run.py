"""What collectives cost on this machine: swept over sizes and numbers of ranks, fitted, kept for
later predictions.

    cost = calibrate_run.links((2, 4))  # measured once (1 or 2 s each), then read from the cache
    cost[4].us(1e6)                     # an all-reduce of 1 MB on 4 ranks, in microseconds

A line T(S) = alpha + S / bandwidth, one for each primitive and number of ranks: on few cores alpha
grows faster than any count of steps, because ranks take turns. The line follows the times within
some 10 %; it lies above those of middle sizes (buffers that fit a core's cache go faster than the
long ones) and below those beside them.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labkit.collectives import network
from labkit.collectives.algorithms import ALGORITHMS
from labkit.devices.place import choose, synchronize
from labkit.machine import resources
from labkit.units import MOST_RANKS, check_real, check_whole, check_word

SIZES = tuple(round(1000 * 1.4**step) for step in range(28))
"""1 kB to 8.8 MB, in bytes"""
QUARTER = SIZES[3::4]
"""what ``links`` measures and fits: every fourth size, the largest among them"""


@dataclass(frozen=True, kw_only=True)
class Point:
    """How long a collective took."""

    primitive: str
    """which collective"""
    num_ranks: int
    """on how many ranks"""
    num_bytes: int
    """its size, as nccl-tests counts it (see ``Plan.chunk_bytes``)"""
    time_us: float
    """the slowest rank's time, in microseconds, the median over launches and calls"""
    notes: tuple[str, ...] = ()
    """what must be said with it: what carried the messages, and between which devices"""


def sweep(
    primitive: str = "all_reduce",
    ranks: Iterable[int] = (2, 4),
    sizes: Sequence[float] = SIZES,
    *,
    num_launches: int = 5,
    num_repeats: int = 4,
    timeout_s: float = 60.0,
) -> list[Point]:
    """Times torch.distributed's collective on real ranks, each call after a barrier, several times
    in several launches.

    Launches differ in alpha by a third: it depends on the cores that the system gives to their
    threads. Sizes are taken in turn, up and down, so that a busy moment hits all of them, and
    rounded to whole float32 for every rank.
    """
    from labkit.launching import launcher

    ranks = [*ranks]
    check_word(primitive, ALGORITHMS, "a primitive")
    check_real(0, 1e12, **{f"size {number}": size for number, size in enumerate(sizes)})
    counts = {f"number {number} of ranks": each for number, each in enumerate(ranks)}
    check_whole(1, MOST_RANKS, **counts)
    check_whole(num_launches=num_launches, num_repeats=num_repeats)
    points = []
    for num_ranks in ranks:
        lengths = [num_ranks * max(1, round(size / 4 / num_ranks)) for size in sizes]
        runs = []  # [launch][rank][repeat][size]
        for _ in range(num_launches):
            run = launcher.launch(
                _time, primitive, lengths, num_repeats, ranks=num_ranks, timeout_s=timeout_s
            )
            runs.append(list(run))
        slowest_us = np.max(runs, axis=1)
        for length, time_us in zip(lengths, np.median(slowest_us, axis=(0, 1)), strict=True):
            points.append(
                Point(
                    primitive=primitive,
                    num_ranks=num_ranks,
                    num_bytes=4 * length,
                    time_us=float(time_us),
                    notes=run.notes,
                )
            )
    return points


def _time(primitive: str, lengths: Sequence[int], num_repeats: int) -> list[list[float]]:
    """A rank: microseconds of each call, [repeat][size]. The first round connects the ranks and is
    not told."""
    import torch
    import torch.distributed as dist

    from labkit.collectives import run

    parts = dist.get_world_size() if primitive == "all_to_all" else 1
    buffers = [torch.zeros(parts * length) for length in lengths]
    rounds = []
    for number in range(num_repeats + 1):
        places = range(len(buffers))
        if number % 2 == 1:  # up and down: none follows a far larger one
            places = reversed(places)
        times_us = {}
        for index in places:
            dist.barrier()
            start_s = time.perf_counter()
            run.library(primitive, buffers[index])
            synchronize()
            times_us[index] = 1e6 * (time.perf_counter() - start_s)
        rounds.append([times_us[place] for place in range(len(buffers))])
    return rounds[1:]


def fit(points: Iterable[Point]) -> network.Fit:
    """The line through points of one primitive and number of ranks. Raises ValueError for fewer
    than two sizes."""
    points = list(points)
    return network.fit(
        points[0].primitive if points else "",
        points[0].num_ranks if points else 0,
        [point.num_bytes for point in points],
        [point.time_us for point in points],
    )


def links(
    ranks: Iterable[int] = (2, 4), primitive: str = "all_reduce", fresh: bool = False
) -> dict[int, network.Fit]:
    """Number of ranks -> the line through a quarter of the sizes; ``.link()`` of it is the link
    that a ring would need.

    Measured where the cache folder (LABKIT_CACHE, or the system's own) holds none of this machine,
    or if ``fresh``.
    """
    lines = {}
    for num_ranks in ranks:
        points = [] if fresh else stored(primitive, num_ranks)
        lines[num_ranks] = fit(points or _measured(primitive, num_ranks))
    return lines


def stored(primitive: str, num_ranks: int) -> list[Point]:
    """The points of this machine in the cache folder, whose file has their date. Empty if there are
    none to be used."""
    try:
        kept = json.loads(_file(primitive, num_ranks).read_text(encoding="utf-8"))
        if kept["machine"] != _place(num_ranks):
            return []
        points = [
            Point(**{**point, "notes": tuple(point.get("notes", ()))}) for point in kept["points"]
        ]
        fit(points)
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return points


def _measured(primitive: str, num_ranks: int) -> list[Point]:
    """Sweeps a quarter of the sizes, and writes the points with date and machine in one move."""
    points = sweep(primitive, [num_ranks], QUARTER)
    kept = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": _place(num_ranks),
        "points": [vars(point) for point in points],
    }
    file = _file(primitive, num_ranks)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    draft.replace(file)
    return points


def _place(num_ranks: int) -> dict[str, str | int]:
    """The machine and what ranks stand on there: what a measurement holds for."""
    chosen = choose(num_ranks)
    return {**resources.summary(), "devices": chosen.name}


def _file(primitive: str, num_ranks: int) -> Path:
    return _cache() / "calibration" / f"{primitive}-{num_ranks}.json"


def _cache() -> Path:
    """Where what was measured is kept: LABKIT_CACHE, or the system's folder for such things."""
    if own := os.environ.get("LABKIT_CACHE"):
        return Path(own)
    if system := os.environ.get("XDG_CACHE_HOME"):
        return Path(system) / "labkit"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "labkit"
    return Path.home() / ".cache" / "labkit"
