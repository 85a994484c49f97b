"""A run under way: watch real ranks, judge how they end, leave nothing behind.

One thread per run listens to the ranks and to the zygote. Whatever happens - a result, an
exception, a signal, a deadlock, the stop button - becomes one outcome: a Run, or an exception of
``labkit.launching.verdict``.
"""

import contextlib
import multiprocessing.connection
import pickle
import selectors
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from labkit.launching import diagnosis, messages, verdict, zygote_client
from labkit.launching.rank_state import Peer
from labkit.launching.run import Run, remove
from labkit.machine import resources

GRACE_S = 0.3  # how long the others may still speak after the first failure
POLL_S = 0.2  # how often running ranks are asked where they are
listeners: list[
    Callable[["Job"], None]
] = []  # called in the thread that waits, several times a second


class Job:
    """A run under way. ``wait`` returns its Run or raises its verdict, ``stop`` ends it, ``stacks``
    tells where the ranks are."""

    def __init__(
        self, request: dict, server_: zygote_client.Server, *, timeout_s: float, hang_s: float
    ) -> None:
        self.num_ranks, self.began = request["ranks"], time.monotonic()
        self.timeout_s, self.hang_s = timeout_s, hang_s
        self._request, self._server, self._folder = request, server_, Path(request["folder"])
        self._peers: list[Peer] = []
        self._control: socket.socket | None = None
        self._pids, self._oom_kills = [], resources.num_oom_kills()
        self._over, self._stopping = threading.Event(), threading.Event()
        self._wake_read, self._wake = socket.socketpair()
        self._outcome: Run | BaseException | None = None
        self._life, self._lived_at, self._asked_at, self._proof = None, self.began, self.began, None
        threading.Thread(target=self._watch, daemon=True, name="labkit-watch").start()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._over.is_set()

    @property
    def seconds(self) -> float:
        """Since the call, in seconds."""
        return time.monotonic() - self.began

    @property
    def progress(self) -> list[dict]:
        """One row per rank: rank, state, and what is known of step, loss and where it is."""
        return [
            {
                "rank": p.rank,
                "state": "running" if p.how == "stuck" else p.how,
                **p.progress,
                "where": p.report.get("where", {}),
            }
            for p in self._peers
        ]

    def wait(self) -> Run:
        """Blocks until the end. Returns the Run; raises RankFailed, Deadlock, Timeout or, if it was
        stopped, Stopped."""
        try:
            while not self._over.wait(0.1 if listeners else 1.0):
                for listener in listeners:
                    listener(self)
        # also after the stop button or an alarm: no rank outlives the cell that waits for it
        finally:
            self.stop()
            for listener in listeners:
                listener(self)
        if isinstance(self._outcome, BaseException):
            raise self._outcome.with_traceback(None)
        return self._outcome

    def stop(self) -> None:
        """Kills every rank and returns when they are gone. Stopping a job that has ended does
        nothing."""
        if self._over.is_set():
            return
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._over.wait(3)

    def stacks(self) -> dict[int, str]:
        """The Python stack of every running rank, also of one that is deep in native code."""
        running = [p.rank for p in self._peers if p.how == "stuck"]
        before = {
            r: self._stack_file(r).stat().st_size for r in running if self._stack_file(r).exists()
        }
        self._signal(signal.SIGUSR1, list(before))
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and any(
            self._stack_file(r).stat().st_size <= size for r, size in before.items()
        ):
            time.sleep(0.01)
        stacks = {r: self._stack_file(r).read_text()[size:] for r, size in before.items()}
        for file, (name, _) in self._request["sources"].items():
            stacks = {r: text.replace(file, name) for r, text in stacks.items()}
        return stacks

    def _stack_file(self, rank: int) -> Path:
        return self._folder / f"stack-{rank}.txt"

    def _signal(self, number: int, ranks: list[int]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                messages.send(self._control, {"kill": int(number), "ranks": ranks})

    def _watch(self) -> None:
        """The watching thread: from the fork to the outcome."""
        outcome: Run | BaseException
        try:
            self._control, socks = self._server.fork(self._request)
            self._lived_at = self._asked_at = time.monotonic()
            self._peers = [Peer(rank, sock, self._folder) for rank, sock in enumerate(socks)]
            outcome = self._follow()
        except BaseException as error:
            outcome = error
        if isinstance(
            outcome, Run
        ):  # its ranks only have to leave: the notebook need not wait for that
            weakref.finalize(outcome, remove, self._folder)
            self._outcome = outcome
            self._over.set()
        self._end()
        if not isinstance(outcome, Run):
            remove(self._folder)
            self._outcome = outcome
            self._over.set()

    def _follow(self) -> Run | BaseException:
        """Listens and judges until there is an outcome."""
        selector = selectors.DefaultSelector()
        selector.register(self._wake_read, selectors.EVENT_READ, None)
        selector.register(self._control, selectors.EVENT_READ, None)
        for peer in self._peers:
            selector.register(peer.sock, selectors.EVENT_READ, peer)
        with selector:
            while True:
                for key, _ in selector.select(timeout=0.05 if self.seconds > GRACE_S else 0.01):
                    if key.fileobj is self._wake_read:
                        continue
                    message, _ = messages.receive(key.fileobj)
                    if message is None:
                        selector.unregister(key.fileobj)
                    if key.data is not None:
                        self._hear(key.data, message)
                    elif message is None:
                        return verdict.RankFailed(
                            "the process that starts ranks died, and the ranks with it: most "
                            "likely "
                            "memory ran out. Launch again; a new one is started.",
                            self._endings(),
                            self._logs(),
                        )
                    elif "pids" in message:
                        self._pids = message["pids"]
                        if len(self._pids) < self.num_ranks:
                            return verdict.RankFailed(
                                "the system had no room for another process; ask for fewer ranks"
                            )
                    elif "exited" in message:
                        self._bury(self._peers[message["exited"]], message["status"])
                outcome = self._judge()
                if outcome is not None:
                    return outcome

    def _hear(self, peer: Peer, message: dict | None) -> None:
        if peer.hear(message):
            self._lived_at = time.monotonic()

    def _bury(self, peer: Peer, status: int) -> None:
        peer.status = status
        if status == -signal.SIGKILL and resources.num_oom_kills() > self._oom_kills:
            peer.state = "out of memory"
        while peer.how == "stuck":  # what it said before it died may still be on its way
            message = messages.receive(peer.sock)[0] if _readable(peer.sock) else None
            if message is None:
                peer.how, peer.at = "died", time.monotonic()
                break
            self._hear(peer, message)

    def _judge(self) -> Run | BaseException | None:
        """The outcome if there is one now."""
        now, hows = time.monotonic(), [peer.how for peer in self._peers]
        if self._stopping.is_set():
            return verdict.Stopped(
                f"stopped after {self.seconds:.1f} s", self._endings(), self._logs()
            )
        if all(how == "returned" for how in hows):
            return self._collect()
        bad = [peer.at for peer in self._peers if peer.how in ("failed", "died")]
        if bad:
            if "stuck" in hows and now < min(bad) + GRACE_S:
                return None
            return verdict.judge_failure(self._endings(), self._logs())
        if self.seconds > self.timeout_s:
            return self._silence(
                f"the run was given {self.timeout_s:g} s (timeout_s) and is not done. Where its "
                "ranks are:"
            )
        if now - self._asked_at > POLL_S:
            return self._ask(now)
        return None

    def _ask(self, now: float) -> BaseException | None:
        """Every POLL_S: judges the last reports, asks for new ones."""
        self._asked_at = now
        endings = self._endings()
        proof = diagnosis.missing(endings) or diagnosis.different(endings)
        if proof and self._proof and proof.text == self._proof.text:
            return verdict.Deadlock(proof.text, endings, self._logs(), proof)
        self._proof = proof
        life = [
            (p.how, p.last, p.log_file.stat().st_size if p.log_file.exists() else 0)
            for p in self._peers
        ]
        if life != self._life:
            self._life, self._lived_at = life, now
        if now - self._lived_at > self.hang_s:
            return self._silence(
                f"no sign of life for {self.hang_s:g} s (hang_s): no collective, no output, no "
                "progress call. "
                "Where the ranks are:"
            )
        for peer in self._peers:
            if (
                peer.how == "stuck" and not peer.asked
            ):  # one open question at a time: nobody blocks who is not heard
                peer.asked = True
                with contextlib.suppress(OSError):
                    messages.send(peer.sock, {"report": True})
        return None

    def _silence(self, why: str) -> BaseException:
        stacks = self.stacks()
        for peer in self._peers:
            if peer.how == "stuck" and peer.report.get("at", 0) < self._asked_at - 3 * POLL_S:
                peer.report = {}  # an old answer is no answer
                peer.state = "stopped" if resources.is_stopped(self._pids[peer.rank]) else ""
        return verdict.judge_silence(self._endings(stacks), self._logs(), why)

    def _endings(self, stacks: dict[int, str] | None = None) -> list[verdict.Ending]:
        """What is known of every rank, in the words of the verdicts."""
        last = {peer.rank: peer.last for peer in self._peers}
        return [peer.ending(last, (stacks or {}).get(peer.rank, "")) for peer in self._peers]

    def _logs(self) -> list[str]:
        return [peer.log for peer in self._peers]

    def _collect(self) -> Run:
        """Every rank's result, once all have returned."""
        results = tuple(pickle.loads(p.result_file.read_bytes()) for p in self._peers)
        notes = tuple(dict.fromkeys(note for p in self._peers for note in p.said["notes"]))
        return Run(
            results=results,
            logs=tuple(self._logs()),
            seconds=self.seconds,
            backend=self._request["backend"],
            notes=notes,
            peak_rss_bytes=tuple(p.said["peak_rss_bytes"] for p in self._peers),
            machine=resources.summary(),
            folder=self._folder,
        )

    def _end(self) -> None:
        """Leaves no process: ranks that returned are told bye, all others are killed."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                messages.send(peer.sock, {"bye": True})
        alive = [p for p in self._peers if p.status is None and p.how != "returned"]
        self._signal(signal.SIGKILL, [p.rank for p in alive])
        for sock in (*(p.sock for p in self._peers), self._wake_read, self._wake):
            sock.close()
        if self._control is not None:
            self._await_exits({p.rank for p in self._peers if p.status is None})
            self._control.close()

    def _await_exits(self, waited: set[int]) -> None:
        deadline = time.monotonic() + 1.0
        while (
            waited
            and time.monotonic() < deadline
            and _readable(self._control, deadline - time.monotonic())
        ):
            message, _ = messages.receive(self._control)
            if message is None:
                return
            waited.discard(message.get("exited"))


def _readable(sock: socket.socket, timeout_s: float = 0.0) -> bool:
    return bool(multiprocessing.connection.wait([sock], timeout=max(0.0, timeout_s)))
