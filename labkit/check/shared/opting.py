"""Opting in to a classroom's board: the learner's own file in the folder that LABKIT_BOARD names.

The folder is the instructor's, and everybody may lay a file into it, but only the instructor sees
which there are (mode 3733, which ``python -m labkit classroom board FOLDER --make`` gives it). A
learner's file is named by 128 random bits, kept in the learner's own record; it belongs to their
account and, by the folder's setgid bit, to the instructor's group, which may read it (mode 0640).
So another account can read none, and can replace none (the sticky bit). What this does not hold:
where all learners are one account, each can read the others' homes, and what is in them.
"""

import atexit
import contextlib
import itertools
import os
import secrets
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from labkit.check import chapters, record
from labkit.check.shared import content, mistakes

FILE_MODE = 0o640
PATIENCE_S = 0.5
"""how long a cell waits at most until its change is in the folder"""
EXIT_S = 3.0
"""how long a kernel that ends waits at most until its last change is in the folder"""
_busy = threading.Lock()
_due = threading.Event()


def opt_in(name: str) -> None:
    """From now on this learner's progress is on the board, under a name. Raises ValueError for a
    name that is none, and where there is no board or its folder is not safe."""
    told = content.checked_name(name)
    folder = chosen_folder()

    def enter(before: record.Entry) -> record.Entry:
        return {
            "name": told,
            "token": _token(before) or secrets.token_hex(content.TOKEN_LETTERS // 2),
        }

    record.change("sharing", str(folder), enter)
    try:
        _write(folder)
    except OSError as error:
        record.change("sharing", str(folder), lambda _: {})
        raise ValueError(
            f"the board's folder {str(folder)!r} takes no file of yours ({error.strerror}). Tell "
            "your instructor"
        ) from None


def opt_out() -> None:
    """Takes this learner's file out of every board's folder. Raises ValueError for one that can't
    be taken out."""
    left = ""
    for name, entry in record.entries("sharing").items():
        record.change("sharing", name, lambda _: {})
        path = _path(Path(name), entry)
        if path is not None and (why := _removed(path)):
            left = f"{str(path)!r} ({why})"
    if left:
        raise ValueError(
            f"nothing more is written for the board, and the file {left} can't be removed. Ask "
            "your instructor to remove it"
        )


def _removed(path: Path) -> str:
    """Removes a file. Why it is still there, in words; "" where it is not."""
    held = _busy.acquire(timeout=PATIENCE_S)  # a thread may just be writing it
    try:
        path.unlink(missing_ok=True)
    except NotADirectoryError:
        return ""
    except OSError as error:
        return error.strerror
    finally:
        if held:
            _busy.release()
    return ""


def sharing_as() -> str:
    """The name under which this learner is on the board that LABKIT_BOARD names; "" where they are
    not."""
    named = os.environ.get(content.VARIABLE, "")
    entry = record.entries("sharing").get(str(Path(named)), {}) if named else {}
    return str(entry.get("name", "")) if _token(entry) else ""


def chosen_folder() -> Path:
    """The folder of this classroom's board. Raises ValueError where there is none, or one in which
    another learner could read or replace what is there."""
    named = os.environ.get(content.VARIABLE, "")
    if not named:
        raise ValueError(
            f"there is no board here: {content.VARIABLE} names none. Your instructor sets it to "
            "the folder that python -m labkit classroom board FOLDER --make has made"
        )
    folder = Path(named)
    try:
        mode = stat.S_IMODE(folder.stat().st_mode) if folder.is_absolute() else 0
    except OSError:
        mode = 0
    if mode != content.FOLDER_MODE or not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(
            f"{content.VARIABLE} names the whole path of a folder with mode "
            f"{content.FOLDER_MODE:o}, in which no learner sees what others have laid there; got "
            f"{named!r}. Your instructor makes it by python -m labkit classroom board FOLDER --make"
        )
    return folder


def update() -> None:
    """Brings this learner's file up to date, where there is one. Fails nobody's cell, and holds it
    up for PATIENCE_S at most: a folder that hangs is left to a thread of its own."""
    _due.set()
    worker = threading.Thread(target=_update_until_done, daemon=True, name="labkit board")
    with contextlib.suppress(RuntimeError):  # no room for a thread
        worker.start()
        worker.join(PATIENCE_S)


@atexit.register
def _wait_for_the_last() -> None:
    """A thread that is still writing is waited for a little, before it ends with its process."""
    if _busy.acquire(timeout=EXIT_S):
        _busy.release()


def _update_until_done() -> None:
    """Writes as long as something is due; one thread at a time, the others leave it to that one."""
    while _due.is_set() and _busy.acquire(blocking=False):
        try:
            _due.clear()
            with contextlib.suppress(OSError, ValueError):
                _write(chosen_folder())
        finally:
            _busy.release()


def _write(folder: Path) -> None:
    """Puts the whole file in its place at once, where the learner has opted in."""
    entry = record.entries("sharing").get(str(folder), {})
    path = _path(folder, entry)
    if path is None:
        return
    written = content.written(_shared(str(entry.get("name", ""))))
    hidden = folder / f".{path.stem}-{secrets.token_hex(4)}"
    file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    try:
        with os.fdopen(file, "wb") as opened:
            os.fchmod(file, FILE_MODE)
            opened.write(written)
        os.rename(hidden, path)
    except BaseException:
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise


def _shared(name: str) -> content.Shared:
    """What the record says, as far as it is content."""
    known = itertools.chain.from_iterable(chapters.exercises().values())
    tried = record.entries("exercises")
    exercises = {each: _tried(tried[each]) for each in known if each in tried}
    guesses: dict[str, dict[str, int]] = {}
    numbers = {place[:2] for place in chapters.exercises()}
    for entry in record.entries("guesses").values():
        chapter = entry.get("chapter")
        grade = entry.get("grade", "")
        if chapter in numbers and grade in content.GRADES:
            grades = guesses.setdefault(chapter, {})
            grades[grade] = grades.get(grade, 0) + 1
    return content.Shared(name=name, exercises=exercises, guesses=guesses)


def _tried(entry: record.Entry) -> content.Tried:
    state = "passed" if entry.get("passed") else entry.get("state")
    attempts = entry.get("attempts")
    last_s = _seconds(entry.get("when"))
    found = mistakes.counted(entry.get("mistakes"), "")
    names = [name for name in found if mistakes.is_known(name)]
    commonest = sorted(names, key=lambda name: -found[name])[: content.MOST_MISTAKES]
    return content.Tried(
        state=state if state in content.STATES else "wrong",
        attempts=attempts if isinstance(attempts, int) and attempts > 0 else 1,
        began_s=min(_seconds(entry.get("began")) or last_s, last_s),
        last_s=last_s,
        mistakes={name: found[name] for name in commonest},
    )


def _seconds(when: object) -> int:
    """A time of the record, in seconds since 1970; 0 where it is none."""
    try:
        return int(time.mktime(time.strptime(str(when), "%Y-%m-%dT%H:%M:%S")))
    except (ValueError, OverflowError):
        return 0


def _path(folder: Path, entry: Mapping[str, object]) -> Path | None:
    """Where the learner's file lies; None where they have not opted in."""
    token = _token(entry)
    return folder / f"{token}{content.SUFFIX}" if token else None


def _token(entry: Mapping[str, object]) -> str:
    """The random part of the file's name; "" where there is none."""
    token = str(entry.get("token", ""))
    fine = len(token) == content.TOKEN_LETTERS and set(token) <= content.HEX
    return token if fine else ""
