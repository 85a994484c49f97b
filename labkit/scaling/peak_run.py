"""A device's own peak, and which share of it a training step reaches, eager and compiled.

    lab.launch(scaling.utilization, ranks=1)[0]

The peak is the best of some matrix products: what this device, with the threads that the rank has,
can do when it does nothing else. A datasheet's peak is higher, and no CPU has one that holds.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from labkit import model as models
from labkit.devices.place import has_accelerator, synchronize
from labkit.scaling.laws import mfu, training_flops
from labkit.units import check_whole
from labkit.words import say

SIDES = (256, 512, 1024)
ROUNDS = 5
NUM_STEPS = 5
MOST_SIDE = 16384


def peak(side: int = 1024) -> float:
    """FLOP/s of this rank's device: the best of square fp32 products with sides up to ``side``, of
    five each. A product of n x n has 2 n^3 operations. Raises ValueError for a side under 1."""
    check_whole(1, MOST_SIDE, side=side)
    best = 0.0
    for each in sorted({*(known for known in SIDES if known < side), side}):
        left = torch.randn(each, each)
        took_s = min(_seconds(partial(torch.mm, left, left), ROUNDS))
        best = max(best, 2 * each**3 / took_s)
    return best


def utilization(
    *,
    layers: int = 4,
    hidden: int = 128,
    sequence: int = 64,
    batch: int = 8,
    compiled: bool = False,
    num_steps: int = NUM_STEPS,
) -> dict[str, Any]:
    """The MFU of a training step of the small transformer on this rank alone.

    Returns
    -------
    dict: peak_flops_per_s (measured here), step_us (the median step, forward, backward and SGD),
    flops (of a step, by formula), mfu_share; and if ``compiled`` compile_s (what torch.compile took
    before its first step), compiled_step_us, compiled_mfu_share; or why_not, in words, where it
    can't be compiled.
    """
    check_whole(1, 64, layers=layers)
    check_whole(4, 4096, hidden=hidden)
    check_whole(1, 4096, sequence=sequence, batch=batch, num_steps=num_steps)
    torch.manual_seed(0)
    model = models.Transformer(layers, hidden, max_len=sequence)
    data = models.story_tokens(batch, sequence)
    step = _step_of(model, data)
    peak_flops_per_s = peak()
    weights = sum(each.numel() for each in model.parameters())
    weights -= sum(each.numel() for each in model.layers[0].parameters())  # looked up, no products
    shape = {"layers": layers, "hidden": hidden, "sequence": sequence}
    flops = training_flops(weights, batch * sequence, **shape)
    step_us = _median_us(step, num_steps)
    found = {
        "peak_flops_per_s": peak_flops_per_s,
        "step_us": step_us,
        "flops": flops,
        "mfu_share": mfu(flops, step_us, peak_flops_per_s),
    }
    return found | (_compiled(model, data, found, num_steps) if compiled else {})


def obstacle() -> str | None:
    """Why torch.compile has nothing to compile for this rank's device, in words; None where it
    has."""
    if torch.cuda.is_available() or not has_accelerator():
        return None
    return say("torch.compile knows no code for a pretend device: take a GPU or the plain CPU")


def _compiled(model: torch.nn.Module, data: tuple, eager: dict, num_steps: int) -> dict[str, Any]:
    if why := obstacle():
        return {"why_not": why}
    from torch._inductor import config

    step = _step_of(torch.compile(model), data)
    begin_s = time.perf_counter()
    try:
        with config.patch(compile_threads=1):  # no processes of its own
            step()
    except Exception as error:  # no compiler, or one that fails: said, not hidden
        told = f"{type(error).__name__}: {error}".partition("\n")[0]
        return {"why_not": say("torch.compile failed here: {error}", error=told)}
    compile_s = time.perf_counter() - begin_s
    step_us = _median_us(step, num_steps)
    return {
        "compile_s": compile_s,
        "compiled_step_us": step_us,
        "compiled_mfu_share": mfu(eager["flops"], step_us, eager["peak_flops_per_s"]),
    }


def _step_of(model: torch.nn.Module, data: tuple) -> Callable[[], None]:
    """A training step as a function."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens, targets = data

    def step() -> None:
        optimizer.zero_grad()
        models.loss(model(tokens), targets).backward()
        optimizer.step()

    return step


def _median_us(step: Callable[[], None], num_steps: int) -> float:
    """After two steps of warm-up."""
    for _ in range(2):
        step()
    took_s = sorted(_seconds(step, num_steps))
    return 1e6 * took_s[len(took_s) // 2]


def _seconds(work: Callable[[], object], times: int) -> list[float]:
    """How long each of several calls takes, after one that is not counted."""
    work()
    took_s = []
    for _ in range(times):
        synchronize()
        begin_s = time.perf_counter()
        work()
        synchronize()
        took_s.append(time.perf_counter() - begin_s)
    return took_s
