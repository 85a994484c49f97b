"""The zygote: a process that has imported torch once and forks fresh ranks for every run.

Started by ``zygote_client`` as ``python -m labkit.launching.fork.zygote FD FOLDER``. It runs no
tensor code and no thread, so a fork of it is safe and takes milliseconds, and no state leaks from
one run into the next. It lives as long as the notebook's end of its socket: when that closes, it
kills every rank, removes the folder and goes.

It is ``Ready`` once it has imported torch. What only some ranks need (FSDP, pipelining, ...) it
imports later, a module at a time, in quiet moments: a rank of the first run imports that itself,
but for what it has said that all its ranks will need (``Expect``). Where one run follows another
without such a moment, the second waits until everything is there: ranks that import for themselves,
run after run, would cost more. Then it says ``Complete`` and forks a few spares ahead. DeepSpeed,
and the compiler that it imports, are among these modules once a run has named it, which waits for
them: they take as long as all the others, and a process of its own asks beside them what CPU this
is, as DeepSpeed will.

A ``Launch`` with open sockets starts a run. An ``Order`` makes a spare one of its ranks. Over the
run's own socket the zygote answers ``Forked``, later ``Exited`` for each rank, and takes ``Kill``.
"""

import contextlib
import gc
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable

from labkit.launching.fork import imports, messages, worker
from labkit.launching.fork.messages import (
    Complete,
    Exited,
    Expect,
    Forked,
    Kill,
    Launch,
    Message,
    Order,
    Ready,
)
from labkit.launching.fork.request import Request

FIRST_SPARES = 4
MOST_SPARES = 8
LEAVING_S = 0.2  # ranks that have told their result are gone by then
REST_S = 0.05  # a moment without a message: quiet enough to import, or to fork a spare


