"""What the tests of the board share: a folder, and learners' files in it."""

import itertools
import json
import os
import time
from pathlib import Path

from labkit.check.shared import content
from labkit.check.shared.content import Shared, Tried

_numbers = itertools.count()
NOW_S = int(time.time())


def folder_in(place: Path) -> Path:
    """A board's folder, made as the instructor's command makes it."""
    folder = place / "board"
    folder.mkdir()
    folder.chmod(content.FOLDER_MODE)
    return folder


def tried(state: str = "wrong", attempts: int = 1, **more: object) -> Tried:
    """One exercise of one learner, tried a minute ago."""
    given = {"began_s": NOW_S - 600, "last_s": NOW_S - 60, "mistakes": {}, **more}
    return Tried(state=state, attempts=attempts, **given)


def seat(name: str, guesses: dict | None = None, **exercises: Tried) -> Shared:
    """What one learner shares."""
    return Shared(name=name, exercises=exercises, guesses=guesses or {})


def file_name() -> str:
    """A name that no other file has."""
    return f"{next(_numbers):0{content.TOKEN_LETTERS}x}{content.SUFFIX}"


def put(folder: Path, shared: Shared | bytes | dict, owner: int | None = None) -> Path:
    """Lays a file into the folder: a learner's, or any bytes, or any JSON."""
    if isinstance(shared, Shared):
        shared = content.written(shared)
    if isinstance(shared, dict):
        shared = json.dumps(shared).encode()
    path = folder / file_name()
    path.write_bytes(shared)
    if owner is not None:
        os.chown(path, owner, -1)
    return path
