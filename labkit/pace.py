"""Stated durations: a layer takes the time it is told to, asleep, so that many ranks can share few cores.

Four ranks on two cores fight for the cores, and every timeline would show that fight. Pacing does the real work and
sleeps out the rest: processes, schedule and messages stay real, only the duration of a layer is stated. Whatever was
paced carries the note "paced"; a stated time that was not kept is counted, and noted as well.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SPIN_S = 150e-6
"""The end of every sleep is spun, because sleep() wakes up 60 us late and more; at 50 ms this burns 0.3 % of a core."""
LATE = 0.05
"""A stated time counts as overrun beyond this share of it."""


@dataclass(kw_only=True)
class Pace:
    """How well one stage or module kept its stated times."""

    num_actions: int = 0
    """actions paced so far"""
    num_overruns: int = 0
    """actions that took over 5 % longer than stated"""
    overrun_us: float = 0.0
    """time beyond the stated one, summed over those actions, in microseconds"""

    def finish(self, start_s: float, stated_us: float) -> None:
        """Sleeps until ``stated_us`` after ``start_s`` (a ``perf_counter`` reading) and counts an overrun."""
        deadline_s = start_s + stated_us * 1e-6
        sleep_until(deadline_s)
        late_us = (time.perf_counter() - deadline_s) * 1e6
        self.num_actions += 1
        if late_us > LATE * stated_us:
            if not self.num_overruns:
                _note("overran")
            self.num_overruns += 1
            self.overrun_us += late_us


def sleep_until(deadline_s: float) -> None:
    """Returns when ``time.perf_counter()`` reaches ``deadline_s``, a few microseconds late on an idle machine."""
    left_s = deadline_s - time.perf_counter() - SPIN_S
    if left_s > 0:
        time.sleep(left_s)
    while time.perf_counter() < deadline_s:
        pass


def stage(stage: Any, *, forward_us: float, backward_us: float | None = None, input_us: float | None = None,
          weight_us: float | None = None) -> Pace:
    """Makes a ``PipelineStage`` take stated times: F, B, and the halves I and W of a split backward.

    Defaults: B twice F (two matrix products for each one of the forward), I and W half of B each. torch leaves I of
    stage 0 empty and does all of its backward in W; the stated times hold there too.
    """
    backward_us = 2 * forward_us if backward_us is None else backward_us
    input_us = backward_us / 2 if input_us is None else input_us
    weight_us = backward_us / 2 if weight_us is None else weight_us
    for name, time_us in (("forward_us", forward_us), ("backward_us", backward_us), ("input_us", input_us),
                          ("weight_us", weight_us)):
        _check(name, time_us)
    pace = Pace()

    def backward_stated_us(*args: Any, full_backward: bool = True, **kwargs: Any) -> float:
        full_backward = args[2] if len(args) > 2 else full_backward
        return backward_us if full_backward else input_us

    stage.forward_one_chunk = _paced(stage.forward_one_chunk, pace, lambda *a, **k: forward_us)
    stage.backward_one_chunk = _paced(stage.backward_one_chunk, pace, backward_stated_us)
    stage.backward_weight_one_chunk = _paced(stage.backward_weight_one_chunk, pace, lambda *a, **k: weight_us)
    _note("paced")
    return pace


class Paced(nn.Module):
    """A module whose forward and backward take stated times: for DeepSpeed's PipelineModule and pipelines by hand.

    The backward's time counts from the gradient's arrival at the output; no gradient leaves at the inputs earlier.
    """

    def __init__(self, module: nn.Module, *, forward_us: float, backward_us: float | None = None) -> None:
        super().__init__()
        self.module = module
        self.forward_us = _check("forward_us", forward_us)
        self.backward_us = _check("backward_us", 2 * forward_us if backward_us is None else backward_us)
        self.pace = Pace()

    def forward(self, *inputs: Any) -> Tensor:
        """The module's own result, ``forward_us`` after the call."""
        _note("paced")
        start_s, clock = time.perf_counter(), _Backward(self)
        grows = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
        if grows:
            inputs = tuple(_Leave.apply(x, clock) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs)
        y = self.module(*inputs)
        if y.requires_grad:
            y = _Enter.apply(y, clock, not grows)
        self.pace.finish(start_s, self.forward_us)
        return y


class _Backward:
    """One backward of one Paced module: when it began, and that it is counted once."""

    def __init__(self, paced: Paced) -> None:
        self.paced, self.start_s, self.done = paced, 0.0, False

    def finish(self) -> None:
        if not self.done:
            self.done = True
            self.paced.pace.finish(self.start_s, self.paced.backward_us)


class _Enter(torch.autograd.Function):
    """At the output: the backward begins here. Without inputs that take a gradient, it ends with autograd's pass."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, clock: _Backward, is_first: bool) -> Tensor:
        ctx.clock, ctx.is_first = clock, is_first
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        ctx.clock.start_s = time.perf_counter()
        if ctx.is_first:
            torch.autograd.Variable._execution_engine.queue_callback(ctx.clock.finish)
        return grad, None, None


class _Leave(torch.autograd.Function):
    """At an input: the gradient waits here until the stated time is over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: _Backward) -> Tensor:
        ctx.clock = clock
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        ctx.clock.finish()
        return grad, None


def _paced(method: Callable, pace: Pace, stated_us: Callable[..., float]) -> Callable:
    @functools.wraps(method)
    def paced(*args: Any, **kwargs: Any) -> Any:
        start_s = time.perf_counter()
        result = method(*args, **kwargs)
        pace.finish(start_s, stated_us(*args, **kwargs))
        return result

    return paced


def _check(name: str, time_us: float) -> float:
    if time_us < 0:
        raise ValueError(f"a stated time is not negative; got {name}={time_us}")
    return time_us


def _note(text: str) -> None:
    from labkit import rank

    rank.current().note(text)
