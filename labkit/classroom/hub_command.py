"""``python -m labkit classroom hub FOLDER``: a JupyterHub for a room, on one machine."""

import argparse
import os
import sys
from pathlib import Path

from labkit.classroom import hub_run
from labkit.classroom.hub_run import Room
from labkit.words import say

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
"""the course; it lies beside the package, not in it"""
CONFIG = "jupyterhub_config.py"
TEXT = '''"""The hub of a room, written by `python -m labkit classroom hub`. Start it:

    {command}

What a room may say stands at `labkit.classroom.hub_run.Room`; below it, say to JupyterHub what you
like. This file is never written again: delete it to have a new one.
"""

from pathlib import Path

from labkit.classroom.hub_run import Room, configure

room = Room(
    folder=Path(__file__).resolve().parent,
    notebooks=Path({notebooks!r}),
    language={language!r},
    accounts={accounts!r},  # the group of learners with accounts here; "": a room with one password
    names={names!r},  # without accounts: who may come; (): everybody who has the password
    teachers={teachers!r},
    learners={learners!r},  # at work at once
    ip={ip!r},
    port={port!r},
    certificate={certificate!r},  # two files, for https
    key={key!r},
    plain_http={plain_http!r},  # True: passwords travel readably
    as_root={as_root!r},  # True, without accounts: everybody is root; in a container only
    idle_minutes={idle_minutes!r},
)
configure(get_config(), room)  # noqa: F821
'''


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to, for whom, and where it listens."""
    room = Room(folder=Path(), notebooks=NOTEBOOKS)
    parser.add_argument("folder", type=Path, help="a new folder, or one written by this before")
    parser.add_argument("--accounts", metavar="GROUP", default="", help="learners have accounts")
    parser.add_argument("--names", nargs="+", default=(), help="who may come (default: anybody)")
    parser.add_argument(
        "--teachers", nargs="+", default=(), help="who looks after the servers (default: teacher)"
    )
    parser.add_argument("--learners", type=int, default=room.learners, help="at work at once")
    parser.add_argument("--ip", default=room.ip, help="where it listens (default: %(default)s)")
    parser.add_argument("--port", type=int, default=room.port)
    parser.add_argument("--certificate", metavar="FILE", default="", help="for https, with its key")
    parser.add_argument("--key", metavar="FILE", default="")
    parser.add_argument("--plain-http", action="store_true", help="passwords may travel readably")
    parser.add_argument("--as-root", action="store_true", help="everybody is root: in containers")
    parser.add_argument("--idle-minutes", type=float, default=room.idle_minutes)
    parser.add_argument("--start", action="store_true", help="start it, too")


def main(chosen: argparse.Namespace) -> int:
    """Writes the room and says how to start it, or becomes the hub."""
    room = room_of(chosen)
    was_there = (room.folder / CONFIG).exists()
    config = write(room)
    line = command(config)
    if chosen.start:
        if lacks := hub_run.missing():
            raise ValueError(f"a hub needs {' and '.join(lacks)}. Install what it needs: make hub")
        sys.stdout.flush()
        os.execv(sys.executable, line)
    if was_there:
        print(say("{config} stays as it is: delete it to have a new one.", config=config))
    print(*told(config, room), sep="\n")
    return 0


def room_of(chosen: argparse.Namespace) -> Room:
    """The room that the options describe. Raises ValueError for one that can't be."""
    if not (NOTEBOOKS / "index.ipynb").is_file():
        raise ValueError(
            f"learners get the course's notebooks, and there are none at {NOTEBOOKS}. Clone the "
            "course and install labkit from there: make env"
        )
    given = {name: getattr(chosen, name) for name in vars(chosen) if name in _FIELDS}
    given |= {"names": tuple(chosen.names), "teachers": tuple(chosen.teachers)}
    for name in ("certificate", "key"):
        if given[name]:
            given[name] = str(Path(given[name]).resolve())
    return Room(**{**given, "folder": chosen.folder.resolve(), "notebooks": NOTEBOOKS})


_FIELDS = set(Room.__dataclass_fields__)


def write(room: Room) -> Path:
    """Makes the room's folder and its configuration; what is there stays. Returns the
    configuration's file."""
    hub_run.furnish(room)
    config = room.folder / CONFIG
    if not config.exists():
        fields = {name: getattr(room, name) for name in _FIELDS}
        fields["notebooks"] = str(room.notebooks)
        config.write_text(TEXT.format(command=" ".join(command(config)), **fields), "utf-8")
    return config


def command(config: Path) -> list[str]:
    """What starts the hub, word by word."""
    return [sys.executable, "-m", "jupyterhub", "-f", str(config)]


def told(config: Path, room: Room) -> list[str]:
    """What to do next, line by line."""
    lines = [
        say("{config} says what this room is.", config=config),
        say("Start the hub: {command}", command=" ".join(command(config))),
    ]
    if lacks := hub_run.missing():
        lines.insert(1, say("Missing: {packages}. First: make hub", packages=", ".join(lacks)))
    if room.accounts:
        return [*lines, say("Learners open {url} and log in with their accounts.", url=room.url)]
    learner, teacher = (room.folder / name for name in (hub_run.PASSWORD, hub_run.TEACHER_PASSWORD))
    return [
        *lines,
        say("Learners open {url}; their password is in {path}.", url=room.url, path=learner),
        say(
            "You log in as {name}, with the password in {path}.",
            name=room.admins[0],
            path=teacher,
        ),
    ]
