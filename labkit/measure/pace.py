"""Stated durations: a layer takes the time it is told to, asleep, so that many ranks can share few
cores.

Four ranks on two cores fight for the cores, and every timeline would show that fight. Pacing does
the real work and sleeps out the rest: processes, schedule and messages stay real, only the duration
of a layer is stated. Whatever was paced carries the note "paced"; a stated time that was not kept
is counted, and noted as well. ``link`` states the time of DistributedDataParallel's all-reduces in
the same way, noted "paced links".
"""

import concurrent.futures
import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.futures import Future

from labkit.devices.place import synchronize
from labkit.measure import trace

SPIN_S = 150e-6
"""The end of every sleep is spun, because sleep() wakes up 60 us late and more; at 50 ms this burns
0.3 % of a core."""
LATE = 0.05
"""A stated time counts as overrun beyond this share of it."""


class Pace:
    """How well one stage or module keeps its stated times: it counts what was paced, and what took
    longer."""

    def __init__(self) -> None:
        self.num_actions = 0
        self.num_overruns = 0
        self.overrun_us = 0.0

    def __repr__(self) -> str:
        overran = f"{self.num_overruns} of {self.num_actions} actions overran"
        return f"Pace({overran}, by {self.overrun_us:.0f} us in all)"

    @contextlib.contextmanager
    def taking(self, label: str, stated_us: float) -> Iterator[None]:
        """Makes the block last ``stated_us``, under a label in a recording if there is one."""
        with torch.profiler.record_function(label) if label else contextlib.nullcontext():
            start_s = time.perf_counter()
            yield
            self.finish(start_s, stated_us)

    def finish(self, start_s: float, stated_us: float) -> None:
        """Sleeps until ``stated_us`` after ``start_s`` (a ``perf_counter`` reading) and counts an
        overrun."""
        deadline_s = start_s + stated_us * 1e-6
        synchronize()
        sleep_until(deadline_s)
        self.count((time.perf_counter() - deadline_s) * 1e6, stated_us)

    def count(self, late_us: float, stated_us: float) -> None:
        """Counts one action that ended ``late_us`` late: an overrun if that is much. Stating 0
        states nothing."""
        self.num_actions += 1
        if late_us > LATE * stated_us > 0:
            if not self.num_overruns:
                _note("overran")
            self.num_overruns += 1
            self.overrun_us += late_us


def sleep_until(deadline_s: float) -> None:
    """Returns when ``time.perf_counter()`` reaches ``deadline_s``, a few microseconds late on an
    idle machine."""
    left_s = deadline_s - time.perf_counter() - SPIN_S
    if left_s > 0:
        time.sleep(left_s)
    while time.perf_counter() < deadline_s:
        pass


def stage(
    stage: Any,
    *,
    forward_us: float,
    backward_us: float | None = None,
    input_us: float | None = None,
    weight_us: float | None = None,
) -> Pace:
    """Makes a ``PipelineStage`` take stated times: F, B, and the halves I and W of a split
    backward.

    Defaults: B twice F (two matrix products for each one of the forward), I and W half of B each.
    torch leaves I of stage 0 empty and does all of its backward in W; the stated times hold there
    too.
    """
    backward_us = 2 * forward_us if backward_us is None else backward_us
    input_us = backward_us / 2 if input_us is None else input_us
    weight_us = backward_us / 2 if weight_us is None else weight_us
    _check(forward_us, backward_us, input_us, weight_us)
    pace = Pace()

    def stated_backward_us(
        mb: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
    ) -> float:
        return backward_us if full_backward else input_us

    stage.forward_one_chunk = _paced(
        stage.forward_one_chunk, pace, lambda *args, **kwargs: forward_us
    )
    stage.backward_one_chunk = _paced(stage.backward_one_chunk, pace, stated_backward_us)
    stage.backward_weight_one_chunk = _paced(
        stage.backward_weight_one_chunk, pace, lambda *args, **kwargs: weight_us
    )
    _note("paced")
    return pace


