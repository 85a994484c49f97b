"""What a reader has reached, kept beyond the kernel: one small JSON file.

It lies in ``$LABKIT_HOME``, else in ``~/.labkit``. Several kernels may write: each holds a lock,
reads what is there, changes one entry, and puts the whole file in its place by a rename. A file
that can't be read is set aside under another name, never overwritten. Under pytest and in CI
nothing is written unless ``$LABKIT_HOME`` says where, and for the book nothing at all; then, and
where the folder can't be written, the record lives as long as the kernel.
"""

import contextlib
import copy
import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from labkit.check.shared.content import VARIABLE
from labkit.pictures import mime
from labkit.words import say

KINDS = ("exercises", "guesses", "sharing")
_YOUNGER = ("sharing",)
"""kinds that a record of an earlier labkit does not have"""
Entry = dict[str, object]
Content = dict[str, dict[str, Entry]]
_VERSION = 1
_PATIENCE_S = 2.0
"""how long another kernel's lock is waited for; then the last writer of an entry wins"""
_UNATTENDED = ("PYTEST_CURRENT_TEST", "CI")
"""set where nobody is learning"""
_kept: Content = {kind: {} for kind in KINDS}
"""what could not be written"""
_told: set[str] = set()
"""what has been said once"""


def home() -> Path | None:
    """The folder of the record; None where nothing is to be written."""
    named = os.environ.get("LABKIT_HOME")
    if named and not mime.book():
        return Path(named).expanduser()
    if mime.book() or any(os.environ.get(name) for name in _UNATTENDED):
        return None
    return Path("~/.labkit").expanduser()


def entries(kind: str) -> dict[str, Entry]:
    """The entries of a kind by their key, as all kernels have left them."""
    found: dict[str, Entry] = {}
    with _told_if_impossible():
        folder = home()
        if folder is not None and (folder / "progress.json").exists():
            with _locked(folder):
                found = _read(folder)[kind]
    return found | copy.deepcopy(_kept[kind])


def change(kind: str, key: str, update: Callable[[Entry], Entry]) -> None:
    """Replaces an entry by what ``update`` makes of it ({} where there is none). Where a classroom
    has a board, and the learner has opted in, it is shown there."""
    _change(kind, key, update)
    if os.environ.get(VARIABLE):
        from labkit.check.shared import opting

        opting.update()


def _change(kind: str, key: str, update: Callable[[Entry], Entry]) -> None:
    folder = home()
    if folder is not None:
        with _told_if_impossible():
            folder.mkdir(parents=True, exist_ok=True)
            with _locked(folder):
                content = _read(folder)
                before = content[kind].get(key, {}) | _kept[kind].get(key, {})
                content[kind][key] = update(before)
                _write(folder, content)
                _kept[kind].pop(key, None)
                return
    _kept[kind][key] = update(dict(_kept[kind].get(key, {})))


def clear() -> Path | None:
    """Forgets everything but where it is shared. What was written is kept as a backup, whose path
    is returned."""
    sharing = entries("sharing")
    kept = _clear()
    for folder, entry in sharing.items():
        change("sharing", folder, lambda _, entry=entry: entry)
    return kept


def _clear() -> Path | None:
    for kind in KINDS:
        _kept[kind].clear()
    folder = home()
    if folder is None or not (folder / "progress.json").exists():
        return None
    with _told_if_impossible(), _locked(folder):
        return _set_aside(folder, "backup")
    return None


def _read(folder: Path) -> Content:
    """What is written; nothing where the file is absent, or had to be set aside."""
    file = folder / "progress.json"
    try:
        return _checked(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {kind: {} for kind in KINDS}
    except (ValueError, RecursionError) as error:
        aside = _set_aside(folder, "unreadable")
        _tell_once(
            say(
                "The record of your progress could not be read ({error}). It is kept as {name} in "
                "{folder}; a new one begins.",
                error=error,
                name=aside.name,
                folder=folder,
            )
        )
        return {kind: {} for kind in KINDS}


def _checked(content: object) -> Content:
    """The entries in a file's content. Raises ValueError where it is not what ``_write`` wrote."""
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise ValueError(f"it is no record of version {_VERSION}")
    found: Content = {}
    for kind in KINDS:
        found[kind] = content.get(kind, {} if kind in _YOUNGER else None)
        entries = found[kind].values() if isinstance(found[kind], dict) else [None]
        if not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"its {kind} are no entries")
    return found


def _write(folder: Path, content: Content) -> None:
    """Puts the whole file in its place at once: a reader sees the old one or the new one."""
    text = json.dumps({"version": _VERSION, **content}, ensure_ascii=False, indent=1)
    number, name = tempfile.mkstemp(prefix="progress-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, folder / "progress.json")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _set_aside(folder: Path, why: str) -> Path:
    """Gives the file another name, one that is not taken."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = folder / f"progress-{why}-{stamp}.json"
    number = 1
    while aside.exists():
        number += 1
        aside = folder / f"progress-{why}-{stamp}-{number}.json"
    (folder / "progress.json").rename(aside)
    return aside


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One kernel at a time, as far as the file system can tell; nobody waits for ever."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a folder that is only read, or without locks
            file = held.enter_context(open(folder / "progress.lock", "a"))
            _lock(file)
        yield


def _lock(file: IO) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)


@contextlib.contextmanager
def _told_if_impossible() -> Iterator[None]:
    """Goes on where the record can't be read or written, and says so once."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        _tell_once(
            say(
                "Your progress can't be kept in {home} ({why}): it lasts as long as this kernel. "
                "LABKIT_HOME names another folder.",
                home=home(),
                why=why,
            )
        )


def _tell_once(words: str) -> None:
    if words not in _told:
        _told.add(words)
        print(words, file=sys.stderr)
