"""The notebook's view of one rank: what it said, what it printed, how it ended."""

import socket
from pathlib import Path

from labkit.verdict import Ending

LAST_LINES = 12  # of a rank's output, in a verdict


class Peer:
    """One rank, as far as the notebook knows it. Changes while the run goes on.

    ``how`` is "stuck" while it runs, then "returned", "failed" or "died"; ``at`` is when that was (monotonic seconds);
    ``said`` its last word, ``report`` its last answer to "where are you?", ``status`` its process's exit code.
    """

    def __init__(self, rank: int, sock: socket.socket, folder: Path) -> None:
        self.rank, self.sock, self.folder = rank, sock, folder
        self.how, self.at, self.status = "stuck", 0.0, None
        self.said: dict = {}
        self.report: dict = {}
        self.progress: dict = {}

    def hear(self, message: dict | None) -> bool:
        """Takes in one message. True if it is a sign of life (an answer to a question is none)."""
        event = message.get("event") if message else None
        if event in ("returned", "failed"):
            self.how, self.said, self.at = event, message, message["at"]
        elif event == "report":
            self.report = message
        elif event == "progress":
            self.progress = {name: message[name] for name in ("step", "loss") if message[name] is not None}
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

    def ending(self, last: dict[int, dict], stack: str) -> Ending:
        """How it ended, or where it is stuck. ``last``: each rank's last sequence numbers, to set beside its own."""
        groups, pending = self.report.get("groups", {}), []
        for work in self.report.get("pending", []):
            reached = {rank: groups_of.get(work["group"], 0) for rank, groups_of in last.items()}
            pending.append({**work, "ranks": groups.get(work["group"], []), "last": reached})
        return Ending(
            rank=self.rank,
            how=self.how,
            at=self.at,
            status=self.status,
            error=self.said if self.how == "failed" else {},
            where=self.report.get("where", {}),
            stack=stack,
            pending=tuple(pending),
            last_output="\n".join(self.log.strip().splitlines()[-LAST_LINES:]),
        )
