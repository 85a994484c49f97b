"""How a run ended, as an exception a learner can act on. Reads what the ranks said; starts and
stops nothing."""

import re
import signal
from collections.abc import Callable, Iterable

from labkit.launching.verdicts import diagnosis
from labkit.launching.verdicts.outcome import Finding, Outcome, is_echo, line_of

ZYGOTE_DIED = (
    "the process that starts ranks died, and the ranks with it: most likely memory ran out. "
    "Launch again; a new one is started."
)
NO_PROCESS = "the system had no room for another process; ask for fewer ranks"
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
    """A run that did not end well. ``outcomes`` has one Outcome per rank, ``logs`` what each
    printed, ``finding`` says what was wrong where that is known."""

    draw: "Callable[[LaunchError], None] | None" = None
    """shows a verdict in a notebook before its text; widgets set it"""

    def __init__(
        self,
        message: str,
        outcomes: Iterable[Outcome] = (),
        logs: Iterable[str] = (),
        finding: Finding | None = None,
    ) -> None:
        super().__init__(message)
        self.outcomes = tuple(outcomes)
        self.logs = tuple(logs)
        self.finding = finding
        self._drawn = False

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
    """The run was not started: it asks for more than this machine can do, for what can't be sent,
    or for what could mean two things."""


def judge_failure(outcomes: list[Outcome], logs: list[str]) -> RankFailed:
    """The verdict when at least one rank failed or died: the first cause whole, one line for each
    of the others."""
    detailed = diagnosis.detailed(outcomes)
    if detailed:
        return RankFailed(detailed.text, outcomes, logs, detailed)
    guilty = _first_cause(outcomes, logs)
    finding = _raised(guilty) if guilty.how == "failed" else _died(guilty, logs, outcomes)
    lines = [finding.text]
    others = [outcome for outcome in outcomes if outcome.rank != guilty.rank]
    if others:
        lines.append("The other ranks:")
        lines += [f"  rank {outcome.rank}: {_one_line(outcome)}" for outcome in others]
    return RankFailed("\n".join(lines), outcomes, logs, finding)


def judge_silence(outcomes: list[Outcome], logs: list[str], why: str) -> Timeout:
    """The verdict when time is up: where each rank is."""
    finding = diagnosis.silent(outcomes)
    lines = [why]
    lines += [f"  rank {outcome.rank}: {_one_line(outcome)}" for outcome in outcomes]
    if finding:
        lines.append(finding.text)
    return Timeout("\n".join(lines), outcomes, logs, finding)


def _first_cause(outcomes: list[Outcome], logs: list[str]) -> Outcome:
    """A rank that died, or whose exception is its own; not one that only noticed that a peer was
    gone."""
    bad = [outcome for outcome in outcomes if outcome.how in ("failed", "died")]
    bad.sort(key=lambda outcome: outcome.at)
    own = [outcome for outcome in bad if not is_echo(outcome)]
    dead = [outcome for outcome in own if outcome.how == "died"]
    spoken = [outcome for outcome in dead if _gloo_reason(logs[outcome.rank])]
    return (spoken or own or bad)[0]


def _raised(outcome: Outcome) -> Finding:
    """What a rank's own exception says."""
    kind = outcome.error["type"]
    said = outcome.error["message"]
    place = outcome.error["where"]
    if kind == "FloatingPointError":
        fault = "nan"
    elif _NO_ROOM.search(f"{kind} {said}"):
        fault = "out_of_memory"
    else:
        fault = "exception"
    text = f"rank {outcome.rank} failed at {line_of(place)}: {kind}: {said}"
    text += f"\n\n{outcome.error['traceback']}"
    return Finding(fault=fault, ranks=(outcome.rank,), text=text, where=place)


def _died(outcome: Outcome, logs: list[str], outcomes: list[Outcome]) -> Finding:
    """Why a rank's process ended, as far as its exit code, its log and the others tell."""
    text = f"rank {outcome.rank} {_death(outcome)}"
    reason = _gloo_reason(logs[outcome.rank])
    if reason:
        odd = diagnosis.disagreeing(outcomes, outcome.rank, reason)
        fault = "mismatched_shape"
        text += f"\ngloo's reason: {reason}"
        text += "\nRanks brought different sizes or types to one collective."
        text += "".join(_brought(each) for each in outcomes if each.calls)
    else:
        odd = (outcome.rank,)
        fault = _fault_of_death(outcome)
        if outcome.last_output:
            text += f"\nIts last output:\n{outcome.last_output}"
    called = [each.calls[-1] for each in outcomes if each.rank == odd[0] and each.calls]
    return Finding(fault=fault, ranks=odd, text=text, where=called[0] if called else {})


def _brought(outcome: Outcome) -> str:
    """A line about the last call of a rank."""
    call = outcome.calls[-1]
    what = f"{call['shapes']} {'/'.join(call['dtypes'])}"
    return f"\n  rank {outcome.rank} brought {what} to {call['op']} at {line_of(call)}"


def _fault_of_death(outcome: Outcome) -> str:
    """The name of what killed a rank: a key of FAULTS."""
    if outcome.state == "out of memory":
        return "out_of_memory"
    if (outcome.status or 0) >= 0:
        return "unclean_exit"
    return "sigkill" if outcome.status == -signal.SIGKILL else "crash"


def _death(outcome: Outcome) -> str:
    """The same in words."""
    if outcome.status is None or outcome.status >= 0:
        return f"left with exit code {outcome.status} before it returned a result"
    name = signal.Signals(-outcome.status).name
    if outcome.state == "out of memory":
        counted = "the system has counted one more out-of-memory kill"
        return f"was killed by {name}: memory ran out ({counted})"
    return f"was killed by {name}: {_LIKELY.get(name, 'see its output')}"


def _gloo_reason(log: str) -> str:
    """Why gloo aborted a rank, in its own words; nothing where it did not."""
    lines = [line for line in log.splitlines() if "what():" in line or "[enforce fail" in line]
    return lines[-1].split("what():")[-1].strip() if lines else ""


def _one_line(outcome: Outcome) -> str:
    """How a rank ended, or where it is, in one line."""
    if outcome.how == "returned":
        return "returned"
    if outcome.how == "died":
        return _death(outcome)
    if outcome.how == "failed":
        said = f"{outcome.error['type']}: {outcome.error['message']}"
        if is_echo(outcome):
            said = "noticed that a peer was gone"
        return f"{said.splitlines()[0]} (at {line_of(outcome.error['where'])})"
    if outcome.where:
        return f"in {diagnosis.place_of(outcome)}"
    return f"does not answer{_why_silent(outcome)}"


def _why_silent(outcome: Outcome) -> str:
    """What is known of a rank that does not answer: the innermost line of its stack, or its
    state."""
    for line in outcome.stack.splitlines():
        if line.strip().startswith("File"):
            return f": {line.strip()}"
    if outcome.state == "stopped":
        return " (it is stopped)"
    return " (stopped, or deep in native code)"
