"""The floating-point operations of a recorded script, from the shapes of its matrix products; and
the most that this machine does, measured by one."""

import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.launching.launcher import launch
from labkit.profiling.recording.window import step_ends

SIZE = 1024
"""of the square matrices that the peak is measured with"""
TRIES = 12
UNKNOWN = (
    "convolution",
    "scaled_dot_product",
    "_flash_attention",
    "mkldnn_linear",
    "_grouped_mm",
    "lstm",
    "gru",
)
"""parts of operators' names whose operations are not counted here"""


class Flops(NamedTuple):
    """What a rank's matrix products need."""

    total: float
    """two for each multiplication and addition, in the window"""
    unknown: str
    """an operator that would have to be counted and is not; "" where there is none"""


def counted(path: Path, first: int, steps: int) -> Flops:
    """The operations in a rank's recording: ``steps`` steps, from the end of the optimizer's step
    with the number ``first`` on."""
    events = json.loads(path.read_bytes())["traceEvents"]
    marks = [
        (event["name"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and "dur" in event
    ]
    ends = step_ends(marks)
    total = 0.0
    unknown = ""
    for event in events:
        if event.get("cat") != "cpu_op" or not ends[first] <= event["ts"] <= ends[first + steps]:
            continue
        name = event["name"].removeprefix("aten::")
        if any(part in name for part in UNKNOWN):
            unknown = unknown or name
        total += _products(name, event.get("args", {}).get("Input Dims", []))
    return Flops(total, unknown)


def _products(name: str, shapes: Sequence) -> float:
    """Of one operator: 2 m k n for the product of [m, k] and [k, n], for each of a batch."""
    if name in ("mm", "bmm"):
        left, right = shapes[:2]
    elif name in ("addmm", "baddbmm", "_addmm_activation"):
        left, right = shapes[1:3]
    else:
        return 0.0
    products = 1.0
    for size in left:
        products *= size
    return 2.0 * products * right[-1]


@functools.lru_cache(maxsize=8)
def peak_flops(ranks: int) -> float:
    """Operations per second of all ranks together while each multiplies matrices of float32, the
    best of twelve on each. It is read once for a number of ranks."""
    return sum(launch(_multiply, ranks=ranks))


def _multiply() -> float:
    """A rank's best."""
    import torch
    from torch import distributed as dist

    from labkit.devices.place import synchronize

    left = torch.randn(SIZE, SIZE)
    synchronize()
    dist.barrier()
    best_s = float("inf")
    for _ in range(TRIES):
        start_s = time.perf_counter()
        left @ left
        synchronize()
        best_s = min(best_s, time.perf_counter() - start_s)
    return 2.0 * SIZE**3 / best_s
