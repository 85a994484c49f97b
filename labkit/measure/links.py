"""Stated links: every message of a rank takes the time it is told to, asleep, whoever called it.

    with links.stated(time_us) as pace:      # time_us(message) -> microseconds, or None
        step()

``pace.link`` does so for the buckets of DistributedDataParallel; here it is done for whatever ends
in torch's process groups: tensor parallelism, FSDP, the sends of a pipeline. A collective begins
when the last rank of its group calls it. A message between two ranks begins when it is sent, and
costs its receiver nothing while that one computes. Begin and end are read from the clock that the
ranks of one machine share.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

from labkit.devices.place import synchronize
from labkit.launching import rank
from labkit.measure import trace, traffic
from labkit.measure.pace import Pace, sleep_until
from labkit.measure.traffic import Message

STAMP_TAG = 1 << 20
"""Of the eight bytes that tell a receiver when its message was sent."""
MOST_AT_A_TIME = 32
"""Sends and receives of a rank that may be under way at once; more would wait for one another."""
Stated = Callable[[Message], float | None]
"""What a message takes, in microseconds; None for one that goes as fast as it goes."""


@contextlib.contextmanager
def stated(
    time_us: Stated,
    *,
    label: Callable[[Message], str] = lambda message: message.name,
    around: Callable[[Message], contextlib.AbstractContextManager] | None = None,
) -> Iterator[Pace]:
    """Makes the messages of this process take stated times while the block runs, and records each
    under its label. ``around(message)`` stands around each that its caller waits for: where
    computing is paced as well, its clock stops there."""
    links = _Links(time_us, label, around or (lambda message: contextlib.nullcontext()))
    rank.current().note("paced links")
    with traffic.carried(links.carry):
        try:
            yield links.pace
        finally:
            links.waiting.shutdown()


class _Links:
    """The links of a rank: each message has one of its own."""

    def __init__(self, time_us: Stated, label: Callable, around: Callable) -> None:
        self.pace = Pace()
        self.waiting = ThreadPoolExecutor(MOST_AT_A_TIME, thread_name_prefix="message")
        self._device = rank.current().device  # of this thread; a backward runs in others
        self._time_us = time_us
        self._label = label
        self._around = around

    def carry(self, message: Message, call: Callable[[], Any]) -> Any:
        """In the place of the call."""
        time_us = self._time_us(message)
        if time_us is None or message.name == "barrier":
            return call()
        if message.name == "send":
            return self._send(message, call, time_us)
        if message.name == "recv":
            return self._receive(message, call, time_us)
        with self._around(message):
            return self._collective(message, call, time_us)

    def _collective(self, message: Message, call: Callable[[], Any], time_us: float) -> Any:
        """Begins when the last rank calls, ends when the message is there and its time is over."""
        synchronize(self._device)
        start_ns = time.time_ns()
        latest_ns = torch.tensor([start_ns], device=self._device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        # past c10d, so that nobody counts it as the program's
        known = message.group._get_backend(self._device).allreduce([latest_ns], options)
        made = call()
        dist.Work.unbox(made[-1] if isinstance(made, tuple) else made).wait()
        known.wait()
        synchronize(self._device)
        self._arrive(message, latest_ns.item(), time_us, since_ns=start_ns)
        return made

    def _send(self, message: Message, call: Callable[[], Any], time_us: float) -> Any:
        """Tells the receiver when, and sends. The link is this message's until its time is over,
        also where the real one waits longer for its receiver, or is over at once."""
        synchronize(self._device)
        start_ns = time.time_ns()
        stamp = torch.tensor([start_ns], device=self._device)
        backend = message.group._get_backend(self._device)
        told = backend.send([stamp], message.ranks.index(message.peer), STAMP_TAG)
        real = dist.Work.unbox(call())

        def wait() -> list[Tensor]:
            self._sleep_until(start_ns + round(1000 * time_us))
            self._record(message, start_ns)
            told.wait()
            real.wait()
            return [stamp]

        return self._later(wait)

    def _receive(self, message: Message, call: Callable[[], Any], time_us: float) -> Any:
        """Returns at once; who waits for what is returned waits for the link as well."""
        sent_ns = torch.zeros(1, dtype=torch.int64, device=self._device)
        backend = message.group._get_backend(self._device)
        told = backend.recv([sent_ns], message.ranks.index(message.peer), STAMP_TAG)
        real = dist.Work.unbox(call())

        def wait() -> list[Tensor]:
            told.wait()
            real.wait()
            self._arrive(message, sent_ns.item(), time_us)
            return [sent_ns]

        return self._later(wait)

    def _later(self, wait: Callable[[], list[Tensor]]) -> Any:
        """What torch's callers wait for: done when ``wait`` is, in a thread of its own."""
        done: Future[list[Tensor]] = Future()

        def run() -> None:
            try:
                done.set_result(wait())
            except BaseException as error:  # its place is with whoever waits
                done.set_exception(error)

        self.waiting.submit(run)
        return _create_work_from_future(done).boxed()

    def _arrive(
        self, message: Message, begin_ns: int, time_us: float, since_ns: int | None = None
    ) -> None:
        """Sleeps until a message's time is over, and records it."""
        begin_ns = min(begin_ns, time.time_ns())
        deadline_ns = begin_ns + round(1000 * time_us)
        self._sleep_until(deadline_ns)
        self.pace.count((time.time_ns() - deadline_ns) / 1e3, time_us)
        self._record(message, begin_ns if since_ns is None else since_ns)

    @staticmethod
    def _sleep_until(deadline_ns: int) -> None:
        """On the clock that ranks share."""
        sleep_until(time.perf_counter() + (deadline_ns - time.time_ns()) * 1e-9)

    def _record(self, message: Message, start_ns: int) -> None:
        """A message that is over now, for the recording if there is one."""
        label = self._label(message)
        trace.span(message.name, label, start_ns, time.time_ns(), message.num_bytes)
