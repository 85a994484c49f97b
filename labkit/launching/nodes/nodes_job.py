"""A run on several machines: a Job whose ranks tell by files what a fork's ranks tell by sockets.
Everything else, from the verdicts to the Run, is a Job's."""

import json
import signal
import time
from collections.abc import Iterable
from dataclasses import replace

from labkit.launching.fork import messages
from labkit.launching.fork.request import Request
from labkit.launching.job import Conclusion, Job
from labkit.launching.nodes.launchers import Launcher
from labkit.launching.rank_state import RankState, is_sign_of_life, last_lines
from labkit.launching.run import Run
from labkit.launching.verdicts import verdict
from labkit.launching.verdicts.outcome import is_echo
from labkit.words import say

LOOK_S = 0.05
"""how often the folder is read"""
LOST_S = 1.0
"""how often it is looked whether the practice cluster is still there"""
PATIENCE_S = 20.0
"""how long torchrun may take to tell which rank died, where the others only noticed it: a second or
two, and more on a busy machine; it is not waited for once it has ended"""


class NodesJob(Job):
    """A run under way on several machines."""

    stop_s = 15.0
    """a scheduler takes its time to end a job"""

    def __init__(
        self, request: Request, launcher: Launcher, *, timeout_s: float, hang_s: float
    ) -> None:
        self._read: dict[int, int] = dict.fromkeys(range(request.num_ranks), 0)
        self._reported: dict[int, int] = {}
        self._touched_at = 0.0
        self._looked_at = time.monotonic()
        (request.folder / "alive").touch()
        super().__init__(request, launcher, timeout_s=timeout_s, hang_s=hang_s)

    def _follow(self) -> Conclusion:
        """Reads what the ranks tell, and judges, until there is a conclusion."""
        self._lived_at = self._asked_at = time.monotonic()
        self._states = [RankState(rank=rank) for rank in range(self.num_ranks)]
        while True:
            ended = self._client.ended()  # before the reading: what they told last is then there
            self._touch()
            for rank in range(self.num_ranks):
                self._read_told(rank)
                self._read_report(rank)
            conclusion = self._bury_all() if ended else self._lost()
            conclusion = conclusion or self._judge()
            if conclusion is not None:
                return conclusion
            self._stopping.wait(LOOK_S)

    def _touch(self) -> None:
        """Shows the workers that somebody waits for them."""
        if time.monotonic() > self._touched_at + 2:
            self._touched_at = time.monotonic()
            (self._request.folder / "alive").touch()

    def _lost(self) -> Conclusion | None:
        """The cluster is no more, and ranks that still run there are cut off."""
        if time.monotonic() < self._looked_at + LOST_S:
            return None
        self._looked_at = time.monotonic()
        if not self._client.lost_cluster():
            return None
        return verdict.LaunchError(
            say(
                "the practice cluster that this run was on has been taken down, or another one has "
                "come in its place. Start the run again, on cluster.place()"
            ),
            self._outcomes(),
            self._logs(),
        )

    def _read_told(self, rank: int) -> None:
        """Whole lines that a rank has added."""
        file = self._request.folder / f"told-{rank}.jsonl"
        if not file.exists() or file.stat().st_size <= self._read[rank]:
            return
        with open(file, "rb") as told:
            told.seek(self._read[rank])
            text = told.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[rank] += len(whole)
        for line in whole.splitlines():
            message = messages.decode(json.loads(line))
            # another machine's monotonic clock means nothing here
            self._states[rank] = self._states[rank].hear(replace(message, at=time.monotonic()))
            if is_sign_of_life(message):
                self._lived_at = time.monotonic()

    def _read_report(self, rank: int) -> None:
        """Where a rank is, if it has said so anew."""
        file = self._request.folder / f"report-{rank}.json"
        changed_ns = file.stat().st_mtime_ns if file.exists() else 0
        if changed_ns > self._reported.get(rank, 0):
            self._reported[rank] = changed_ns
            report = messages.decode(json.loads(file.read_bytes()))
            self._states[rank] = self._states[rank].hear(replace(report, at=time.monotonic()))

    def _bury_all(self) -> Conclusion | None:
        """All launchers have ended: whoever has not told how it went has died."""
        silent = self._running()
        if not silent:
            return None
        codes = self._client.exit_codes()
        if not any(state.report for state in self._states):
            said = last_lines(self._client.said(), 30)
            return verdict.RankFailed(
                say("no rank came up. {launcher} said:", launcher=self._client.name) + f"\n{said}",
                self._outcomes(),
                self._logs(),
            )
        for rank in silent:
            code = codes.get(rank, -signal.SIGTERM)
            # torchrun ends the others of its node by SIGTERM: they died after the first
            late = 1.0 if code == -signal.SIGTERM else 0.0
            self._note(rank, status=code, how="died", ended_at=time.monotonic() + late)
        return verdict.judge_failure(self._outcomes(), self._logs())

    def _judge(self) -> Conclusion | None:
        """As for one machine; but where ranks only noticed that a peer is gone, torchrun, which
        knows how it went, is waited for."""
        bad = [state for state in self._states if state.how == "failed"]
        if bad and self._running() and all(is_echo(each) for each in self._failed()):
            oldest = min(state.ended_at for state in bad)
            if time.monotonic() < oldest + PATIENCE_S and not self._stopping.is_set():
                return None
        return super()._judge()

    def _failed(self) -> list:
        return [each for each in self._outcomes(with_output=False) if each.how == "failed"]

    def _ask(self) -> None:
        """Nothing: the ranks report by themselves."""

    def _signal(self, number: int, ranks: Iterable[int]) -> None:
        """Asks for stacks; no other signal is sent to another machine."""
        if number == signal.SIGUSR1:
            (self._request.folder / "stacks-asked").touch()

    def _collect(self) -> Run:
        """The Run, with what is known of its machines."""
        run = super()._collect()
        folder = self._request.folder
        about = [
            json.loads((folder / f"about-{rank}.json").read_text())
            for rank in range(self.num_ranks)
        ]
        return replace(run, machine={**run.machine, "ranks": about})

    def _end(self) -> None:
        """Leaves nothing on any node: ranks that have returned leave by themselves."""
        deadline = time.monotonic() + 5
        if all(state.how == "returned" for state in self._states) and self._states:
            while not self._client.ended() and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        if self._request.folder.exists():
            (self._request.folder / "stop").touch()
        self._client.stop()
        for sock in (self._wake_read, self._wake):
            sock.close()
