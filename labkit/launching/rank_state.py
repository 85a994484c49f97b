"""The notebook's view of one rank: what it said, what it printed, how it ended."""

import socket
from pathlib import Path

from labkit.launching import introspect
from labkit.launching.outcome import Ending

LAST_LINES, TAIL_BYTES = 12, 16384  # of a rank's output, in a verdict


class Peer:
    """One rank, as far as the notebook knows it. Changes while the run goes on.

    ``how`` is "stuck" while it runs, then "returned", "failed" or "died"; ``at`` is when that was
    (monotonic seconds); ``said`` its last word, ``report`` its last answer to "where are you?",
    ``status`` its process's exit code, ``state`` what the system says of it.
    """

    def __init__(self, rank: int, sock: socket.socket, folder: Path) -> None:
        self.rank, self.sock, self.folder = rank, sock, folder
        self.how, self.at, self.status, self.asked, self.state = "stuck", 0.0, None, False, ""
        self.said: dict = {}
        self.report: dict = {}
        self.progress: dict = {}
        self._told_at, self._calls = 0, ()

    def hear(self, message: dict | None) -> bool:
        """Takes in one message. True if it is a sign of life (an answer to a question is none)."""
        event = message.get("event") if message else None
        if event in ("returned", "failed"):
            self.how, self.said, self.at = event, message, message["at"]
        elif event == "report":
            self.report, self.asked = message, False
        elif event == "progress":
            self.progress = {
                name: message[name] for name in ("step", "loss") if message[name] is not None
            }
        return event in ("progress", "started", "returned")

    @property
    def last(self) -> dict:
        """The last sequence number it has reached in each of its groups."""
        return (self.said if self.how == "returned" else self.report).get("last", {})

    @property
    def log_file(self) -> Path:
        """Where its output goes."""
        return self.folder / f"log-{self.rank}.txt"

    @property
    def result_file(self) -> Path:
        """Where it leaves its result."""
        return self.folder / f"result-{self.rank}.pkl"

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def calls(self) -> tuple[dict, ...]:
        """The collectives that it has called, as far as it told."""
        file = introspect.calls_file(self.folder, self.rank)
        told_at = file.stat().st_mtime_ns if file.exists() else 0
        if (
            told_at != self._told_at
        ):  # asked several times a second, and thousands of calls may stand there
            self._told_at, self._calls = (
                told_at,
                tuple(introspect.read_calls(self.folder, self.rank)),
            )
        return self._calls

    @property
    def tail(self) -> str:
        """The end of what it has printed: a log can be long, and this is asked several times a
        second."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as file:
            file.seek(max(0, self.log_file.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")

    def ending(self, last: dict[int, dict], stack: str) -> Ending:
        """How it ended, or where it is stuck. ``last``: each rank's last sequence numbers, to set
        beside its own."""
        groups, pending = self.report.get("groups", {}), []
        for work in self.report.get("pending", []):
            reached = {rank: (seqs or {}).get(work["group"]) for rank, seqs in last.items()}
            pending.append({**work, "ranks": groups.get(work["group"], []), "last": reached})
        return Ending(
            rank=self.rank,
            how=self.how,
            at=self.at,
            status=self.status,
            error=self.said if self.how == "failed" else {},
            where=self.report.get("where", {}),
            stack=stack,
            state=self.state,
            pending=tuple(pending),
            calls=self.calls,
            groups=groups,
            last_output="\n".join(self.tail.strip().splitlines()[-LAST_LINES:]),
        )
