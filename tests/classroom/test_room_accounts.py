"""What another account can do to a learner's file, tried by real accounts: nothing.

Each child of a test becomes another account for good, which only root can begin; elsewhere these
tests skip. Three are nobody in particular; the instructor is none of them, and not root.
"""

import contextlib
import json
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from classroom.seats import tried

import labkit as lab
from labkit.__main__ import _parser
from labkit.check import chapters, record
from labkit.check.shared import content, mistakes, opting
from labkit.classroom import board_command, room_picture, room_run

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become other accounts: run as root to try this"
)
INSTRUCTOR, ADA, EVE = 64001, 64002, 64003
STUDENTS = 64100
"""the group that all learners have"""


def as_account(account: int, group: int, act: Callable[[], object]) -> object:
    """What a function gives in a process of another account; its error, in words, fails the
    test."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        answer: dict = {}
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(account)
            answer["gives"] = act()
        except BaseException:
            answer["fails"] = traceback.format_exc()
        with contextlib.suppress(BaseException):
            os.write(tell, json.dumps(answer).encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        answer = json.loads(pipe.read() or b'{"fails": "it ended without a word"}')
    os.waitpid(child, 0)
    assert "fails" not in answer, answer["fails"]
    return answer["gives"]


@pytest.fixture
def room(monkeypatch):
    """A place that everybody reaches, with a home for each account and the instructor's folder."""
    for needed in (lab.progress, record.home, tried):  # what children need is loaded before they go
        assert callable(needed)
    chapters.exercises()
    room_picture.content_policy()
    mistakes.is_known("")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        for account in (INSTRUCTOR, ADA, EVE):
            home = place / str(account)
            home.mkdir(mode=0o755)  # as careless as homes often are
            os.chown(home, account, -1)
        (place / "shared").mkdir()
        os.chown(place / "shared", INSTRUCTOR, INSTRUCTOR)
        folder = place / "shared" / "board"
        as_account(INSTRUCTOR, INSTRUCTOR, lambda: room_run.make(folder))
        monkeypatch.setenv(content.VARIABLE, str(folder))
        monkeypatch.delenv("LABKIT_BOOK", raising=False)
        monkeypatch.setattr(record, "_kept", {kind: {} for kind in record.KINDS})
        yield place


def share(place: Path, account: int, name: str, group: int = STUDENTS) -> Path:
    """A learner opts in; their file, as root sees it."""
    before = set((place / "shared" / "board").iterdir())

    def act() -> None:
        os.environ["LABKIT_HOME"] = str(place / str(account) / ".labkit")
        lab.progress(share=name)
        record.change("exercises", "better_order", lambda _: {"state": "wrong", "attempts": 4})

    as_account(account, group, act)
    (mine,) = set((place / "shared" / "board").iterdir()) - before
    return mine


def refused(act: Callable[[], object]) -> bool:
    """Whether the system forbids it."""
    try:
        act()
    except PermissionError:
        return True
    return False


def test_an_instructor_who_is_not_root_reads_every_learner(room):
    folder = room / "shared" / "board"
    share(room, ADA, "Ada")
    share(room, EVE, "Eve", group=EVE)

    def read() -> list:
        found = room_run.Folder(folder).read()
        return sorted([each.shared.name, each.account] for each in found.learners)

    assert as_account(INSTRUCTOR, INSTRUCTOR, read) == [["Ada", str(ADA)], ["Eve", str(EVE)]]
    page = room / str(INSTRUCTOR) / "page.html"

    words = ["classroom", "board", str(folder), "--once", str(page)]
    chosen = _parser().parse_args(words)

    def write() -> int:
        return board_command.main(chosen)

    assert as_account(INSTRUCTOR, INSTRUCTOR, write) == 0
    assert "Ada" in page.read_text(encoding="utf-8")


def test_another_learner_finds_reads_and_replaces_nothing(room):
    folder = room / "shared" / "board"
    mine = share(room, ADA, "Ada")
    before = mine.read_bytes()
    own = str(room / str(ADA) / ".labkit" / "progress.json")

    def attempts() -> dict[str, bool]:
        """Each by Eve, who even knows the name of Ada's file."""
        tries = {
            "list": lambda: os.listdir(folder),
            "read": mine.read_bytes,
            "write": lambda: mine.write_bytes(b""),
            "append": lambda: os.open(mine, os.O_WRONLY | os.O_APPEND),
            "remove": mine.unlink,
            "rename": lambda: mine.rename(folder / "other"),
            "mode": lambda: mine.chmod(0o666),
            "folder's mode": lambda: folder.chmod(0o777),
            "record": lambda: Path(own).read_bytes(),
        }
        return {name: refused(act) for name, act in tries.items()}

    def replaced() -> bool:
        path = folder / "mine"
        path.touch()
        return refused(lambda: path.rename(mine))

    for group in (STUDENTS, EVE):
        found = as_account(EVE, group, attempts)
        assert found == dict.fromkeys(found, True)
    assert as_account(EVE, STUDENTS, replaced)
    assert mine.read_bytes() == before
    assert (mine.stat().st_uid, mine.stat().st_gid) == (ADA, INSTRUCTOR)


def test_the_same_attempts_succeed_in_a_careless_folder(room):
    """So that the test above can fail."""
    folder = room / "shared" / "board"
    mine = share(room, ADA, "Ada")
    folder.chmod(0o777)
    mine.chmod(0o644)
    listed = as_account(EVE, STUDENTS, lambda: os.listdir(folder))
    assert mine.name in listed
    assert as_account(EVE, STUDENTS, lambda: mine.read_text(encoding="utf-8")).startswith("{")
    as_account(EVE, STUDENTS, mine.unlink)


def test_a_learner_of_the_instructors_group_does_not_find_the_file(room):
    """The group may read a file whose name it knows; the name is what it can't learn."""
    folder = room / "shared" / "board"
    mine = share(room, ADA, "Ada")
    assert as_account(EVE, INSTRUCTOR, lambda: refused(lambda: os.listdir(folder)))
    assert len(set(mine.stem)) > 4 and len(mine.stem) == content.TOKEN_LETTERS


def test_a_learner_takes_their_own_file_back(room):
    mine = share(room, ADA, "Ada")

    def act() -> None:
        os.environ["LABKIT_HOME"] = str(room / str(ADA) / ".labkit")
        lab.progress(share=False)

    as_account(ADA, STUDENTS, act)
    assert not mine.exists()


def test_a_folder_that_a_learner_cannot_reach_says_the_way_out(room):
    (room / "shared").chmod(0o700)

    def act() -> str:
        os.environ["LABKIT_HOME"] = str(room / str(ADA) / ".labkit")
        try:
            opting.opt_in("Ada")
        except ValueError as error:
            return str(error)
        return ""

    assert "--make" in as_account(ADA, STUDENTS, act)
    assert room_run.closed_to_others(room / "shared" / "board") == (room / "shared").resolve()
