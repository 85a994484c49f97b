"""How a run ended, as an exception a learner can act on. Reads what the ranks said; starts and
stops nothing."""

import html
import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from labkit.launching.verdicts import diagnosis, disagreement
from labkit.launching.verdicts.outcome import Finding, Outcome, is_echo, line_of
from labkit.machine import ops
from labkit.words import say, to_say

ZYGOTE_DIED = to_say(
    "the process that starts ranks died, and the ranks with it: most likely memory ran out. "
    "Launch again; a new one is started."
)
NO_PROCESS = to_say("the system had no room for another process; ask for fewer ranks")
TOO_LONG = to_say(
    "the run was given {seconds:g} s (timeout_s) and is not done. Where its ranks are:"
)
NO_LIFE = to_say(
    "no sign of life for {seconds:g} s (hang_s): no collective, no output, no progress call. "
    "Where the ranks are:"
)
_LIKELY = {
    "SIGKILL": to_say(
        "the system ended it, most likely because memory ran out (or someone sent kill -9)"
    ),
    "SIGSEGV": to_say(
        "native code touched memory that is not its own; the last lines of its output name the call"
    ),
    "SIGABRT": to_say(
        "native code gave up; gloo does so when ranks bring different sizes or types to one "
        "collective"
    ),
    "SIGTERM": to_say("someone asked it to end"),
    "SIGBUS": to_say("a mapped file or shared memory ran out of room"),
}
_ON_THE_CPU = "No backend type associated with device type cpu"
_MOVE_IT = to_say(
    "A tensor on the CPU was to be sent, and these ranks send what lies on their devices. Make it "
    'in the function, move it with x.to(torch.get_default_device()), or launch with devices="cpu".'
)
_NUMBER = re.compile(r"\d+")
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

    def _ipython_display_(self) -> None:
        """A cell that ends in a verdict shows the report and, folded away under it, what was
        found, without the tracebacks."""
        told = _Told(type(self).__name__, str(self).partition("\n\n")[0])
        if LaunchError.draw is None:
            print(told)
            return
        from IPython.display import display

        LaunchError.draw(self)
        display(told)


@dataclass(frozen=True)
class _Told:
    """A verdict's words, below the report that says most of them."""

    kind: str
    """the exception's name"""
    found: str
    """its message"""

    def __repr__(self) -> str:
        return f"{self.kind}: {self.found}"

    def _repr_html_(self) -> str:
        name = say("{kind}: the message that was raised", kind=self.kind)
        style = "background:none;color:inherit;white-space:pre-wrap"
        found = f"<pre style='{style}'>{html.escape(self.found)}</pre>"
        return f"<details><summary>{name}</summary>{found}</details>"


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
    detailed = disagreement.detailed(outcomes)
    if detailed:
        return RankFailed(detailed.text, outcomes, logs, detailed)
    guilty = _first_cause(outcomes, logs)
    finding = _raised(guilty, outcomes) if guilty.how == "failed" else _died(guilty, logs, outcomes)
    lines = [finding.text]
    others = [outcome for outcome in outcomes if outcome.rank != guilty.rank]
    if others:
        lines.append(say("The other ranks:"))
        lines += [_row(outcome) for outcome in others]
    return RankFailed("\n".join(lines), outcomes, logs, finding)


def judge_silence(outcomes: list[Outcome], logs: list[str], why: str) -> Timeout:
    """The verdict when time is up: where each rank is."""
    finding = diagnosis.silent(outcomes)
    lines = [why]
    lines += [_row(outcome) for outcome in outcomes]
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


def _raised(outcome: Outcome, outcomes: list[Outcome]) -> Finding:
    """What a rank's own exception says. The odd ones are all that raised it at the same line: a
    program that is wrong on every rank has no odd one."""
    kind = outcome.error["type"]
    said = outcome.error["message"]
    place = outcome.error["where"]
    if kind == "FloatingPointError":
        fault = "nan"
    elif _NO_ROOM.search(f"{kind} {said}"):
        fault = "out_of_memory"
    else:
        fault = "exception"
    text = say(
        "rank {rank} failed at {line}: {kind}: {said}",
        rank=outcome.rank,
        line=line_of(place),
        kind=kind,
        said=said,
    )
    if "Error building extension" in said and (reason := ops.obstacle()):
        text += "\n" + say("It wanted to compile something here: {reason}", reason=reason)
    if _ON_THE_CPU in said:
        text += "\n" + say(_MOVE_IT)
    text += f"\n\n{outcome.error['traceback']}"
    alike = tuple(each.rank for each in outcomes if _is_alike(each, outcome))
    return Finding(fault=fault, ranks=alike, text=text, where=place)


