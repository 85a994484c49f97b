"""How a run ended, as an exception a learner can act on. Reads what the ranks said; starts and stops nothing."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

_LIKELY = {
    "SIGKILL": "the system ended it, most likely because memory ran out (or someone sent kill -9)",
    "SIGSEGV": "native code touched memory that is not its own; the last lines of its output name the call",
    "SIGABRT": "native code gave up; gloo does so when ranks bring different sizes or types to one collective",
    "SIGTERM": "someone asked it to end",
    "SIGBUS": "a mapped file or shared memory ran out of room",
}
PEER_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "Socket closed",
)
"""What gloo says in a rank whose peer went: an echo of another rank's failure."""
_ALIKE = ("all_reduce", "reduce", "all_gather", "gather", "_all_gather_base", "reduce_scatter", "_reduce_scatter_base")
"""Collectives to which every rank brings the same shape; in the others shapes may differ and prove nothing."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one rank ended."""

    rank: int
    """which rank"""
    how: str
    """"returned", "failed" (an exception), "died" (a signal or an exit), "stuck" (still running when the run was
    judged)"""
    at: float = 0.0
    """when, in seconds of the machine's monotonic clock"""
    error: dict = field(default_factory=dict)
    """of a failed rank: type, message, traceback, where"""
    status: int | None = None
    """of a dead rank: its exit code, negative for a signal"""
    where: dict = field(default_factory=dict)
    """of a stuck rank: call, file, line, function, text; empty when it does not answer"""
    stack: str = ""
    """of a rank that does not answer: faulthandler's stack"""
    pending: tuple[dict, ...] = ()
    """collectives under way: group, seq, op, shapes, dtypes"""
    last_output: str = ""
    """the end of what it printed"""


