"""The gate of a shared machine: where LABKIT_GATE names a folder, launches wait their turn.

Every launch lays a ticket into the folder and holds a lock on it until its ranks are gone. The
system takes the lock from a process that ends, however it ends: a ticket without a lock counts no
more. Tickets are served in the order of arrival; a learner who has a run already stands behind
those who have none. The folder is open to all learners (``chmod 1777``), and lies on this machine.
"""

import contextlib
import fcntl
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.launching.verdicts.verdict import Refused
from labkit.machine import resources
from labkit.units import check_real, check_whole

VARIABLE = "LABKIT_GATE"
"""The environment variable that names the folder; empty or not there: no gate."""
RANKS_PER_CORE = 2
"""How many ranks run at once, for each core of the machine; one run always may."""
RANK_BYTES = 120e6
"""private memory of one idle rank (measured: 60-100 MB with torch imported)"""
LOOK_S = 0.1
"""how often the launch that comes next looks whether it is its turn"""
LOOK_LESS = 10
"""the others look less often, the last ones by this factor: what waits should not compute"""
PATIENCE_S = 900.0
"""A launch that has been the next for so long goes in: no ticket can close the gate for good."""
_queued_s = 0.0
"""how long launches of this process have waited in all, those that wait now included"""
_MOST_BYTES = 512  # of a ticket; longer files are none
_MOST_FILES = 1000  # that are looked at
_SUFFIX = ".ticket"


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """One launch at the gate."""

    name: str
    """of its file"""
    arrived_ns: int
    """when it came, as the file system tells it: a learner can't write an earlier time"""
    learner: str
    """whose it is: the account, and the name on the hub or the process"""
    ranks: int
    """how many processes it starts"""
    running: bool
    """whether it is in"""


def runs_ahead(mine: Ticket, tickets: Iterable[Ticket], *, cores: int, free_ranks: float) -> int:
    """How many runs come before this one: those under way, and those that wait in front of it. 0:
    it may start.

    ``cores`` of the machine allow RANKS_PER_CORE ranks each, its memory ``free_ranks`` ranks more
    than idle ones need; where nothing runs, any launch may. Raises ValueError for no cores.
    """
    check_whole(cores=cores)
    check_real(0, 1e12, free_ranks=free_ranks)
    others = [ticket for ticket in tickets if ticket.name != mine.name]
    running = [ticket for ticket in others if ticket.running]
    busy = {ticket.learner for ticket in running}

    def order(ticket: Ticket) -> tuple:
        return ticket.learner in busy, ticket.arrived_ns, ticket.name

    waiting = [ticket for ticket in others if not ticket.running and order(ticket) < order(mine)]
    ranks = mine.ranks + sum(ticket.ranks for ticket in running)
    fits = ranks <= min(RANKS_PER_CORE * cores, free_ranks) or not running
    return len(waiting) + (0 if fits and not waiting else len(running))