def _is_alike(one: Outcome, other: Outcome) -> bool:
    """Whether two ranks raised the same kind of exception at the same line, and none of them only
    because a peer was gone. Without a line of the program's own: with the same words, whatever the
    numbers in them."""
    if one.rank == other.rank:
        return True
    if one.how != "failed" or is_echo(one) or one.error["type"] != other.error["type"]:
        return False
    if one.error["where"] or other.error["where"]:
        return one.error["where"] == other.error["where"]
    said, other_said = (_NUMBER.sub("", each.error["message"]) for each in (one, other))
    return said == other_said


def _died(outcome: Outcome, logs: list[str], outcomes: list[Outcome]) -> Finding:
    """Why a rank's process ended, as far as its exit code, its log and the others tell."""
    text = say("rank {rank} {died}", rank=outcome.rank, died=_death(outcome))
    reason = _gloo_reason(logs[outcome.rank])
    if reason:
        odd = disagreement.disagreeing(outcomes, outcome.rank, reason)
        fault = "mismatched_shape"
        text += "\n" + say("gloo's reason: {reason}", reason=reason)
        text += "\n" + say("Ranks brought different sizes or types to one collective.")
        text += "".join(_brought(each) for each in outcomes if each.calls)
    else:
        odd = (outcome.rank,)
        fault = _fault_of_death(outcome)
        if outcome.last_output:
            text += "\n" + say("Its last output:") + f"\n{outcome.last_output}"
    called = [each.calls[-1] for each in outcomes if each.rank == odd[0] and each.calls]
    return Finding(fault=fault, ranks=odd, text=text, where=called[0] if called else {})


def _brought(outcome: Outcome) -> str:
    """A line about the last call of a rank."""
    call = outcome.calls[-1]
    what = f"{call['shapes']} {'/'.join(call['dtypes'])}"
    told = say(
        "rank {rank} brought {what} to {op} at {line}",
        rank=outcome.rank,
        what=what,
        op=call["op"],
        line=line_of(call),
    )
    return f"\n  {told}"


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
        return say("left with exit code {code} before it returned a result", code=outcome.status)
    name = signal.Signals(-outcome.status).name
    if outcome.state == "out of memory":
        return say(
            "was killed by {signal}: memory ran out (the system has counted one more "
            "out-of-memory kill)",
            signal=name,
        )
    likely = say(_LIKELY.get(name, to_say("see its output")))
    return say("was killed by {signal}: {likely}", signal=name, likely=likely)


def _gloo_reason(log: str) -> str:
    """Why gloo aborted a rank, in its own words; nothing where it did not."""
    lines = [line for line in log.splitlines() if "what():" in line or "[enforce fail" in line]
    return lines[-1].split("what():")[-1].strip() if lines else ""


def _row(outcome: Outcome) -> str:
    """A line of a list of ranks."""
    return "  " + say("rank {rank}: {told}", rank=outcome.rank, told=_one_line(outcome))


def _one_line(outcome: Outcome) -> str:
    """How a rank ended, or where it is, in one line."""
    if outcome.how == "returned":
        return say("returned")
    if outcome.how == "died":
        return _death(outcome)
    if outcome.how == "failed":
        said = f"{outcome.error['type']}: {outcome.error['message']}"
        if is_echo(outcome):
            said = say("noticed that a peer was gone")
        line = line_of(outcome.error["where"])
        return say("{said} (at {line})", said=said.splitlines()[0], line=line)
    if outcome.where:
        return say("in {place}", place=diagnosis.place_of(outcome))
    return _why_silent(outcome)


def _why_silent(outcome: Outcome) -> str:
    """What is known of a rank that does not answer: the innermost line of its stack, or its
    state."""
    for line in outcome.stack.splitlines():
        if line.strip().startswith("File"):
            return say("does not answer: {line}", line=line.strip())
    if outcome.state == "stopped":
        return say("does not answer (it is stopped)")
    return say("does not answer (stopped, or deep in native code)")
