"""The steps on real ranks: real messages on links of a stated pace, and sleep for what is said to
be computed, loaded or written."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from labkit.devices.place import synchronize
from labkit.launching import launcher, rank
from labkit.launching.job import Job
from labkit.measure import trace
from labkit.measure.pace import Pace, sleep_until
from labkit.profiling.advice import advise
from labkit.profiling.kinds import Slow, slow
from labkit.profiling.program import Act, programs
from labkit.profiling.proof import Proof
from labkit.timeline import COMPUTE, Timeline, step_us
from labkit.units import check_real, check_whole

if TYPE_CHECKING:
    from labkit.profiling.step import Step

LEAST_NS = 20_000
"""a wait that is shorter is not drawn"""


def start(step: "Step") -> Job:
    """The steps on real ranks, in the background."""
    return launcher.start(train, step, ranks=step.ranks)


def prove(kind: str, severity: float = 0.5, *, simulated: bool = False, runs: int = 1) -> Proof:
    """Runs a slow step of a kind and the cured one on real ranks, and holds the advice for the
    first against the second; ``simulated``: without ranks.

    Of several ``runs`` of each the quickest counts: all is at a stated pace, so whatever else the
    machine does can only delay. Raises ValueError for another kind.
    """
    check_whole(1, 100, runs=runs)
    return held(kind, slow(kind, severity), simulated=simulated, runs=runs)


def held(kind: str, made: Slow, *, simulated: bool = False, runs: int = 1) -> Proof:
    """The same for a step of your own and its cure."""
    found = []
    for step in made:
        tries = [step.predict()] if simulated else measured(step, runs)
        found.append(min(tries, key=step_us))
    return Proof(kind=kind, advice=advise(found[0]), cured=found[1])


def measured(step: "Step", runs: int) -> list[Timeline]:
    """What several runs of a step recorded."""
    return [start(step).wait().timeline() for _ in range(runs)]


def recorded(work: Callable, *args: Any) -> Any:
    """On a rank: calls ``work`` and records it, and nothing that came before; the rank of a
    ``lab.launch`` then has a ``timeline``. All ranks begin together. Returns what it returned."""
    dist.barrier()
    with trace.record():
        return work(*args)


def slow_compute(seconds: float) -> None:
    """Sleeps for as long as a slow card computes longer, and is recorded as one that computes.
    Raises ValueError for less than nothing."""
    check_real(0.0, 1e3, seconds=seconds)
    start_ns = time.time_ns()
    time.sleep(seconds)
    trace.span(COMPUTE, "slow card", start_ns, time.time_ns(), lane=COMPUTE)


def train(step: "Step") -> dict[str, Any]:
    """A rank's part: a step of warm-up, then all that are recorded."""
    here = rank.current()
    here.note("paced")
    here.note("paced links")
    warm = _Doer(here.rank, step.seed)
    for act in programs(step, 1)[here.rank]:
        warm.do(act)
    doer = _Doer(here.rank, step.seed)
    dist.barrier()
    with trace.record(operators=False):
        dist.barrier()
        for act in programs(step)[here.rank]:
            doer.do(act)
        doer.finish()
    return {"overruns": doer.pace.num_overruns, "sums": doer.sums}


class _Doer:
    """One rank that does its acts. The link, the loader and the writer are threads beside it."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.pace = Pace()
        self.sums: list[float] = []
        self._device = rank.current().device
        self._seed = seed
        self._link = ThreadPoolExecutor(1, thread_name_prefix="link")
        self._given: list[Future] = []
        self._sent: list[Any] = []
        self._loaded_s = 0.0  # when the batch that is being loaded is there
        self._saved_s = 0.0  # when the checkpoint that is being written is there

    def do(self, act: Act) -> None:
        """Does one act and records it."""
        match act.what:
            case "reduce":
                self._given.append(self._link.submit(self._cross, act, time.time_ns()))
            case "wait":
                self._wait()
            case "send":
                self._send(act)
            case "recv":
                self._receive(act)
            case "idle":
                sleep_until(time.perf_counter() + 1e-6 * act.us)
            case "load" | "save" if act.behind:
                self._beside(act)
            case _:
                self._sleep(act, time.perf_counter() + 1e-6 * act.us)

    def finish(self) -> None:
        """Waits for all that is under way."""
        self._wait()
        self._link.shutdown()
        for sent in self._sent:
            sent.wait()

    def _sleep(self, act: Act, deadline_s: float) -> None:
        start_ns = time.time_ns()
        stated_us = 1e6 * (deadline_s - time.perf_counter())
        sleep_until(deadline_s)
        end_ns = time.time_ns()
        self.pace.count((end_ns - start_ns) / 1e3 - stated_us, stated_us)
        if end_ns - start_ns > LEAST_NS:
            trace.span(act.kind, act.label, start_ns, end_ns, lane=COMPUTE)

    def _beside(self, act: Act) -> None:
        """What another thread would load or write: this rank sleeps for what is left of it."""
        now_s = time.perf_counter()
        if act.what == "load":
            self._loaded_s = self._loaded_s or now_s + 1e-6 * act.us
            self._sleep(act, max(now_s, self._loaded_s))
            self._loaded_s = time.perf_counter() + 1e-6 * act.us
        else:
            self._sleep(act, max(now_s, self._saved_s))
            self._saved_s = time.perf_counter() + 1e-6 * act.us

    def _wait(self) -> None:
        for given in self._given:
            self.sums.append(given.result())
        self._given.clear()

    @torch.no_grad()
    def _cross(self, act: Act, given_ns: int) -> float:
        """A message of all ranks: really sent, then slept out since the last rank had it. In the
        link's own thread, one at a time."""
        start_ns = time.time_ns()
        latest_ns = torch.tensor([start_ns], device=self._device)
        dist.all_reduce(latest_ns, op=dist.ReduceOp.MAX)
        payload = torch.full((act.num_bytes // 4,), 1.0 + self.number, device=self._device)
        dist.all_reduce(payload)
        synchronize(self._device)
        deadline_ns = latest_ns.item() + round(1e3 * act.us)
        sleep_until(time.perf_counter() + 1e-9 * (deadline_ns - time.time_ns()))
        end_ns = time.time_ns()
        self.pace.count((end_ns - deadline_ns) / 1e3, act.us)
        trace.span(act.kind, act.label, start_ns, end_ns, act.num_bytes)
        return payload[0].item()

    def _send(self, act: Act) -> None:
        start_ns = time.time_ns()
        payload = torch.zeros(act.num_bytes // 8 + 1, dtype=torch.int64, device=self._device)
        payload[0] = start_ns
        self._sent.append(dist.isend(payload, act.peer))
        trace.span(act.kind, act.label, start_ns, time.time_ns(), act.num_bytes)

    def _receive(self, act: Act) -> None:
        start_ns = time.time_ns()
        payload = torch.zeros(act.num_bytes // 8 + 1, dtype=torch.int64, device=self._device)
        dist.recv(payload, act.peer)
        deadline_ns = payload[0].item() + round(1e3 * act.us)
        sleep_until(time.perf_counter() + 1e-9 * (deadline_ns - time.time_ns()))
        trace.span(act.kind, act.label, start_ns, time.time_ns(), act.num_bytes)