class LaunchError(RuntimeError):
    """A run that did not end well. ``endings`` has one Ending per rank, ``logs`` what each printed."""

    def __init__(self, message: str, endings: Iterable[Ending] = (), logs: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.endings, self.logs = tuple(endings), tuple(logs)

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of the launcher's own frames."""
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
    """The run was not started: it asks for more than this machine can do, or for what can't be sent."""


def judge_failure(endings: list[Ending], logs: list[str]) -> RankFailed:
    """The verdict when at least one rank failed or died: the first cause whole, one line for each of the others."""
    guilty = _first_cause(endings, logs)
    lines = [_cause(guilty, logs[guilty.rank])]
    others = [ending for ending in endings if ending.rank != guilty.rank]
    if others:
        lines.append("The other ranks:")
        lines += [f"  rank {ending.rank}: {_one_line(ending)}" for ending in others]
    return RankFailed("\n".join(lines), endings, logs)


def early_return(endings: list[Ending]) -> str | None:
    """Proof that running ranks wait in a collective for one that has already returned; None while there is none."""
    returned = [e for e in endings if e.how == "returned"]
    for ending in endings:
        for work in ending.pending if ending.how == "stuck" else ():
            reached = {e.rank: work["last"].get(e.rank) for e in returned if e.rank in work["ranks"]}
            gone = [rank for rank, seq in reached.items() if seq is not None and seq < work["seq"]]
            if gone:
                waiting = [e for e in endings if e.how == "stuck" and _is_in(e, work["group"])]
                them, verb = _ranks([e.rank for e in waiting]), "wait" if len(waiting) > 1 else "waits"
                return (
                    f"{_ranks(gone)} already returned; {them} {verb} for {'it' if len(gone) == 1 else 'them'} in "
                    f"{_place(waiting[0])}.\nEvery rank of a group must call every collective of that group: look for "
                    f"an `if rank ...` or a loop that is shorter on {_ranks(gone)}."
                )
    return None


def _is_in(ending: Ending, group: str) -> bool:
    return any(work["group"] == group for work in ending.pending)


def mismatch(endings: list[Ending]) -> str | None:
    """Proof that ranks are in different collectives at one place of a group's sequence; None while there is none."""
    seen: dict[tuple, dict[int, tuple[Ending, dict]]] = {}
    for ending in endings:
        for work in ending.pending if ending.how == "stuck" else ():
            seen.setdefault((work["group"], work["seq"]), {})[ending.rank] = (ending, work)
    for (_, seq), by_rank in sorted(seen.items(), key=lambda item: item[0][1]):
        if len({(w["op"], str(w["shapes"]) if w["op"] in _ALIKE else "") for _, w in by_rank.values()}) > 1:
            lines = [f"ranks call different collectives as number {seq} of their group:"]
            lines += [
                f"  rank {rank}: {work['op']} of {work['shapes']} {'/'.join(work['dtypes'])} at {_line(ending.where)}"
                for rank, (ending, work) in sorted(by_rank.items())
            ]
            lines.append("Every rank must call the same collectives in the same order, with the same shapes.")
            return "\n".join(lines)
    return None


def judge_silence(endings: list[Ending], logs: list[str], why: str) -> Timeout:
    """The verdict when time is up: where each rank is."""
    lines = [why, *(f"  rank {ending.rank}: {_one_line(ending)}" for ending in endings)]
    return Timeout("\n".join(lines), endings, logs)


def _first_cause(endings: list[Ending], logs: list[str]) -> Ending:
    """A rank that died, or whose exception is its own; not one that only noticed that a peer was gone."""
    bad = sorted((e for e in endings if e.how in ("failed", "died")), key=lambda e: e.at)
    own = [e for e in bad if not _is_echo(e)]
    dead = [e for e in own if e.how == "died"]
    spoken = [e for e in dead if _gloo_reason(logs[e.rank])]
    return (spoken or own or bad)[0]


def _is_echo(ending: Ending) -> bool:
    text = ending.error.get("message", "")
    return ending.how == "failed" and any(words in text for words in PEER_GONE)


def _cause(ending: Ending, log: str) -> str:
    if ending.how == "failed":
        place = _line(ending.error["where"])
        return (
            f"rank {ending.rank} failed at {place}: {ending.error['type']}: {ending.error['message']}\n\n"
            f"{ending.error['traceback']}"
        )
    reason = _gloo_reason(log)
    text = f"rank {ending.rank} {_death(ending.status)}"
    if reason:
        text += f"\ngloo's reason: {reason}\nRanks brought different sizes or types to one collective."
    return text + (f"\nIts last output:\n{ending.last_output}" if ending.last_output and not reason else "")


def _death(status: int | None) -> str:
    if status is None or status >= 0:
        return f"left with exit code {status} before it returned a result"
    name = signal.Signals(-status).name
    return f"was killed by {name}: {_LIKELY.get(name, 'see its output')}"


def _gloo_reason(log: str) -> str:
    lines = [line for line in log.splitlines() if "what():" in line or "[enforce fail" in line]
    return lines[-1].split("what():")[-1].strip() if lines else ""


def _one_line(ending: Ending) -> str:
    if ending.how == "returned":
        return "returned"
    if ending.how == "died":
        return _death(ending.status)
    if ending.how == "failed":
        noticed = (
            "noticed that a peer was gone" if _is_echo(ending) else f"{ending.error['type']}: {ending.error['message']}"
        )
        return f"{noticed.splitlines()[0]} (at {_line(ending.error['where'])})"
    if ending.where:
        return f"in {_place(ending)}"
    last = next((line.strip() for line in ending.stack.splitlines() if line.strip().startswith("File")), "")
    return f"does not answer{': ' + last if last else ' (stopped, or deep in native code)'}"


def _place(ending: Ending) -> str:
    call = ending.where.get("call") or (ending.pending[0]["op"] if ending.pending else None)
    return f"{call + ' at ' if call else ''}{_line(ending.where)}"


def _line(where: dict) -> str:
    if not where.get("line"):
        return "an unknown line"
    return f"line {where['line']} of {where['file']} ({where['text']})"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
