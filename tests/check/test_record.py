"""Laws of the reader's record: it survives the kernel, two kernels at once, a broken file and a
folder that can't be written, and is never written where nobody is learning."""

import json
import os
import subprocess
import sys

import pytest

from labkit.check import record

pytestmark = pytest.mark.usefixtures("home")


def count(entry):
    return {"number": entry.get("number", 0) + 1}


def test_what_one_kernel_keeps_the_next_one_finds(home):
    assert record.entries("guesses") == {}
    record.change("guesses", "a", lambda before: {**before, "guess": 0.5})
    record.change("guesses", "a", lambda before: {**before, "answer": "中文"})
    program = "from labkit.check import record; print(record.entries('guesses'))"
    found = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert found.stdout.strip() == "{'a': {'guess': 0.5, 'answer': '中文'}}"
    assert sorted(path.name for path in home.iterdir()) == ["progress.json", "progress.lock"]


def test_two_kernels_at_once_lose_nothing(home):
    program = """
import sys
from labkit.check import record
for number in range(40):
    record.change("exercises", "shared", lambda e: {"number": e.get("number", 0) + 1})
    record.change("exercises", f"{sys.argv[1]} {number}", lambda e: {"number": number})
"""
    kernels = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "abc"]
    assert [kernel.wait(timeout=100) for kernel in kernels] == [0, 0, 0]
    found = record.entries("exercises")
    assert found["shared"] == {"number": 120} and len(found) == 121


def test_a_lock_that_nobody_gives_back_is_not_waited_for_long(home, monkeypatch):
    import fcntl
    import time

    record.change("exercises", "a", count)
    monkeypatch.setattr(record, "_PATIENCE_S", 0.2)
    with open(home / "progress.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        began = time.monotonic()
        record.change("exercises", "a", count)
        assert time.monotonic() - began < 2
    assert record.entries("exercises")["a"] == {"number": 2}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'{"version": 2, "exercises": {}, "guesses": {}}',
        b'{"version": 1, "exercises": {"a": 3}, "guesses": {}}',
        b'{"version": 1, "exercises": {}}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside_and_said(home, content, capsys):
    home.mkdir()
    (home / "progress.json").write_bytes(content)
    record.change("exercises", "a", count)
    (aside,) = home.glob("progress-unreadable-*.json")
    assert aside.read_bytes() == content
    said = capsys.readouterr().err
    assert "could not be read" in said and aside.name in said
    assert record.entries("exercises") == {"a": {"number": 1}}
    assert capsys.readouterr().err == ""


def test_two_broken_files_in_one_second_are_both_kept(home, monkeypatch):
    home.mkdir()
    monkeypatch.setattr(record.time, "strftime", lambda _: "now")
    for content in ("one", "two", "three"):
        (home / "progress.json").write_text(content)
        assert record.entries("guesses") == {}
    kept = {path.read_text() for path in home.glob("progress-unreadable-*.json")}
    assert kept == {"one", "two", "three"}


def test_a_home_that_cannot_be_made_lasts_as_long_as_the_kernel_and_is_said_once(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "file" / "home"))
    record.change("exercises", "a", count)
    record.change("exercises", "a", count)
    assert record.entries("exercises") == {"a": {"number": 2}}
    assert capsys.readouterr().err.count("can't be kept in") == 1


def test_what_could_not_be_written_is_written_when_it_can_be(home, monkeypatch, capsys):
    record.change("exercises", "a", count)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(record.os, "replace", full)
        record.change("exercises", "a", count)
        assert not list(home.glob("*.tmp"))
        assert json.loads((home / "progress.json").read_text())["exercises"]["a"] == {"number": 1}
    assert "No space left on device" in capsys.readouterr().err
    record.change("exercises", "a", count)
    assert record.entries("exercises")["a"]["number"] >= 2


def test_clearing_keeps_a_backup(home):
    assert record.clear() is None
    record.change("guesses", "a", lambda _: {"guess": 1})
    before = (home / "progress.json").read_text()
    backup = record.clear()
    assert backup.parent == home and backup.read_text() == before
    assert record.entries("guesses") == {}


@pytest.mark.parametrize("name", ["CI", "PYTEST_CURRENT_TEST", "LABKIT_BOOK"])
def test_nothing_is_written_where_nobody_learns(name, tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_HOME")
    for other in ("CI", "PYTEST_CURRENT_TEST", "LABKIT_BOOK"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert record.home() == tmp_path / ".labkit"
    monkeypatch.setenv(name, "1")
    record.change("exercises", "a", count)
    assert record.entries("exercises") == {"a": {"number": 1}}
    assert os.listdir(tmp_path) == []


def test_for_the_book_nothing_is_written_even_where_a_home_is_named(home, monkeypatch):
    monkeypatch.setenv("LABKIT_BOOK", "1")
    record.change("exercises", "a", count)
    assert record.home() is None and not home.exists()