class Paced(nn.Module):
    """A module whose forward and backward take stated times: for DeepSpeed's PipelineModule, DDP,
    pipelines by hand.

    The backward's time counts from the gradient's arrival at the output; before it is over no
    gradient leaves, neither at the inputs nor into a parameter. With a ``name`` both are labelled
    in a recording: "F3" and "B3" for name "3".
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        forward_us: float,
        backward_us: float | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.pace = Pace()
        self.name = name
        self.forward_us = forward_us
        self.backward_us = 2 * forward_us if backward_us is None else backward_us
        _check(self.forward_us, self.backward_us)

    def forward(self, *inputs: Any) -> Tensor:
        """The module's own result, ``forward_us`` after the call. Raises ValueError for a tuple,
        list or dict."""
        held = [type(x).__name__ for x in inputs if isinstance(x, (tuple, list, dict))]
        if held:
            raise ValueError(
                f"a paced module takes each tensor as an argument of its own; got {', '.join(held)}"
            )
        _note("paced")
        taking = {
            id(x): x  # each once
            for x in (*inputs, *self.module.parameters())
            if isinstance(x, Tensor) and x.requires_grad
        }
        return _Stated.apply(self, inputs, torch.is_grad_enabled(), *taking.values())

    def taking(self, kind: str, stated_us: float) -> contextlib.AbstractContextManager:
        """Makes the block last ``stated_us``, under the label of its kind (F or B) if the module
        has a name."""
        return self.pace.taking("" if self.name is None else kind + self.name, stated_us)


class _Stated(torch.autograd.Function):
    """A module as one step of autograd, with a graph of its own inside: what leaves it leaves at
    the stated time."""

    @staticmethod
    def forward(
        ctx: Any, paced: Paced, inputs: tuple, grad_enabled: bool, *taking: Tensor
    ) -> Tensor:
        ctx.paced = paced
        with paced.taking("F", paced.forward_us), torch.set_grad_enabled(grad_enabled):
            fresh = {
                id(x): x.detach().requires_grad_()
                for x in inputs
                if isinstance(x, Tensor) and x.requires_grad
            }
            ctx.sources = [fresh.get(id(x), x) for x in taking]
            ctx.result = paced.module(*(fresh.get(id(x), x) for x in inputs))
        return ctx.result.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        with ctx.paced.taking("B", ctx.paced.backward_us):
            gradients = torch.autograd.grad(ctx.result, ctx.sources, gradient, allow_unused=True)
        return None, None, None, *gradients


class _Message:
    """One bucket on its way: its bytes, since when this rank has it, and the result that DDP waits
    for."""

    def __init__(
        self, bucket: dist.GradBucket, num_bytes: int, begin: Callable[[], Future]
    ) -> None:
        self.label = f"bucket {bucket.index()}"
        self.num_bytes = num_bytes
        self.device = bucket.buffer().device
        synchronize(self.device)  # its gradients may only be asked for
        self.begin = begin  # starts the real message
        self.ready_ns = time.time_ns()
        self.result = Future()
        self.crossed: concurrent.futures.Future | None = None  # of the link's thread


class _Link:
    """The one link of a rank: a thread that carries one bucket at a time, beside the backward.

    A bucket begins when this rank has it and the link is free. It ends when the real message is
    there and the stated time, since the last rank began, is slept out. Both are readings.
    """

    def __init__(
        self, group: dist.ProcessGroup, all_reduce_us: Callable[[int], float] | None, pace: Pace
    ) -> None:
        self._group = group
        self._all_reduce_us = all_reduce_us
        self._pace = pace
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="link")
        self._free_ns = 0  # when the bucket before came through

    def carry(self, message: _Message) -> None:
        """Queues a bucket behind those before it."""
        message.crossed = self._thread.submit(self._cross, message)

    @torch.no_grad()  # as DDP calls its hooks
    def _cross(self, message: _Message) -> Any:
        """Sends one bucket for real and sleeps out its stated time. In the link's own thread."""
        start_ns = max(message.ready_ns, self._free_ns)
        latest_ns = torch.tensor([start_ns], device=message.device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        # past c10d, so that nobody counts it as the program's
        known = self._group._get_backend(latest_ns.device).allreduce([latest_ns], options)
        value = message.begin().wait()
        known.wait()
        synchronize(message.device)
        # without a clock that all ranks share, a bucket began when its real message was over
        begin_ns = min(latest_ns.item(), time.time_ns())
        stated_us = self._all_reduce_us(message.num_bytes) if self._all_reduce_us else 0.0
        deadline_ns = begin_ns + round(1000 * stated_us)
        sleep_until(time.perf_counter() + (deadline_ns - time.time_ns()) * 1e-9)
        self._free_ns = time.time_ns()
        self._pace.count((self._free_ns - deadline_ns) / 1e3, stated_us)
        trace.span("all_reduce", message.label, start_ns, self._free_ns, message.num_bytes)
        return value


def link(
    ddp: nn.parallel.DistributedDataParallel,
    all_reduce_us: Callable[[int], float] | None,
    *,
    overlap: bool = True,
    hook: Callable | None = None,
    state: Any = None,
    sent_bytes: Callable[[dist.GradBucket], int] | None = None,
) -> Pace:
    """Makes the all-reduces of a DistributedDataParallel take stated times:
    ``all_reduce_us(num_bytes)`` per bucket.

    A thread beside the backward is the one link of the rank. It serves one bucket at a time, as
    ``buckets.simulate`` does: when this rank has the bucket and the link is free, it is really
    reduced, and the link sleeps until the stated time, since the last rank began, is over. Begin
    and end are read from the clock, lateness included. ``overlap=False`` hands the link all buckets
    after the last. ``None`` states nothing: the machine's own time. ``hook`` is another
    communication hook (one that compresses) with its ``state``, called by the link's thread;
    ``sent_bytes(bucket)`` are then the bytes that it really sends. Spans are recorded; an end later
    than stated counts as overrun.
    """
    _check_link(ddp)
    group = ddp.process_group
    pace = Pace()
    served = _Link(group, all_reduce_us, pace)
    messages: list[_Message] = []
    if hook is None:
        hook = allreduce_hook
        state = group

    def stated(_: Any, bucket: dist.GradBucket) -> Future[Tensor]:
        num_bytes = sent_bytes(bucket) if sent_bytes else bucket.buffer().nbytes
        message = _Message(bucket, num_bytes, lambda: hook(state, bucket))
        messages.append(message)
        if overlap:
            served.carry(message)
        if bucket.is_last():
            _finish(messages, served, overlap)
        return message.result

    ddp.register_comm_hook(None, stated)
    if all_reduce_us is not None:
        _note("paced links")
    return pace


def _check_link(ddp: Any) -> None:
    """Raises ValueError for what has no link that can be paced."""
    if not isinstance(ddp, nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"only the all-reduces of a DistributedDataParallel are paced; got {type(ddp).__name__}"
        )


def _finish(messages: list[_Message], served: _Link, overlap: bool) -> None:
    """Returns when all buckets have come through, their results handed over; raises what a hook
    raised."""
    under_way = messages.copy()
    messages.clear()
    for message in () if overlap else under_way:
        message.ready_ns = under_way[-1].ready_ns
        served.carry(message)
    for message in under_way:
        message.result.set_result(message.crossed.result())


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
    from labkit.launching import rank

    rank.current().note(text)
