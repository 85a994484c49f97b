"""What graders use: ranks for an answer to run on, limits of time, and faults in words."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.check.verdict import Verdict
from labkit.launching.gate import queued_s
from labkit.launching.launcher import launch
from labkit.launching.run import Run
from labkit.launching.verdicts import disagreement
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

HANG_S = 10.0
"""how long an answer's ranks may be silent, in seconds: long enough for a busy machine"""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError when the block takes longer; while others have all cores, or its launch
    waits at the gate, its time stands still. Only a main thread has an alarm; elsewhere there is no
    limit."""
    left_s = armed_s = seconds
    starved_s = _starved_s() + queued_s()
    used_s = time.thread_time()

    def ring(*_: object) -> None:
        nonlocal left_s, armed_s, starved_s, used_s
        before = starved_s, used_s
        starved_s = _starved_s() + queued_s()
        used_s = time.thread_time()
        left_s -= max(armed_s - (starved_s - before[0]), used_s - before[1])
        if left_s < 0.01 * seconds:
            raise TimeoutError(say("no answer within {seconds:g} s", seconds=seconds))
        armed_s = max(left_s, 0.01)
        signal.setitimer(signal.ITIMER_REAL, armed_s)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, ring)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def _starved_s() -> float:
    """For how long this thread has been ready to run and had no core, in seconds; 0 where the
    system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def on_ranks(num_ranks: int, work: Callable, *args: object, hang_s: float | None = None) -> Run:
    """Runs the ranks' side of an exercise; what an answer leaves waiting is noticed
    after ``hang_s``, HANG_S where nothing is said."""
    hang_s = HANG_S if hang_s is None else hang_s
    with limit(120.0):  # launch has its own
        return launch(work, *args, ranks=num_ranks, hang_s=hang_s, timeout_s=30)


def trace(run: Run) -> Verdict:
    """Whether all ranks of a run made the same collective calls in the same order: what no error
    tells, as long as op and shape agree. The verdict names the first call that is out of order, on
    each rank, with its line."""
    found = disagreement.swapped(run.calls())
    if found is not None:
        told = say("The ranks do not agree:")
        return Verdict(state="wrong", message=told, counterexample=found.text, graded=False)
    num_calls = max(map(len, run.calls()), default=0)
    return Verdict(
        state="passed",
        message=say("The ranks made the same {calls} calls in the same order.", calls=num_calls),
        graded=False,
    )


def wrong(text: str, /, **values: object) -> tuple[str, str]:
    """What a grader yields of a case that goes wrong: the case in words, said as ``words.say``
    does."""
    return "wrong", say(text, **values)


def over_budget(text: str, /, **values: object) -> tuple[str, str]:
    """The same of a case that is right but costs more than it must."""
    return "over budget", say(text, **values)


def faults(case: str, run: Run) -> Iterator[tuple[str, str]]:
    """Each rank's fault, where it has one: what it returned first."""
    for rank, (fault, *_) in enumerate(run):
        if fault:
            yield wrong("{case}, rank {rank}: {fault}", case=case, rank=rank, fault=fault)


def unlike(mine: "Tensor", right: "Tensor", what: str) -> str:
    """What a gradient is not, if it is not ``right``; and by which factor it is off, if it is one.
    Else nothing."""
    import torch

    if torch.allclose(mine, right, rtol=1e-4, atol=1e-6):
        return ""
    factor = float((mine * right).sum() / right.square().sum())
    if torch.allclose(mine, factor * right, rtol=1e-3, atol=1e-5):
        return say("is not {what}, it is {factor:.3g} times that", what=what, factor=factor)
    return say("is not {what}", what=what)
