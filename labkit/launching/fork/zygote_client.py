"""The notebook's side of the zygote: start it once, ask it for ranks, notice its end."""

import atexit
import contextlib
import multiprocessing.connection
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from labkit.launching.fork import messages
from labkit.launching.fork.messages import Complete, Expect, Launch, Message, Ready
from labkit.launching.fork.request import Request
from labkit.launching.verdicts.verdict import LaunchError
from labkit.machine import ops, resources

# in UTF-8 mode, and so its ranks: torch's own import fails under an ASCII locale
_ZYGOTE = ("-X", "utf8", "-m", "labkit.launching.fork.zygote")
_lock = threading.Lock()
_client: "ZygoteClient | None" = None


class ZygoteClient:
    """A running zygote, seen from the process that started it. It dies with this process, and takes
    its folder and its ranks with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="labkit-"))
        self.owner = os.getpid()
        self.num_runs = 0
        # what ranks need to find DeepSpeed's ops
        self.environ = {} if resources.num_gpus() else ops.environment()
        self.control, theirs = socket.socketpair()
        self._heard: set[type[Message]] = set()  # what it has said
        self.process = self._start(theirs)
        theirs.close()

    def _start(self, theirs: socket.socket) -> subprocess.Popen:
        environ = {
            **self.environ,
            **resources.WAITING,
            **os.environ,
            "OPENBLAS_NUM_THREADS": "1",
            "LABKIT_GPUS": str(resources.num_gpus()),
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        fd = theirs.fileno()
        with open(self.folder / "zygote.txt", "wb") as log:
            return subprocess.Popen(
                [sys.executable, *_ZYGOTE, str(fd), str(self.folder)],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[fd],
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it can still fork: it runs, holds its end of the socket (one that is being killed
        lets go of it first), and belongs to this process (not to one that forked us)."""
        if self.owner != os.getpid() or self.process.poll() is not None:
            return False
        line = select.poll()
        line.register(self.control, select.POLLRDHUP)
        return not line.poll(0)

    def wait_for(self, said: type[Message], unless: socket.socket | None = None) -> bool:
        """Blocks until the zygote has said ``Ready`` (a second or two, once) or ``Complete``. False
        if there is something to read from ``unless`` before that. Raises LaunchError when the
        zygote has ended."""
        ends = [self.control] if unless is None else [self.control, unless]
        while said not in self._heard:
            # not for ever: another thread may have read it
            if unless in multiprocessing.connection.wait(ends, timeout=0.1):
                return False
            self._hear()
        return True

    def _hear(self) -> None:
        """Notes the next message, if another thread has not read it already."""
        with _lock:
            if not multiprocessing.connection.wait([self.control], timeout=0):
                return
            message, _ = messages.receive(self.control)
        if message is None:
            log = self.folder / "zygote.txt"
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            raise LaunchError(
                "the process that starts ranks ended before it was ready. "
                f"Its output:\n{text[-2000:]}\n"
                "`python -m labkit doctor` tells what is missing."
            )
        self._heard.add(type(message))

    def new_folder(self) -> Path:
        """An empty folder for one run."""
        self.num_runs += 1
        folder = self.folder / f"run-{self.num_runs}"
        folder.mkdir(mode=0o700)  # as its parent, which mkdtemp made
        return folder

    def fork(self, request: Request) -> tuple[socket.socket, list[socket.socket]]:
        """Forks a run's ranks; the zygote must be ready. Returns the run's socket and one socket
        per rank. Raises LaunchError where the zygote has ended meanwhile."""
        pairs = [socket.socketpair() for _ in range(1 + request.num_ranks)]
        try:
            with _lock:
                fds = tuple(theirs.fileno() for _, theirs in pairs)
                messages.send(self.control, Launch(request=request.to_json()), fds=fds)
        except BaseException as error:
            for ours, _ in pairs:
                ours.close()
            if isinstance(error, ConnectionError):
                raise LaunchError(
                    "the process that starts ranks has just ended, as it does where memory runs "
                    "out; launch again, and a new one is started"
                ) from error
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return pairs[0][0], [ours for ours, _ in pairs[1:]]

    def expect(self, modules: tuple[str, ...]) -> None:
        """Has it import what ranks will need."""
        with _lock:
            messages.send(self.control, Expect(modules=modules))

    def close(self) -> None:
        """Ends it and its ranks; waits at most two seconds."""
        self.control.close()
        if self.owner != os.getpid():
            return
        if (
            Ready not in self._heard
        ):  # it has no ranks, and imports torch: nothing else would end it
            self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=2)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(timeout=2)
        shutil.rmtree(self.folder, ignore_errors=True)


def running() -> ZygoteClient:
    """The zygote of this process, started if there is none (or it died). Returns at once;
    ``wait_for`` waits."""
    global _client
    with _lock:
        if _client is None or not _client.alive:
            _client = ZygoteClient()
            atexit.register(_client.close)
        return _client


def expect(*modules: str) -> None:
    """Ranks will import these: the zygote, if there is one, does it once for all of them, in a
    quiet moment or before the next run. Not where there are GPUs, which an import could touch."""
    client = _client
    if client is not None and client.alive and not resources.num_gpus():
        client.expect(modules)


def seconds_to_complete() -> float:
    """Starts the zygote if need be and waits until it has imported everything; returns how long
    that took, in seconds."""
    began = time.monotonic()
    running().wait_for(Complete)
    return time.monotonic() - began
