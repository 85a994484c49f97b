"""A hostile file harms no board: the page still shows the others, in bounded time and memory."""

import contextlib
import fcntl
import json
import os
import signal
import threading
import time
import tracemalloc

import pytest
from classroom.seats import NOW_S, file_name, folder_in, put, seat, tried

from labkit.check.shared import content
from labkit.classroom import room_picture, room_run
from labkit.classroom.board_command import _page
from labkit.classroom.room_run import Folder

FINE = json.loads(content.written(seat("Eve", better_order=tried())))
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root lays files of other accounts")


@pytest.fixture
def folder(tmp_path):
    """A board's folder in which Ada is."""
    folder = folder_in(tmp_path)
    put(folder, seat("Ada", better_order=tried("passed", 2)))
    return folder


def names(board: Folder) -> list[str]:
    """Who is on the board."""
    return sorted(each.shared.name for each in board.read().learners)


def strange(board: Folder) -> int:
    return sum(each.strange for each in board.read().left)


def but(**changed: object) -> dict:
    """A learner's file in which something is not as it is written."""
    return FINE | changed


def entry(**changed: object) -> dict:
    """The same, of its one exercise."""
    return but(exercises={"better_order": FINE["exercises"]["better_order"] | changed})


REFUSED = {
    "empty": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"version": 1, "name": "\xff\xfe"}',
    "zeros": bytes(1000),
    "deep lists": b"[" * 100_000,
    "deep dicts": b'{"a":' * 20_000,
    "deep in a field": b'{"version": 1, "name": "E", "exercises": ' + b"[" * 50_000,
    "a long number": b'{"version": ' + b"9" * 100_000 + b"}",
    "too long": json.dumps(but(more="x" * content.MOST_BYTES)).encode(),
    "huge": b" " * 50_000_000,
    "a list": b"[]",
    "a number": b"1",
    "another version": but(version=2),
    "version true": but(version=True),
    "no name": but(name=None),
    "a name of tags": but(name="<script>alert(1)</script>" * 2),
    "a name that turns": but(name="Ada\u202egnp"),
    "a name that hides": but(name="A\u200bda"),
    "a name of lines": but(name="Ada\n\n\nx"),
    "a name of marks": but(name="A" + "\u0321\u0322\u0327\u0328"),
    "a long name": but(name="A" * 41),
    "half a letter": but(name="\ud800"),
    "exercises a list": but(exercises=[1]),
    "an exercise a list": but(exercises={"better_order": [1]}),
    "guesses a text": but(guesses="08"),
    "a grade of its own": but(guesses={"08": {"<b>": 1}}),
    "a state of its own": entry(state="<b>passed</b>"),
    "a state a list": entry(state=["passed"]),
    "attempts below zero": entry(attempts=-5),
    "no attempts": entry(attempts=0),
    "attempts of half": entry(attempts=1.5),
    "attempts true": entry(attempts=True),
    "attempts a text": entry(attempts="5"),
    "attempts beyond": entry(attempts=10**30),
    "attempts not a number": b'{"version": 1, "name": "E", "exercises": {"better_order": '
    b'{"state": "wrong", "attempts": NaN}}}',
    "a time below zero": entry(last_s=-1),
    "a time beyond": entry(began_s=10**18),
    "a thousand mistakes": entry(mistakes={f"m{number}": 1 for number in range(1000)}),
    "mistakes below zero": entry(mistakes={"NameError": -1}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_progress_is_counted_and_the_others_are_shown(folder, what):
    put(folder, REFUSED[what])
    board = Folder(folder)
    began = time.monotonic()
    assert names(board) == ["Ada"]
    assert strange(board) == 1
    page = _page(board, live=True)
    assert "Ada" in page and "one file that is no progress" in page
    assert time.monotonic() - began < 5


READ = {
    "unknown exercises": but(exercises={**FINE["exercises"], "<b>": {}, "x" * 5000: "y"}),
    "unknown chapters": but(guesses={"99": {"close": 1}, "<b>": 5}),
    "unknown mistakes": entry(mistakes={"<script>alert(1)</script>": 9}),
    "more fields": but(code="print()", html="<script>"),
    "times to come": entry(began_s=4 * 10**9, last_s=4 * 10**9),
    "a name of signs": but(name="<img src=x onerror=y>"),
    "another name with signs": but(name="\" onload='x' &lt;b&gt;"),
}


@pytest.mark.parametrize("what", READ)
def test_what_is_odd_but_harmless_is_shown_without_what_is_odd(folder, what):
    put(folder, READ[what])
    board = Folder(folder)
    assert len(names(board)) == 2 and strange(board) == 0
    page = _page(board, live=True)
    body = page[page.index("<body>") :]
    assert "alert(1)" not in body and "<img" not in body and "print()" not in body
    assert "onload='x'" not in body and body.count("<script>") == 1


def place(folder) -> object:
    """A path in the folder that is named as a learner's file is."""
    return folder / file_name()


def link(folder, tmp_path):
    target = tmp_path / "secret"
    target.write_bytes(content.written(seat("Mallory")))
    place(folder).symlink_to(target)


def loop(folder, tmp_path):
    path = place(folder)
    path.symlink_to(path)


def endless(folder, tmp_path):
    place(folder).symlink_to("/dev/zero")


def pipe(folder, tmp_path):
    os.mkfifo(place(folder))


def inner_folder(folder, tmp_path):
    inner = place(folder)
    inner.mkdir()
    put(inner, seat("Mallory"))


def second_name(folder, tmp_path):
    target = tmp_path / "secret"
    target.write_bytes(content.written(seat("Mallory")))
    os.link(target, place(folder))


def other_name(folder, tmp_path):
    (folder / "mallory.progress").write_bytes(content.written(seat("Mallory")))


def name_of_tags(folder, tmp_path):
    (folder / "<script>alert(1)<").touch()


def name_of_bytes(folder, tmp_path):
    with open(os.fsencode(folder) + b"/\xff\xfe\n", "wb"):
        pass


def sparse(folder, tmp_path):
    with open(place(folder), "wb") as file:
        file.truncate(10**12)


KINDS = (link, loop, endless, pipe, inner_folder, second_name, other_name, name_of_tags)
KINDS += (name_of_bytes, sparse)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_no_plain_file_is_not_read(folder, tmp_path, kind):
    kind(folder, tmp_path)
    board = Folder(folder)
    began = time.monotonic()
    assert names(board) == ["Ada"]
    assert strange(board) == 1
    page = _page(board, live=True)
    assert "Mallory" not in page and "alert(1)" not in page
    assert time.monotonic() - began < 5


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="Linux alone has leases")
def test_a_file_under_a_lease_is_not_waited_for(folder):
    path = put(folder, seat("Eve"))
    board = Folder(folder)
    told, tell = os.pipe()
    holder = os.fork()
    if holder == 0:
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGIO, signal.SIG_IGN)  # what asks for the lease back
            fcntl.fcntl(os.open(path, os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.write(tell, b"held")
            time.sleep(30)
        os._exit(0)
    os.close(tell)
    try:
        if os.read(told, 4) != b"held":
            pytest.skip("this file system knows no leases")
        began = time.monotonic()
        assert names(board) == ["Ada"]
        assert time.monotonic() - began < 3
    finally:
        os.close(told)
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def test_a_file_that_is_replaced_while_it_is_read_is_one_or_the_other(folder):
    path = folder / file_name()
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for text in (content.written(seat("Eve")), b"{" * 5000, content.written(seat("Bo"))):
                path.write_bytes(text)
            path.unlink()
            with contextlib.suppress(OSError):
                path.mkdir() if number % 2 else path.symlink_to("/dev/zero")
            with contextlib.suppress(OSError):
                path.unlink()
            with contextlib.suppress(OSError):
                path.rmdir()

    worker = threading.Thread(target=change, daemon=True)
    worker.start()
    board = Folder(folder)
    try:
        until_s = time.monotonic() + 3
        while time.monotonic() < until_s:
            assert {"Ada"} <= set(names(board)) <= {"Ada", "Bo", "Eve"}
    finally:
        stop.set()
        worker.join(10)
    assert not worker.is_alive()


def test_what_has_changed_is_read_anew_and_nothing_else(folder, monkeypatch):
    path = put(folder, seat("Eve"))
    board = Folder(folder)
    opened = []
    told = room_run._told
    monkeypatch.setattr(room_run, "_told", lambda *each: opened.append(each) or told(*each))
    assert names(board) == names(board) == ["Ada", "Eve"]
    assert len(opened) == 2
    path.write_bytes(content.written(seat("Eva")))
    assert names(board) == ["Ada", "Eva"]
    assert len(opened) == 3
    path.unlink()
    assert names(board) == ["Ada"]


@AS_ROOT
def test_one_account_with_thousands_of_files_does_not_hide_the_others(folder):
    for number in range(5000):
        put(folder, but(name=f"Eve {number}"), owner=4242)
    put(folder, seat("Bo"), owner=4243)
    board = Folder(folder)
    began = time.monotonic()
    found = board.read()
    assert time.monotonic() - began < 10
    shown = [each.shared.name for each in found.learners]
    assert {"Ada", "Bo"} <= set(shown) and len(shown) == 2 + room_run.PER_ACCOUNT
    (left,) = found.left
    assert (left.account, left.many, left.strange) == ("4242", 5000 - room_run.PER_ACCOUNT, 0)
    assert "4242" in _page(board, live=True)
    some = Folder(folder, per_account=30).read()
    assert len(some.learners) == 32


def test_thousands_of_files_of_one_account_that_all_share_take_bounded_time_and_memory(folder):
    big = json.dumps(but(more="x" * (content.MOST_BYTES - 2000))).encode()
    for _ in range(room_run.MOST_LEARNERS + 500):
        put(folder, big)
    board = Folder(folder)
    tracemalloc.start()
    began = time.monotonic()
    try:
        found = board.read()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < room_run.READ_S + 5
    assert peak_bytes < 100e6
    assert len(found.learners) <= room_run.MOST_LEARNERS
    assert sum(each.many for each in found.left) >= 500
    for _ in range(20):  # what was not read in time comes later
        found = board.read()
        if len(found.learners) == room_run.MOST_LEARNERS:
            break
    assert len(found.learners) == room_run.MOST_LEARNERS
    assert len(_page(board, live=True)) < 10e6


def test_a_folder_with_more_files_than_are_looked_at_says_so(folder, monkeypatch):
    monkeypatch.setattr(room_run, "MOST_FILES", 20)
    for number in range(50):
        (folder / f"x{number}").touch()
    found = Folder(folder).read()
    assert found.crowded and sum(each.strange for each in found.left) <= 20
    assert "somebody may be missing" in _page(Folder(folder), live=True)


def test_many_accounts_with_strange_files_make_a_short_page(folder):
    counts = room_run.collections.Counter({1000 + number: 1 for number in range(5000)})
    left = room_run._left(counts, room_run.collections.Counter())
    assert len(left) == 20
    assert len(room_picture._left(_empty(left))) < 10_000


def _empty(left):
    from labkit.classroom.room import room

    return room([], NOW_S, left=left)


def test_what_is_just_being_written_is_no_strange_file(folder, monkeypatch):
    (folder / ".half").touch()
    assert strange(Folder(folder)) == 0
    monkeypatch.setattr(room_run, "WRITING_S", -1.0)
    assert strange(Folder(folder)) == 1
