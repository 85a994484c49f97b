"""The folder of a board, read anew each time: every file in it is a stranger's.

A file is opened without following a link and without waiting (a pipe, a file under a lease), and
counts if it is a regular one with one name, not too long, and ``labkit.check.shared.content``
reads it. Of the files of one account only the newest few are opened, so that nobody fills the
board; reading ends after READ_S, and goes on from there the next time.
"""

import collections
import functools
import os
import pwd
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from labkit.check.shared import content
from labkit.classroom.room import Learner, Left
from labkit.units import check_whole

FOLDER_MODE = content.FOLDER_MODE
MOST_FILES = 20_000
"""that are looked at"""
MOST_LEARNERS = 500
"""that are shown"""
PER_ACCOUNT = 3
"""files of one account that count, where there are several accounts"""
WRITING_S = 60.0
"""a file that is written for longer is none"""
READ_S = 1.0
"""how long new files are read at one time"""
_ABOUT = ("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of the folder, before it is opened."""

    name: str
    """of the file"""
    owner: int
    """the account's number"""
    changed_ns: int
    """when, as the file system tells it: nobody can write a later time"""
    version: tuple[int, ...]
    """what changes with its content"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was in the folder at one time."""

    learners: tuple[Learner, ...]
    """who shares their progress"""
    left: tuple[Left, ...]
    """what is not shown"""
    crowded: bool
    """whether there are more files than are looked at"""


class Folder:
    """A board's folder. ``read`` gives the learners that are in it now."""

    def __init__(self, path: Path, per_account: int | None = None) -> None:
        if per_account is not None:
            check_whole(1, MOST_LEARNERS, per_account=per_account)
        self._path = checked(path)
        self._per_account = per_account
        self._read: dict[str, tuple[tuple[int, ...], content.Shared | None]] = {}

    def read(self) -> Found:
        """The learners, and what is left out. Raises OSError where the folder is gone."""
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            files, strange, crowded = _listed(folder)
            chosen = self._chosen(files, os.fstat(folder).st_uid)
            many = collections.Counter(file.owner for file in files)
            many.subtract(file.owner for file in chosen)
            learners = self._learners(folder, chosen, strange, many)
        finally:
            os.close(folder)
        left = _left(strange, many)
        return Found(learners=tuple(learners), left=tuple(left), crowded=crowded)

    def _chosen(self, files: list[File], instructor: int) -> list[File]:
        """Those that count: the newest of each account; accounts with few files come first."""
        by_owner = collections.defaultdict(list)
        for file in files:
            by_owner[file.owner].append(file)
        several = len(by_owner.keys() - {instructor}) > 1
        most = self._per_account or (PER_ACCOUNT if several else MOST_LEARNERS)
        chosen = []
        for _, mine in sorted(by_owner.items(), key=lambda each: (len(each[1]), each[0])):
            mine.sort(key=lambda file: (-file.changed_ns, file.name))
            chosen += mine[:most]
        return chosen[:MOST_LEARNERS]

    def _learners(
        self,
        folder: int,
        chosen: list[File],
        strange: collections.Counter,
        many: collections.Counter,
    ) -> list[Learner]:
        """Reads what has changed, as long as there is time; counts what can't be shown."""
        before = self._read
        self._read = {}
        deadline = time.monotonic() + READ_S
        learners = []
        for file in chosen:
            version, told = before.get(file.name, ((), None))
            if version != file.version and time.monotonic() < deadline:
                version = file.version
                told = _told(folder, file)
            if version:
                self._read[file.name] = (version, told)
            if told is not None:
                account = account_of(file.owner)
                learners.append(Learner(key=file.name, account=account, shared=told))
            elif version:
                strange[file.owner] += 1
            else:
                many[file.owner] += 1
        return learners


def make(path: Path) -> None:
    """Makes a board's folder, or gives an empty one that is yours its mode. Raises ValueError where
    it can't have it."""
    way_out = f"a board's folder is a new one, or an empty one of your own; {str(path)!r} is not it"
    try:
        path.mkdir(exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if stat.S_IMODE(os.fstat(folder).st_mode) != FOLDER_MODE and os.listdir(folder):
                raise ValueError(f"{way_out}: there are files in it. Name another")
            os.fchown(folder, -1, os.getegid())
            os.fchmod(folder, FOLDER_MODE)
        finally:
            os.close(folder)
    except OSError as error:
        raise ValueError(f"{way_out} ({error.strerror}). Name another") from None
    checked(path)


def closed_to_others(path: Path) -> Path | None:
    """The folder above a board's that other accounts can't pass through; None where they can."""
    for folder in path.resolve().parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def checked(path: Path) -> Path:
    """The whole path of a folder that a board can use. Raises ValueError for any other."""
    whole = path.resolve()
    try:
        mode = stat.S_IMODE(whole.stat().st_mode) if whole.is_dir() else 0
    except OSError:
        mode = 0
    if mode != FOLDER_MODE or not os.access(whole, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(
            f"a board reads a folder of yours with mode {FOLDER_MODE:o}, in which no learner sees "
            f"what others have laid there; {str(path)!r} is none. Make it: "
            f"python -m labkit classroom board {path} --make"
        )
    return whole


def _listed(folder: int) -> tuple[list[File], collections.Counter, bool]:
    """Files that may be learners'; how many of each account can't be; whether there are more. A
    file that begins with a dot is just being written."""
    files = []
    strange = collections.Counter()
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MOST_FILES), entries, strict=False):
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:  # it has just gone
                continue
            if _is_named(entry.name) and stat.S_ISREG(about.st_mode):
                files.append(_file(entry.name, about))
            elif not entry.name.startswith(".") or time.time() - about.st_ctime > WRITING_S:
                strange[about.st_uid] += 1
        crowded = next(entries, None) is not None
    return files, strange, crowded


def _file(name: str, about: os.stat_result) -> File:
    version = tuple(getattr(about, each) for each in _ABOUT)
    return File(name=name, owner=about.st_uid, changed_ns=about.st_ctime_ns, version=version)


def _is_named(name: str) -> bool:
    token = name.removesuffix(content.SUFFIX)
    return len(token) == content.TOKEN_LETTERS != len(name) and set(token) <= content.HEX


def _told(folder: int, file: File) -> content.Shared | None:
    """What a file says; None where it is no learner's progress, or can't be read."""
    how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(file.name, how, dir_fd=folder), "rb") as opened:
            about = os.fstat(opened.fileno())
            own = about.st_uid == file.owner and about.st_nlink == 1
            if not stat.S_ISREG(about.st_mode) or not own or about.st_size > content.MOST_BYTES:
                return None
            return content.read(opened.read(content.MOST_BYTES + 1))
    except (OSError, ValueError):
        return None


def _left(strange: collections.Counter, many: collections.Counter) -> list[Left]:
    """What is not shown, of each account; the twenty with most of it."""
    found = []
    for owner in strange.keys() | many.keys():
        if strange[owner] or many[owner]:
            account = account_of(owner)
            found.append(Left(account=account, strange=strange[owner], many=many[owner]))
    found.sort(key=lambda left: (-left.strange - left.many, left.account))
    return found[:20]


@functools.cache
def account_of(owner: int) -> str:
    """An account's name, or its number where it has none."""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return str(owner)
