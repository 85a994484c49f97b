"""When messages begin and end on real ranks: as fast as they go, or as slow as stated links.

Nanoseconds of perf_counter, one clock for all processes of a machine.
"""

import contextlib
import fcntl
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from labkit.collectives.network import Link, Network
from labkit.collectives.plans import Message, Plan

if TYPE_CHECKING:
    from labkit.measure.pace import Pace

_count = itertools.count()  # executions over stated links: the same on every rank


LOOK_S = 500e-6
"""How often a message that waits for a shared wire looks whether the one before it is over."""
FIRST = -1
"""In the place of the message before it: there was none on this wire."""


class Clock:
    """Messages that go as fast as they do."""

    def __init__(self) -> None:
        self._began_ns = 0

    def begin(self, step: int) -> int:
        """From when on this rank is ready for its messages of a step."""
        self._began_ns = time.perf_counter_ns()
        return self._began_ns

    def finish(
        self, step: int, messages: Sequence[Message], sizes: Sequence[int]
    ) -> list[tuple[int, int]]:
        """(start, end) of this rank's messages of a step, which have just gone."""
        return [(self._began_ns, time.perf_counter_ns())] * len(messages)


class Links:
    """The stated links of one execution: a file in the run's folder where ranks write when they are
    ready for what, and when messages were over.

    A message begins when both its ends are ready and the one before it on its wire, if it shares
    one, is over. It ends at each end when that has slept out its time. All are readings of the
    clock; whichever end of a message looks first gives it its turn, and says when it is over.
    """

    def __init__(self, plan: Plan, network: Network, kept: "Pace | None") -> None:
        from labkit.launching import rank
        from labkit.measure import pace

        here = rank.current()
        if not here.folder:
            raise ValueError(
                "stated links need a folder that all ranks share; outside a launch set "
                "LABKIT_RUN_DIR"
            )
        here.note("paced links")
        self._rank = here.rank
        self._network = network
        self._kept = kept or pace.Pace()
        self._through_ns = time.perf_counter_ns()  # since when this rank is through with all before
        self._file = open(here.folder / f"links-{next(_count)}", "a+b")  # noqa: SIM115
        self._share(plan, _wires(network))

    def _share(self, plan: Plan, wires: list[str]) -> None:
        """Lays four tables into the shared file, 0 where nothing is known yet.

        ``_ready[step, rank]``: since when the rank is through with earlier steps;
        ``_over[message]``: when it was; ``_before[message]``: 1 + the one whose turn is before it,
        or ``FIRST``; ``_last[wire]``: 1 + the one that came last. A message's number is step *
        num_ranks + its sender.
        """
        shape = (len(plan.steps), plan.num_ranks)
        size = math.prod(shape)
        self._file.truncate(8 * (3 * size + len(wires) + 1))  # one more: no map of an empty file
        table = np.memmap(self._file, np.int64, "r+")
        self._ready = table[:size].reshape(shape)
        self._over = table[size : 2 * size]
        self._before = table[2 * size : 3 * size]
        self._last = table[3 * size :]
        self._place = {wire: place for place, wire in enumerate(wires)}

    def begin(self, step: int) -> int:
        """From when on this rank is ready for its messages of a step; it tells the others."""
        self._ready[step, self._rank] = self._through_ns
        return self._through_ns

    def finish(
        self, step: int, messages: Sequence[Message], sizes: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Sleeps until this rank's messages of a step are over. Returns (start, end) of each."""
        from labkit.measure import pace

        takes_ns = []
        for message, num_bytes in zip(messages, sizes, strict=True):
            takes_ns.append(round(self._link(message).us(num_bytes) * 1e3))
            self._queue(step, message)
        spans: dict[int, tuple[int, int]] = {}
        while len(spans) < len(messages):
            due_ns = {}  # of those whose turn it is
            for place in set(range(len(messages))) - set(spans):
                start_ns = self._start_ns(step, messages[place])
                if start_ns is not None:
                    due_ns[place] = start_ns + takes_ns[place]
            soonest_ns = min(due_ns.values(), default=math.inf)
            is_blind = len(due_ns) + len(spans) < len(messages)
            if is_blind and soonest_ns > time.perf_counter_ns() + LOOK_S * 1e9:
                time.sleep(LOOK_S)
                continue
            place = min(due_ns, key=due_ns.get)
            pace.sleep_until(soonest_ns / 1e9)
            end_ns = self._end(step, messages[place])
            spans[place] = (soonest_ns - takes_ns[place], end_ns)
        self._through_ns = end_ns
        self._kept.count((end_ns - soonest_ns) / 1e3, takes_ns[place] / 1e3)
        return [spans[place] for place in range(len(messages))]

    def _link(self, message: Message) -> Link:
        return self._network.link(message.src, message.dst)

    def _number(self, step: int, message: Message) -> int:
        return step * len(self._network.links) + message.src

    def _queue(self, step: int, message: Message) -> None:
        """Gives a message that has crossed its turn on its wire, if its other end has not. With
        gloo a send, too, ends after its receive was posted: both ends are ready."""
        number = self._number(step, message)
        wire = self._link(message).wire
        with self._locked():
            if self._before[number]:
                return
            self._before[number] = FIRST
            if wire:
                place = self._place[wire]
                self._before[number] = self._last[place] or FIRST
                self._last[place] = 1 + number

    def _start_ns(self, step: int, message: Message) -> int | None:
        """When a message began: None while its wire carries the one before it."""
        start_ns = max(self._ready[step, message.src], self._ready[step, message.dst])
        before = self._before[self._number(step, message)]
        if before != FIRST:
            free_ns = self._over[before - 1]
            if not free_ns:
                return None
            start_ns = max(start_ns, free_ns)
        return int(start_ns)

    def _end(self, step: int, message: Message) -> int:
        """Reads the clock at this end of a message; the wire is free from the first such reading
        on."""
        end_ns = time.perf_counter_ns()
        number = self._number(step, message)
        with self._locked():
            self._over[number] = self._over[number] or end_ns
        return end_ns

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One rank at a time."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _wires(network: Network) -> list[str]:
    """The names of all shared wires."""
    links = itertools.chain.from_iterable(network.links)
    return sorted({link.wire for link in links if link and link.wire})
