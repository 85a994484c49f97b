"""One rank, seen from outside: what it has told, how it ended, and the files it leaves."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from labkit.launching.fork.messages import Failed, Progress, RankMessage, Report, Returned, Started
from labkit.launching.fork.request import Source
from labkit.launching.verdicts.outcome import Outcome

LAST_LINES = 12  # of a rank's output, in a verdict
TAIL_BYTES = 16384  # in which they are looked for


@dataclass(frozen=True, kw_only=True)
class RankState:
    """A rank as far as the notebook knows it now. ``hear`` gives what it knows next."""

    rank: int
    """which rank"""
    how: str = "running"
    """"running", "returned", "failed" (an exception) or "died" (a signal or an exit)"""
    ended_at: float = 0.0
    """when it ended, in seconds of the machine's monotonic clock; 0 while it runs"""
    status: int | None = None
    """its process's exit code, negative for a signal; None while the process is there"""
    system_state: str = ""
    """what the system says of it: "stopped", or "out of memory" for one that it has killed"""
    asked: bool = False
    """whether it still owes an answer to "where are you?\""""
    progress: Progress | None = None
    """how far it was when it last told"""
    report: Report | None = None
    """its last answer to "where are you?\""""
    returned: Returned | None = None
    """its last word, if its function returned"""
    failed: Failed | None = None
    """its last word, if its function raised"""

    def hear(self, message: RankMessage) -> "RankState":
        """The state after one more message."""
        if isinstance(message, Returned):
            return replace(self, how="returned", ended_at=message.at, returned=message)
        if isinstance(message, Failed):
            return replace(self, how="failed", ended_at=message.at, failed=message)
        if isinstance(message, Report):
            return replace(self, report=message, asked=False)
        if isinstance(message, Progress):
            return replace(self, progress=message)
        return self

    @property
    def last(self) -> dict[str, int]:
        """The last sequence number it has reached in each of its groups, as far as it told."""
        told = self.returned or self.report
        return (told.last or {}) if told else {}

    @property
    def is_waiting(self) -> bool:
        """Whether it was in a collective when it last answered, and runs still."""
        return self.how == "running" and self.report is not None and bool(self.report.pending)

    def row(self) -> dict:
        """What a table of ranks shows: rank, state, where it is, and step and loss if it told
        them."""
        where = self.report.where if self.report else {}
        row = {"rank": self.rank, "state": self.how, "where": where}
        if self.progress is not None:
            numbers = {"step": self.progress.step, "loss": self.progress.loss}
            row |= {name: number for name, number in numbers.items() if number is not None}
        return row

    def outcome(
        self, last: Mapping[int, dict], calls: tuple[dict, ...], stack: str = "", output: str = ""
    ) -> Outcome:
        """How it ended, or where it is stuck.

        ``last``: each rank's last sequence numbers, to set beside its own; ``calls``: what it has
        called; ``stack``: faulthandler's, where it does not answer; ``output``: the end of its log.
        """
        report = self.report
        error = {}
        if self.failed is not None:
            error = {name: value for name, value in vars(self.failed).items() if name != "at"}
        return Outcome(
            rank=self.rank,
            how="stuck" if self.how == "running" else self.how,
            at=self.ended_at,
            status=self.status,
            error=error,
            where=report.where if report else {},
            stack=stack,
            state=self.system_state,
            pending=_beside_others(report, last) if report else (),
            calls=calls,
            groups=report.groups if report else {},
            last_output=output,
        )


def is_sign_of_life(message: RankMessage) -> bool:
    """Whether a rank that says this gets on. An answer to a question is no such sign."""
    return isinstance(message, (Started, Progress, Returned))


def _beside_others(report: Report, last: Mapping[int, dict]) -> tuple[dict, ...]:
    """Collectives under way, each with its group's ranks and how far every rank has come in it."""
    pending = []
    for work in report.pending:
        reached = {rank: numbers.get(work["group"]) for rank, numbers in last.items()}
        ranks = report.groups.get(work["group"], [])
        pending.append({**work, "ranks": ranks, "last": reached})
    return tuple(pending)


@dataclass(frozen=True, kw_only=True)
class RankFiles:
    """The files of one rank in its run's folder."""

    folder: Path
    """the run's folder"""
    rank: int
    """which rank"""

    @classmethod
    def of_run(cls, folder: Path, num_ranks: int) -> "tuple[RankFiles, ...]":
        """Those of every rank of a run."""
        return tuple(cls(folder=folder, rank=rank) for rank in range(num_ranks))

    @property
    def log(self) -> Path:
        """What it prints, standard output and errors together."""
        return self.folder / f"log-{self.rank}.txt"

    @property
    def result(self) -> Path:
        """What it returned, pickled."""
        return self.folder / f"result-{self.rank}.pkl"

    @property
    def stack(self) -> Path:
        """Where faulthandler writes its Python stack at SIGUSR1."""
        return self.folder / f"stack-{self.rank}.txt"

    @property
    def calls(self) -> Path:
        """Which collectives it has called, as JSON."""
        return self.folder / f"calls-{self.rank}.json"

    def log_bytes(self) -> int:
        """How much it has printed so far."""
        return self.log.stat().st_size if self.log.exists() else 0

    def read_log(self) -> str:
        """What it has printed so far."""
        return self.log.read_text("utf-8", "replace") if self.log.exists() else ""

    def read_log_end(self) -> str:
        """The last lines of it: a log can be long."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log_bytes() - TAIL_BYTES))
            return last_lines(file.read().decode(errors="replace"))

    def stack_bytes(self) -> int:
        """How much faulthandler has written so far."""
        return self.stack.stat().st_size if self.stack.exists() else 0

    def read_calls(self) -> list[dict]:
        """The collectives that it has called, as far as it told."""
        return json.loads(self.calls.read_text()) if self.calls.exists() else []

    def write_calls(self, calls: list[dict]) -> None:
        """Keeps them. A reader finds a whole file or none."""
        draft = self.calls.with_suffix(".draft")
        draft.write_text(json.dumps(calls))
        draft.replace(self.calls)


@dataclass(frozen=True, kw_only=True)
class CallsReader:
    """What the ranks of a run have called. A file is read again only once it has changed: it is
    asked for several times a second, and thousands of calls may stand there."""

    folder: Path
    """the run's folder"""
    _read: dict[int, tuple[int, tuple[dict, ...]]] = field(default_factory=dict)

    def calls(self, rank: int) -> tuple[dict, ...]:
        """The collectives that a rank has called, as far as it told."""
        files = RankFiles(folder=self.folder, rank=rank)
        changed_ns = files.calls.stat().st_mtime_ns if files.calls.exists() else 0
        if rank not in self._read or self._read[rank][0] != changed_ns:
            self._read[rank] = changed_ns, tuple(files.read_calls())
        return self._read[rank][1]


def last_lines(text: str, num_lines: int = LAST_LINES) -> str:
    """The last lines of a log."""
    return "\n".join(text.strip().splitlines()[-num_lines:])


def new_stacks(before: dict[RankFiles, int], sources: dict[str, Source]) -> dict[int, str]:
    """What each rank adds to its stack file, which held so many bytes; waited for half a second.
    ``sources``: the files that are cells, and
    what the notebook calls them."""
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        if all(files.stack_bytes() > size for files, size in before.items()):
            break
        time.sleep(0.01)
    told = {}
    for files, size in before.items():
        text = files.stack.read_text(encoding="utf-8")[size:]
        for file, source in sources.items():
            text = text.replace(file, source.name)
        told[files.rank] = text
    return told