class Zygote:
    """The zygote's whole state: its socket to the notebook, the modules that it has still to
    import, the runs whose ranks are alive, and spare processes."""

    def __init__(
        self, control: socket.socket, later: tuple[str, ...], deepspeed: tuple[str, ...]
    ) -> None:
        self.control = control
        self.later = list(later)
        self.deepspeed = deepspeed  # imported once a run needs them
        self.expected: list[str] = []  # what runs have asked for, or are seen to name
        self.needed: set[str] = set()  # of those, what they have asked for
        self.runs: dict[socket.socket, dict[int, int]] = {}  # a run's socket -> {pid: rank}
        self.spares: list[tuple[int, socket.socket]] = []  # forked ahead of their order
        self.num_spares = FIRST_SPARES
        self.has_forked = False
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)
        self.wakeup, self._wakeup_write = socket.socketpair()
        for end in (self.wakeup, self._wakeup_write):
            end.setblocking(False)
        self.selector.register(self.wakeup, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write.fileno())

    def serve(self) -> None:
        """Forks, reaps and kills until the notebook is gone."""
        parent = os.getppid()
        while os.getppid() == parent:
            lacking = not self.runs and (self.later or len(self.spares) < self.num_spares)
            events = self.selector.select(timeout=REST_S if lacking else 1.0)
            if lacking and not events:  # a quiet moment: no rank is disturbed
                self.prepare()
            for key, _ in events:
                if key.fileobj is self.control:
                    message, fds = messages.receive(self.control)
                    if message is None:
                        return
                    if isinstance(message, Expect):
                        self.need(message.modules)
                    else:
                        self.fork(message, fds)
                elif key.fileobj is self.wakeup:
                    with contextlib.suppress(BlockingIOError):
                        self.wakeup.recv(4096)
                elif key.fileobj in self.runs:
                    self.obey(key.fileobj)
            self.reap()

    def prepare(self) -> None:
        """One step towards what ranks will need: a module, or a spare once all modules are
        there."""
        if not self.later:
            with contextlib.suppress(OSError):
                self.spares.append(self.spare())
            return
        imports.load(self.later.pop(0))
        if not self.later:
            self.tell(self.control, Complete())

    def expect(self, modules: Iterable[str]) -> None:
        """More modules to import, each tried once; spares that do not have them go."""
        lacking = [name for name in modules if name not in {*sys.modules, *self.expected}]
        if lacking:
            self.expected += lacking
            self.later += lacking
            for _, sock in self.spares:
                sock.close()  # it ends
            self.spares.clear()

    def need(self, modules: Iterable[str]) -> None:
        """The same of modules that all ranks of the next run will import: they come first."""
        self.expect(modules)
        self.needed.update(modules)
        self.later.sort(key=lambda name: name not in self.needed)

    def complete(self) -> None:
        """Imports all that is lacking, and before the first run what it asked for, unless ranks are
        at work: those of the run before may still be leaving."""
        deadline = time.monotonic() + LEAVING_S
        while self.runs and time.monotonic() < deadline:
            select.select([self.wakeup], [], [], 0.01)
            self.reap()
        while self.later and not self.runs:
            if not self.has_forked and self.later[0] not in self.needed:
                return  # the first run need not wait for what nobody asked for
            self.prepare()

    def fork(self, launch: Launch, fds: list[int]) -> None:
        """Gives each rank's order to a spare. ``fds``: the run's own socket, then one per rank."""
        if launch.request["deepspeed"] and not self.needed.issuperset(self.deepspeed):
            self.beside(imports.ask_cpu)
            self.need(self.deepspeed)
        if self.later:
            self.complete()
        self.has_forked = True
        run = socket.socket(fileno=fds[0])
        if _is_deserted(run):  # stopped while we imported a module
            run.close()
            for fd in fds[1:]:
                os.close(fd)
            return
        pids: dict[int, int] = {}
        self.runs[run] = pids
        for rank, fd in enumerate(fds[1:]):
            # where no process is to be had, the rank's closed socket tells
            with contextlib.suppress(OSError):
                pid, sock = self.spares.pop() if self.spares else self.spare()
                pids[pid] = rank
                with sock:
                    messages.send(sock, Order(rank=rank, request=launch.request), fds=(fd,))
            os.close(fd)
        self.num_spares = min(max(len(pids), self.num_spares), MOST_SPARES)
        self.selector.register(run, selectors.EVENT_READ)
        self.tell(run, Forked(pids=tuple(pids)))

    def spare(self) -> tuple[int, socket.socket]:
        """Forks a process that waits for its order, is one rank of one run, and ends: (pid, its
        order's socket)."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                self.leave(ours)
                order, fds = messages.receive(theirs)
                theirs.close()
                if order is not None:
                    request = Request.from_json(order.request)
                    worker.main(socket.socket(fileno=fds[0]), order.rank, request)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)  # nothing above this frame may ever run in a rank
        theirs.close()
        return pid, ours

    def beside(self, work: Callable[[], None]) -> None:
        """Has a process of its own do it; that it goes wrong is seen where it is missed."""
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            try:
                self.leave(ours)
                work()
            finally:
                os._exit(0)
        for end in (ours, theirs):
            end.close()

    def leave(self, ours: socket.socket) -> None:
        """In a new process: forget everything that belongs to the zygote or to the other ranks."""
        gc.enable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            self.selector.close()
        others = (order for _, order in self.spares)
        for sock in (ours, self.control, self.wakeup, self._wakeup_write, *self.runs, *others):
            sock.close()

    def obey(self, run: socket.socket) -> None:
        """A signal for some ranks of a run; a closed socket means: kill them all."""
        kill: Kill | None
        kill, _ = messages.receive(run)
        pids = self.runs[run]
        if kill is None:
            self.selector.unregister(run)
            self.kill(list(pids), signal.SIGKILL)
        else:
            chosen = [pid for pid, rank in pids.items() if rank in kill.ranks]
            self.kill(chosen, kill.signal)

    def kill(self, pids: list[int], number: int) -> None:
        """Signals ranks; SIGKILL goes to everything they started as well. Safe: a pid is ours until
        we reap it."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                if number == signal.SIGKILL:
                    os.killpg(pid, number)

    def reap(self) -> None:
        """Reports ranks that ended, after killing whatever they left behind in their process
        group."""
        for pid, status in iter(_next_ended, None):
            self.spares = [spare for spare in self.spares if spare[0] != pid]
            for run, pids in list(self.runs.items()):
                if pid in pids:
                    self.tell(run, Exited(rank=pids.pop(pid), status=status))
                    if not pids:
                        self.forget(run)

    def forget(self, run: socket.socket) -> None:
        """A run whose ranks have all ended."""
        self.runs.pop(run)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(run)
        run.close()

    def tell(self, sock: socket.socket, message: Message) -> None:
        """Sends to the notebook, which may be gone."""
        with contextlib.suppress(OSError):
            messages.send(sock, message)

    def close(self) -> None:
        """Ends every rank before the zygote ends."""
        for pids in self.runs.values():
            self.kill(list(pids), signal.SIGKILL)


def _is_deserted(sock: socket.socket) -> bool:
    """Whether the other end of a socket is closed, whatever there is still to read."""
    poll = select.poll()
    poll.register(sock, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _next_ended() -> tuple[int, int] | None:
    """(pid, exit code) of a rank that ended, its process group killed before its pid can be used
    again; None when there is none."""
    try:
        if hasattr(os, "waitid"):  # not on macOS before Python 3.13
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def main() -> None:
    """Imports torch once, says ready, serves."""
    control = socket.socket(fileno=int(sys.argv[1]))
    folder = sys.argv[2]
    # a rank takes SIGUSR1 for its stack once it has settled
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # imports leave little garbage; to look for it takes a fifth of their time
    imports.load(*imports.FIRST)
    later = imports.LATER
    deepspeed: tuple[str, ...] = ()
    if os.environ.get("LABKIT_GPUS", "0") == "0":
        later = (*imports.LATER, *imports.LATER_ON_CPU)
        deepspeed = imports.DEEPSPEED
        # the first call imports the devices' modules; a rank then need not
        sys.modules["torch"].manual_seed(0)
        imports.remember_cpu(folder)
    zygote = Zygote(control, later, deepspeed)
    messages.send(control, Ready())
    try:
        zygote.serve()
    finally:
        zygote.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
