"""Stated durations: a layer takes the time it is told to, asleep, so that many ranks can share few cores.

Four ranks on two cores fight for the cores, and every timeline would show that fight. Pacing does the real work and
sleeps out the rest: processes, schedule and messages stay real, only the duration of a layer is stated. Whatever was
paced carries the note "paced"; a stated time that was not kept is counted, and noted as well.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SPIN_S = 150e-6
"""The end of every sleep is spun, because sleep() wakes up 60 us late and more; at 50 ms this burns 0.3 % of a core."""
LATE = 0.05
"""A stated time counts as overrun beyond this share of it."""


class Pace:
    """How well one stage or module keeps its stated times: it counts what was paced, and what took longer."""

    def __init__(self) -> None:
        self.num_actions = 0
        self.num_overruns = 0
        self.overrun_us = 0.0

    def __repr__(self) -> str:
        return f"Pace({self.num_overruns} of {self.num_actions} actions overran, by {self.overrun_us:.0f} us in all)"

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
    _check(forward_us, backward_us, input_us, weight_us)
    pace = Pace()

    def stated_backward_us(mb: int, loss: Any = None, full_backward: bool = True, **kwargs: Any) -> float:
        return backward_us if full_backward else input_us

    stage.forward_one_chunk = _paced(stage.forward_one_chunk, pace, lambda *args, **kwargs: forward_us)
    stage.backward_one_chunk = _paced(stage.backward_one_chunk, pace, stated_backward_us)
    stage.backward_weight_one_chunk = _paced(stage.backward_weight_one_chunk, pace, lambda *args, **kwargs: weight_us)
    _note("paced")
    return pace


class Paced(nn.Module):
    """A module whose forward and backward take stated times: for DeepSpeed's PipelineModule and pipelines by hand.

    The backward's time counts from the gradient's arrival at the output; no gradient leaves at the inputs earlier.
    """

    def __init__(self, module: nn.Module, *, forward_us: float, backward_us: float | None = None) -> None:
        super().__init__()
        self.module, self.pace = module, Pace()
        self.forward_us, self.backward_us = forward_us, 2 * forward_us if backward_us is None else backward_us
        _check(self.forward_us, self.backward_us)

    def forward(self, *inputs: Any) -> Tensor:
        """The module's own result, ``forward_us`` after the call."""
        _note("paced")
        start_s = time.perf_counter()
        takes_gradient = [isinstance(x, Tensor) and x.requires_grad for x in inputs]
        begun_s: list[float] = []

        def begin(grad: Tensor) -> None:
            begun_s.append(time.perf_counter())
            if not any(takes_gradient):  # the first module of a pipeline: its backward ends with autograd's pass
                torch.autograd.Variable._execution_engine.queue_callback(end)

        def end(grad: Tensor | None = None) -> None:
            if begun_s:
                self.pace.finish(begun_s.pop(), self.backward_us)

        inputs = tuple(x.view_as(x) if takes else x for x, takes in zip(inputs, takes_gradient, strict=True))
        for x, takes in zip(inputs, takes_gradient, strict=True):
            if takes and torch.is_grad_enabled():
                x.register_hook(end)
        y = self.module(*inputs)
        if y.requires_grad:
            y.register_hook(begin)
        self.pace.finish(start_s, self.forward_us)
        return y


def _paced(method: Callable, pace: Pace, stated_us: Callable[..., float]) -> Callable:
    @functools.wraps(method)
    def paced(*args: Any, **kwargs: Any) -> Any:
        start_s = time.perf_counter()
        result = method(*args, **kwargs)
        pace.finish(start_s, stated_us(*args, **kwargs))
        return result

    return paced


def _check(*times_us: float) -> None:
    if min(times_us) < 0:
        raise ValueError(f"a stated time is 0 or more; got {min(times_us)} us")


def _note(text: str) -> None:
    from labkit import rank

    rank.current().note(text)
