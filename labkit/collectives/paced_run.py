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

from labkit.collectives.network import Network
from labkit.collectives.plans import Message, Plan

if TYPE_CHECKING:
    from labkit.measure.pace import Pace

_count = itertools.count()  # executions over stated links: the same on every rank


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
    ready for what, and when messages end.

    Whichever end of a message looks first settles it for both.
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
        """Lays three tables of nanoseconds into the shared file, 0 where nothing is known yet.

        ``_ready[step, rank]``: since when the rank is through with earlier steps, by what was
        stated where that was kept; ``_end[step, sender]``: when that message is over;
        ``_free[wire]``: from when on a wire that is shared is free.
        """
        shape = (len(plan.steps), plan.num_ranks)
        size = math.prod(shape)
        self._file.truncate(8 * (2 * size + len(wires) + 1))  # one more: no map of an empty file
        table = np.memmap(self._file, np.int64, "r+")
        self._ready = table[:size].reshape(shape)
        self._end = table[size : 2 * size].reshape(shape)
        self._free = table[2 * size :]
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

        spans = []
        for message, num_bytes in zip(messages, sizes, strict=True):
            spans.append(self._settled(step, message, num_bytes))
        last = max(range(len(spans)), key=lambda place: spans[place][1])
        start_ns, end_ns = spans[last]
        pace.sleep_until(end_ns / 1e9)
        late_ns = time.perf_counter_ns() - end_ns
        stated_ns = end_ns - start_ns
        self._kept.count(late_ns / 1e3, stated_ns / 1e3)
        self._through_ns = end_ns
        if late_ns > pace.LATE * stated_ns:
            self._through_ns += late_ns
        spans[last] = (start_ns, self._through_ns)
        return spans

    def _settled(self, step: int, message: Message, num_bytes: int) -> tuple[int, int]:
        """(start, end) of a message that has crossed. With gloo a send, too, ends after its receive
        was posted."""
        link = self._network.link(message.src, message.dst)
        takes_ns = round(link.us(num_bytes) * 1e3)
        with self._locked():
            if not self._end[step, message.src]:
                self._settle(step, message, link.wire, takes_ns)
            end_ns = int(self._end[step, message.src])
        return end_ns - takes_ns, end_ns

    def _settle(self, step: int, message: Message, wire: str, takes_ns: int) -> None:
        """A message begins when both its ends are ready and its wire, if it shares one, is free."""
        start_ns = max(self._ready[step, message.src], self._ready[step, message.dst])
        if wire:
            start_ns = max(start_ns, self._free[self._place[wire]])
            self._free[self._place[wire]] = start_ns + takes_ns
        self._end[step, message.src] = start_ns + takes_ns

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