def chosen_folder() -> Path | None:
    """The folder of this machine's gate; None where there is none. Raises Refused for one that a
    launch can't use."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise Refused(
            f"{VARIABLE} names a folder in which everybody may read and write; got {named!r}. Make "
            f"it (mkdir, chmod 1777), or unset {VARIABLE} to launch without a queue."
        )
    return folder


class Turn:
    """A launch's place at the gate: ``wait`` until it may start, ``leave`` when its ranks are gone.
    Without a folder it may start at once."""

    def __init__(self, folder: Path | None, ranks: int) -> None:
        self.ahead = 0
        self.waited_s = 0.0
        self._folder = folder
        self._ranks = ranks
        self._path: Path | None = None
        self._held: int | None = None  # the open, locked ticket
        self._next_since: float | None = None  # when nobody waited in front any more

    def wait(self, stopping: threading.Event, tell: Callable[[int], None] | None = None) -> bool:
        """Waits until the launch may start. False where it was stopped before. ``tell`` is called
        once where it has to wait, with how many runs come first."""
        if self._folder is None:
            return True
        began = time.monotonic()
        with contextlib.suppress(OSError):  # a folder that is gone queues nobody
            self._take()
            while not self._may_start():
                if tell and not self.waited_s:
                    tell(self.ahead)
                stopped = stopping.wait(LOOK_S * min(max(self.ahead, 1), LOOK_LESS))
                self._note(time.monotonic() - began)
                if stopped:
                    break
        self.ahead = 0
        return not stopping.is_set()

    def _note(self, waited_s: float) -> None:
        global _queued_s
        _queued_s += waited_s - self.waited_s
        self.waited_s = waited_s

    def leave(self) -> None:
        """Gives the place to the next. Does nothing where there is no ticket."""
        if self._held is None:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._held)
        self._held = None

    def _take(self) -> None:
        """Lays the ticket down: locked before anybody can see it."""
        name = secrets.token_hex(8)
        self._path = hidden = self._folder / f".{name}"
        self._held = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(self._held, 0o644)
        fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        learner = os.environ.get("JUPYTERHUB_USER") or str(os.getpid())
        text = json.dumps({"learner": learner[:64], "ranks": self._ranks})
        os.write(self._held, b"w" + text.encode())
        shown = self._folder / f"{name}{_SUFFIX}"
        os.rename(hidden, shown)
        self._path = shown

    def _may_start(self) -> bool:
        """Looks once; where it is this launch's turn, says so in its ticket."""
        with _alone(self._folder):
            cores = resources.cores()
            tickets = list(_read_all(self._folder, most_ranks=max(16, 8 * cores)))
            mine = next((each for each in tickets if each.name == self._path.name), None)
            if mine is None:  # somebody has removed it: then nobody queues here
                return True
            free_ranks = resources.available_bytes() / RANK_BYTES
            self.ahead = runs_ahead(mine, tickets, cores=cores, free_ranks=free_ranks)
            running = sum(each.running for each in tickets)
            if self.ahead > running:
                self._next_since = None
            elif self._next_since is None:
                self._next_since = time.monotonic()
            if self.ahead and not self._is_overdue():
                return False
            os.pwrite(self._held, b"r", 0)
            return True

    def _is_overdue(self) -> bool:
        since = self._next_since
        return since is not None and time.monotonic() - since > PATIENCE_S


def queued_s() -> float:
    """How long this process has waited at the gate so far: no limit of time counts that."""
    return _queued_s


def turn(ranks: int) -> Turn:
    """A launch's place at this machine's gate, not yet waited for. Raises Refused for a gate that
    can't be used, ValueError for no ranks."""
    check_whole(ranks=ranks)
    return Turn(chosen_folder(), ranks)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else decides meanwhile. Who holds the folder for a second is not waited for: at worst
    two launches go in at once."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.005)
        yield
    finally:
        os.close(held)


def _read_all(folder: Path, most_ranks: int) -> Iterator[Ticket]:
    """The tickets whose launches live, of so many ranks at most. What is no ticket is passed over,
    one of a dead process removed where that is allowed."""
    with os.scandir(folder) as entries:
        names = [each.name for _, each in zip(range(_MOST_FILES), entries, strict=False)]
    for name in names:
        if name.endswith(_SUFFIX):
            with contextlib.suppress(OSError, ValueError):
                ticket = _read(folder / name, most_ranks)
                if ticket is not None:
                    yield ticket


def _read(path: Path, most_ranks: int) -> Ticket | None:
    """One ticket; None where its process is gone. Raises OSError or ValueError for what is none."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > _MOST_BYTES:
            raise ValueError(f"a ticket is a file of at most {_MOST_BYTES} bytes")
        if not _is_locked(file):
            path.unlink()
            return None
        text = os.read(file, _MOST_BYTES)
    finally:
        os.close(file)
    content = json.loads(text[1:])
    if not isinstance(content, dict) or content.keys() != {"learner", "ranks"}:
        raise ValueError("a ticket has a learner and ranks")
    check_whole(1, most_ranks, ranks=content["ranks"])
    return Ticket(
        name=path.name,
        arrived_ns=about.st_ctime_ns,
        learner=f"{about.st_uid} {content['learner']}",
        ranks=content["ranks"],
        running=text[:1] == b"r",
    )


def _is_locked(file: int) -> bool:
    """Whether the process that laid a ticket down still holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
