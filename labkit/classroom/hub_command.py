"""``python -m labkit classroom hub FOLDER``: a JupyterHub for a room, on one machine."""

import argparse
import ast
import os
import socket
import sys
from pathlib import Path

from labkit.classroom import hub_run
from labkit.classroom.hub_run import Room
from labkit.words import say

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
"""the course; it lies beside the package, not in it"""
CONFIG = hub_run.CONFIG
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
    there = kept(config, room)
    if was_there:
        print(say("{config} stays as it is: delete it to have a new one.", config=config))
        if there and (ignored := not_in(there, room)):
            print(say("What you say here and not in it changes nothing: {names}", names=ignored))
    line = command(config)
    if chosen.start:
        if lacks := hub_run.missing():
            raise ValueError(f"a hub needs {' and '.join(lacks)}. Install what it needs: make hub")
        sys.stdout.flush()
        os.execv(sys.executable, line)
    print(*told(config, there), sep="\n")
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
_PATHS = {"folder", "notebooks"}


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


def kept(config: Path, room: Room) -> Room | None:
    """The room of a configuration, in the folder of ``room``; None where somebody has written it in
    another way."""
    try:
        tree = ast.parse(config.read_text("utf-8"))
        (call,) = (each for each in ast.walk(tree) if _is_room(each))
        fields = {each.arg: each.value for each in call.keywords}
        given = {name: ast.literal_eval(fields[name]) for name in _FIELDS & fields.keys() - _PATHS}
        return Room(**given, folder=room.folder, notebooks=room.notebooks)
    except (SyntaxError, TypeError, ValueError):
        return None


def _is_room(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Room"


def not_in(there: Room, room: Room) -> str:
    """The options that were given now and that the room there does not have."""
    plain = Room(folder=room.folder, notebooks=room.notebooks)
    names = [
        f"--{name.replace('_', '-')}"
        for name in sorted(_FIELDS - _PATHS - {"language"})
        if getattr(room, name) not in (getattr(plain, name), getattr(there, name))
    ]
    return ", ".join(names)


def command(config: Path) -> list[str]:
    """What starts the hub, word by word."""
    return [sys.executable, "-m", "jupyterhub", "-f", str(config)]


def told(config: Path, room: Room | None) -> list[str]:
    """What to do next, line by line; of a room that can't be read, only how it starts."""
    lines = [
        say("{config} says what this room is.", config=config),
        say("Start the hub: {command}", command=" ".join(command(config))),
    ]
    if lacks := hub_run.missing():
        lines.insert(1, say("Missing: {packages}. First: make hub", packages=", ".join(lacks)))
    if room is None:
        return lines
    return [*lines, *_doors(room)]


def _doors(room: Room) -> list[str]:
    """How learners come in, and who teaches them."""
    here = socket.gethostname()
    url = room.url.replace("*", here)
    lines = []
    if "*" in room.url:
        lines = [say("{name} is this machine's name here; its address will do, too.", name=here)]
    if room.accounts:
        return [say("Learners open {url} and log in with their accounts.", url=url), *lines]
    learner, teacher = (room.folder / name for name in (hub_run.PASSWORD, hub_run.TEACHER_PASSWORD))
    return [
        say("Learners open {url}; their password is in {path}.", url=url, path=learner),
        *lines,
        say("Each picks a name for it: {rule}.", rule=_name_rule(room)),
        say(
            "You log in as {name}, with the password in {path}.",
            name=room.admins[0],
            path=teacher,
        ),
    ]


def _name_rule(room: Room) -> str:
    """Which names a learner can log in under."""
    return ", ".join(room.names) or say("a letter first, then a to z, 0 to 9, . _ -, no spaces")
