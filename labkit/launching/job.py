"""A run under way: watch real ranks, judge how they end, leave nothing behind.

One thread per run listens to the ranks and to the zygote. Whatever happens - a result, an
exception, a signal, a deadlock, the stop button - comes to one conclusion: a Run, or an exception
of ``labkit.launching.verdicts.verdict``.
"""

import contextlib
import itertools
import pickle
import selectors
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace

from labkit.launching import rank_state
from labkit.launching.fork import messages
from labkit.launching.fork.messages import Ask, Bye, Exited, Forked, Kill, Message, Ready
from labkit.launching.fork.request import Request
from labkit.launching.fork.zygote_client import ZygoteClient
from labkit.launching.gate import Turn
from labkit.launching.rank_state import CallsReader, RankFiles, RankState, is_sign_of_life
from labkit.launching.run import Run, remove
from labkit.launching.verdicts import diagnosis, verdict
from labkit.launching.verdicts.outcome import Finding, Outcome
from labkit.machine import resources
from labkit.words import say

GRACE_S = 0.3  # how long the others may still speak after the first failure
POLL_S = 0.2  # how often running ranks are asked where they are

listeners: list[Callable[["Job"], None]] = []
"""called in the thread that waits, several times a second"""

Conclusion = Run | BaseException


class Job:
    """A run under way. ``wait`` returns its Run or raises its verdict, ``stop`` ends it, ``stacks``
    tells where the ranks are."""

    stop_s = 3.0
    """how long ``stop`` waits for the end of all ranks, in seconds"""

    def __init__(
        self,
        request: Request,
        client: ZygoteClient,
        *,
        timeout_s: float,
        hang_s: float,
        turn: Turn | None = None,
    ) -> None:
        self.num_ranks = request.num_ranks
        self.timeout_s = timeout_s
        self.hang_s = hang_s
        self.began = time.monotonic()
        self._request = request
        self._client = client
        self._turn = turn or Turn(None, self.num_ranks)
        self._files = RankFiles.of_run(request.folder, self.num_ranks)
        self._calls = CallsReader(folder=request.folder)
        self._states: list[RankState] = []
        self._socks: list[socket.socket] = []  # one per rank
        self._control: socket.socket | None = None  # of this run, to the zygote
        self._pids: tuple[int, ...] = ()
        self._oom_kills = resources.num_oom_kills()
        self._wake_read, self._wake = socket.socketpair()
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._conclusion: Conclusion | None = None
        self._life: list[tuple] = []  # what moved when there was a sign of life
        self._lived_at = self._asked_at = self.began
        self._suspected: Finding | None = None  # what the last question proved
        threading.Thread(target=self._watch, daemon=True, name="labkit-watch").start()

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._over.is_set()

    @property
    def seconds(self) -> float:
        """Since the call, or since its turn came at the gate, in seconds."""
        return time.monotonic() - self.began

    @property
    def ahead(self) -> int:
        """How many runs come before it at the gate of a shared machine; 0 once it is in."""
        return self._turn.ahead

    @property
    def progress(self) -> list[dict]:
        """One row per rank: rank, state, and what is known of step, loss and where it is."""
        return [state.row() for state in self._states]

    def wait(self) -> Run:
        """Waits for the end. Returns the Run; raises RankFailed, Deadlock, Timeout or Stopped."""
        try:
            while not self._over.wait(0.1 if listeners else 1.0):
                for listener in listeners:
                    listener(self)
        # also after the stop button or an alarm: no rank outlives the cell that waits for it
        finally:
            self.stop()
            for listener in listeners:
                listener(self)
        if isinstance(self._conclusion, BaseException):
            raise self._conclusion.with_traceback(None)
        return self._conclusion

    def stop(self) -> None:
        """Kills every rank and returns when they are gone. Does nothing once the job has ended."""
        if self._over.is_set():
            return
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        self._over.wait(self.stop_s)

    def stacks(self) -> dict[int, str]:
        """The Python stack of every running rank, also of one that is deep in native code."""
        # a rank that has no such file yet is not ready for the signal
        asked = [self._files[rank] for rank in self._running()]
        before = {files: files.stack_bytes() for files in asked if files.stack.exists()}
        self._signal(signal.SIGUSR1, [files.rank for files in before])
        return rank_state.new_stacks(before, self._request.sources)

    def _running(self) -> list[int]:
        return [state.rank for state in self._states if state.how == "running"]

    def _note(self, rank: int, **changes: object) -> None:
        """Something else that is now known of a rank."""
        self._states[rank] = replace(self._states[rank], **changes)

    def _signal(self, number: int, ranks: Iterable[int]) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                messages.send(self._control, Kill(signal=int(number), ranks=tuple(ranks)))

    def _watch(self) -> None:
        """The watching thread: from the fork to the conclusion."""
        try:
            ready = self._client.wait_for(Ready, unless=self._wake_read)  # a stop does not wait
            may_start = ready and self._turn.wait(self._stopping)  # nobody waits for its start
            conclusion = self._follow() if may_start else self._judge()
        except BaseException as error:
            conclusion = error
        if isinstance(conclusion, Run):
            # its ranks only have to leave: the notebook need not wait for that
            weakref.finalize(conclusion, remove, self._request.folder)
            self._conclude(conclusion)
            self._end()
        else:
            self._end()
            remove(self._request.folder)
            self._conclude(conclusion)

    def _conclude(self, conclusion: Conclusion) -> None:
        self._conclusion = conclusion
        self._over.set()

    def _follow(self) -> Conclusion:
        """Has the ranks forked, then listens and judges until there is a conclusion."""
        if self._turn.waited_s:
            self.began = time.monotonic()
        self._control, self._socks = self._client.fork(self._request)
        self._lived_at = self._asked_at = time.monotonic()
        self._states = [RankState(rank=rank) for rank in range(self.num_ranks)]
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            for rank, sock in enumerate(self._socks):
                selector.register(sock, selectors.EVENT_READ, rank)
            while True:
                for key, _ in selector.select(timeout=0.05 if self.seconds > GRACE_S else 0.01):
                    if key.fileobj is self._wake_read:
                        continue
                    message, _ = messages.receive(key.fileobj)
                    if message is None:
                        selector.unregister(key.fileobj)
                    if key.fileobj is not self._control:
                        self._hear(key.data, message)
                    elif (conclusion := self._hear_zygote(message)) is not None:
                        return conclusion
                conclusion = self._judge()
                if conclusion is not None:
                    return conclusion

    def _hear(self, rank: int, message: Message | None) -> None:
        """A message of a rank; None where it has closed its socket."""
        if message is None:
            return
        self._states[rank] = self._states[rank].hear(message)
        if is_sign_of_life(message):
            self._lived_at = time.monotonic()

    def _hear_zygote(self, message: Message | None) -> verdict.RankFailed | None:
        """A message of the zygote; None where it is gone. A verdict where the run can't go on."""
        if message is None:
            return verdict.RankFailed(say(verdict.ZYGOTE_DIED), self._outcomes(), self._logs())
        if isinstance(message, Forked):
            self._pids = message.pids
            if len(self._pids) < self.num_ranks:
                return verdict.RankFailed(say(verdict.NO_PROCESS))
        elif isinstance(message, Exited):
            self._bury(message.rank, message.status)
        return None

    def _bury(self, rank: int, status: int) -> None:
        """A rank's process has ended. What it said before may still be on its way."""
        self._note(rank, status=status)
        if status == -signal.SIGKILL and resources.num_oom_kills() > self._oom_kills:
            self._note(rank, system_state="out of memory")
        while self._states[rank].how == "running":
            sock = self._socks[rank]
            message = messages.receive(sock)[0] if messages.is_readable(sock) else None
            if message is None:
                self._note(rank, how="died", ended_at=time.monotonic())
                return
            self._hear(rank, message)

    def _judge(self) -> Conclusion | None:
        """The conclusion if there is one now."""
        now = time.monotonic()
        if self._stopping.is_set():
            words = say("stopped after {seconds:.1f} s", seconds=self.seconds)
            return verdict.Stopped(words, self._outcomes(), self._logs())
        if all(state.how == "returned" for state in self._states):
            return self._collect()
        bad = [state.ended_at for state in self._states if state.how in ("failed", "died")]
        if bad:
            if self._running() and now < min(bad) + GRACE_S:
                return None
            return verdict.judge_failure(self._outcomes(), self._logs())
        if self.seconds > self.timeout_s:
            return self._silence(say(verdict.TOO_LONG, seconds=self.timeout_s))
        if now - self._asked_at > POLL_S:
            return self._poll(now)
        return None

    def _poll(self, now: float) -> BaseException | None:
        """Every POLL_S: judges the last reports, asks for new ones. No log is read for that."""
        self._asked_at = now
        finding = self._prove()
        if finding and self._suspected and finding.text == self._suspected.text:
            return verdict.Deadlock(finding.text, self._outcomes(), self._logs(), finding)
        self._suspected = finding
        life = [
            (state.how, state.last, files.log_bytes())
            for state, files in zip(self._states, self._files, strict=True)
        ]
        # ranks that are not forked yet may wait for an import: that is not their silence
        if life != self._life or (self._control and not self._pids):
            self._life = life
            self._lived_at = now
        if now - self._lived_at > self.hang_s:
            return self._silence(say(verdict.NO_LIFE, seconds=self.hang_s))
        self._ask()
        return None

    def _prove(self) -> Finding | None:
        """What is wrong, as far as the last reports prove it. Nothing is, where nobody waits."""
        if any(state.is_waiting for state in self._states):
            outcomes = self._outcomes(with_output=False)
            return diagnosis.missing(outcomes) or diagnosis.different(outcomes)
        return None

    def _ask(self) -> None:
        """Asks running ranks where they are: one open question at a time, so that nobody blocks who
        is not heard."""
        for rank in self._running():
            if not self._states[rank].asked:
                self._note(rank, asked=True)
                with contextlib.suppress(OSError):
                    messages.send(self._socks[rank], Ask())

    def _silence(self, why: str) -> verdict.Timeout:
        """The verdict when time is up."""
        stacks = self.stacks()
        for rank in self._running():
            report = self._states[rank].report
            if report is None or report.at < self._asked_at - 3 * POLL_S:  # an old answer is none
                # with little time, the zygote may not have told the pids
                stopped = rank < len(self._pids) and resources.is_stopped(self._pids[rank])
                self._note(rank, report=None, system_state="stopped" if stopped else "")
        return verdict.judge_silence(self._outcomes(stacks), self._logs(), why)

    def _outcomes(
        self, stacks: dict[int, str] | None = None, with_output: bool = True
    ) -> list[Outcome]:
        """What is known of every rank, in the words of the verdicts."""
        last = {state.rank: state.last for state in self._states}
        stacks = stacks or {}
        return [
            state.outcome(
                last,
                calls=self._calls.calls(state.rank),
                stack=stacks.get(state.rank, ""),
                output=self._files[state.rank].read_log_end() if with_output else "",
            )
            for state in self._states
        ]

    def _logs(self) -> list[str]:
        return [self._files[state.rank].read_log() for state in self._states]

    def _collect(self) -> Run:
        """Every rank's result, once all have returned."""
        last_words = [state.returned for state in self._states]
        notes = itertools.chain.from_iterable(each.notes for each in last_words)
        return Run(
            results=tuple(pickle.loads(files.result.read_bytes()) for files in self._files),
            logs=tuple(self._logs()),
            seconds=self.seconds,
            devices=self._request.rung.name,
            backend=self._request.rung.carrier,
            notes=tuple(dict.fromkeys(notes)),
            peak_rss_bytes=tuple(each.peak_rss_bytes for each in last_words),
            machine=resources.summary(),
            waited_s=self._turn.waited_s,
            folder=self._request.folder,
        )

    def _end(self) -> None:
        """Leaves no process: ranks that returned are told bye, all others are killed."""
        for sock in self._socks:
            with contextlib.suppress(OSError):
                messages.send(sock, Bye())
        alive = [state for state in self._states if state.status is None]
        self._signal(signal.SIGKILL, [each.rank for each in alive if each.how != "returned"])
        for sock in (*self._socks, self._wake_read, self._wake):
            sock.close()
        if self._control is not None:
            self._await_exits({each.rank for each in alive})
            self._control.close()
        self._turn.leave()

    def _await_exits(self, waited: set[int]) -> None:
        deadline = time.monotonic() + (1.0 if self._pids else 0.5)  # no pids: it forks no more
        while waited and messages.is_readable(self._control, deadline - time.monotonic()):
            message, _ = messages.receive(self._control)
            if message is None:
                return
            if isinstance(message, Exited):
                waited.discard(message.rank)
