"""How a run ended, as an exception a learner can act on. Reads what the ranks said; starts and
stops nothing."""

import re
import signal
from collections.abc import Callable, Iterable

from labkit.launching import diagnosis
from labkit.launching.outcome import Ending, Finding, is_echo, line_of

_LIKELY = {
    "SIGKILL": "the system ended it, most likely because memory ran out (or someone sent kill -9)",
    "SIGSEGV": "native code touched memory that is not its own; the last lines of its output name "
    "the call",
    "SIGABRT": "native code gave up; gloo does so when ranks bring different sizes or types to "
    "one collective",
    "SIGTERM": "someone asked it to end",
    "SIGBUS": "a mapped file or shared memory ran out of room",
}
_NO_ROOM = re.compile(
    r"MemoryError|OutOfMemory|out of memory|can't allocate memory|Cannot allocate memory"
)


class LaunchError(RuntimeError):
    """A run that did not end well. ``endings`` has one Ending per rank, ``logs`` what each printed,
    ``finding`` says what was wrong where that is known."""

    draw: "Callable[[LaunchError], None] | None" = None
    """shows a verdict in a notebook before its text; the hands set it"""

    def __init__(
        self,
        message: str,
        endings: Iterable[Ending] = (),
        logs: Iterable[str] = (),
        finding: Finding | None = None,
    ) -> None:
        super().__init__(message)
        self.endings, self.logs, self.finding, self._drawn = (
            tuple(endings),
            tuple(logs),
            finding,
            False,
        )

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of the launcher's own frames."""
        if LaunchError.draw and not self._drawn:  # IPython asks twice
            self._drawn = True
            LaunchError.draw(self)
        return [f"\x1b[0;31m{type(self).__name__}\x1b[0m: {self}"]


class RankFailed(LaunchError):
    """A rank raised an exception or died."""


class Deadlock(LaunchError):
    """Ranks wait for something that can never come."""


class Timeout(LaunchError):
    """The run showed no sign of life, or took longer than it was given."""


class Stopped(LaunchError, KeyboardInterrupt):
    """Someone stopped the run: the stop button, or ``Job.stop``."""


class Refused(ValueError):
    """The run was not started: it asks for more than this machine can do, or for what can't be
    sent."""


def judge_failure(endings: list[Ending], logs: list[str]) -> RankFailed:
    """The verdict when at least one rank failed or died: the first cause whole, one line for each
    of the others."""
    guilty = _first_cause(endings, logs)
    detailed = diagnosis.detailed(endings)
    finding = detailed or _found(guilty, logs[guilty.rank], endings)
    lines = [finding.text]
    others = [ending for ending in endings if ending.rank != guilty.rank]
    if others and not detailed:
        lines.append("The other ranks:")
        lines += [f"  rank {ending.rank}: {_one_line(ending)}" for ending in others]
    return RankFailed("\n".join(lines), endings, logs, finding)


def judge_silence(endings: list[Ending], logs: list[str], why: str) -> Timeout:
    """The verdict when time is up: where each rank is."""
    finding = diagnosis.silent(endings)
    lines = [why, *(f"  rank {ending.rank}: {_one_line(ending)}" for ending in endings)]
    return Timeout("\n".join(lines + ([finding.text] if finding else [])), endings, logs, finding)


def _first_cause(endings: list[Ending], logs: list[str]) -> Ending:
    """A rank that died, or whose exception is its own; not one that only noticed that a peer was
    gone."""
    bad = sorted((e for e in endings if e.how in ("failed", "died")), key=lambda e: e.at)
    own = [e for e in bad if not is_echo(e)]
    dead = [e for e in own if e.how == "died"]
    spoken = [e for e in dead if _gloo_reason(logs[e.rank])]
    return (spoken or own or bad)[0]


def _found(ending: Ending, log: str, endings: list[Ending]) -> Finding:
    """What the first cause was: its fault, and all that is known of it."""
    if ending.how == "failed":
        kind, said, place = ending.error["type"], ending.error["message"], ending.error["where"]
        full = "out_of_memory" if _NO_ROOM.search(f"{kind} {said}") else "exception"
        text = f"rank {ending.rank} failed at {line_of(place)}: {kind}: {said}\n\n{ending.error['traceback']}"
        fault = "nan" if kind == "FloatingPointError" else full
        return Finding(fault=fault, ranks=(ending.rank,), text=text, where=place)
    reason, text = _gloo_reason(log), f"rank {ending.rank} {_death(ending)}"
    if reason:
        text += (
            f"\ngloo's reason: {reason}\nRanks brought different sizes or types to one collective."
        )
        text += "".join(
            f"\n  rank {e.rank} brought {call['shapes']} {'/'.join(call['dtypes'])} to "
            f"{call['op']} at "
            f"{line_of(call)}"
            for e in endings
            for call in e.calls[-1:]
        )
    elif ending.last_output:
        text += f"\nIts last output:\n{ending.last_output}"
    died = (
        "unclean_exit"
        if (ending.status or 0) >= 0
        else "sigkill"
        if ending.status == -signal.SIGKILL
        else "crash"
    )
    fault = (
        "mismatched_shape"
        if reason
        else "out_of_memory"
        if ending.state == "out of memory"
        else died
    )
    odd = diagnosis.disagreeing(endings, ending.rank, reason) if reason else (ending.rank,)
    where = next((e.calls[-1] for e in endings if e.rank == odd[0] and e.calls), {})
    return Finding(fault=fault, ranks=odd, text=text, where=where)


def _death(ending: Ending) -> str:
    if ending.status is None or ending.status >= 0:
        return f"left with exit code {ending.status} before it returned a result"
    name = signal.Signals(-ending.status).name
    if ending.state == "out of memory":
        return f"was killed by {name}: memory ran out (the system has counted one more out-of-memory kill)"
    return f"was killed by {name}: {_LIKELY.get(name, 'see its output')}"


def _gloo_reason(log: str) -> str:
    lines = [line for line in log.splitlines() if "what():" in line or "[enforce fail" in line]
    return lines[-1].split("what():")[-1].strip() if lines else ""


def _one_line(ending: Ending) -> str:
    if ending.how == "returned":
        return "returned"
    if ending.how == "died":
        return _death(ending)
    if ending.how == "failed":
        noticed = (
            "noticed that a peer was gone"
            if is_echo(ending)
            else f"{ending.error['type']}: {ending.error['message']}"
        )
        return f"{noticed.splitlines()[0]} (at {line_of(ending.error['where'])})"
    if ending.where:
        return f"in {diagnosis.place_of(ending)}"
    last = next(
        (line.strip() for line in ending.stack.splitlines() if line.strip().startswith("File")), ""
    )
    why = " (it is stopped)" if ending.state == "stopped" else " (stopped, or deep in native code)"
    return f"does not answer{': ' + last if last else why}"
