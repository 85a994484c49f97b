"""Laws of the folder that a classroom's board reads: one in which others could read or replace is
refused, and whatever becomes of it no cell fails or waits."""

import time

import pytest
from check.test_sharing import EXERCISES, told_or_busy, wrong_order  # noqa: F401

import labkit as lab
from labkit.check import record
from labkit.check.shared import content, opting
from labkit.pipeline import check

pytestmark = pytest.mark.usefixtures("home", "a_fresh_learner", "patient")


def test_no_board_says_the_way_out(monkeypatch):
    monkeypatch.delenv(content.VARIABLE, raising=False)
    with pytest.raises(ValueError, match=r"LABKIT_BOARD names none.*classroom board FOLDER --make"):
        lab.progress(share="Ada")
    assert "On the board" not in lab.progress(share=False).note


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o700, 0o2733, 0o1733, 0o3777])
def test_a_folder_in_which_others_could_read_or_replace_is_refused(folder, mode):
    folder.chmod(mode)
    with pytest.raises(ValueError, match=r"LABKIT_BOARD names the whole path.*--make"):
        lab.progress(share="Ada")
    folder.chmod(0o777)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["nowhere", "file", "."])
def test_what_is_no_folder_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "file").touch()
    named = name if name == "." else str(tmp_path / name)
    monkeypatch.setenv(content.VARIABLE, named)
    with pytest.raises(ValueError, match=r"LABKIT_BOARD names the whole path"):
        lab.progress(share="Ada")


def test_a_folder_that_goes_or_opens_fails_no_cell_and_is_not_written_to(folder, capsys):
    lab.progress(share="Ada")
    (path,) = folder.iterdir()
    before = path.read_bytes()
    folder.chmod(0o777)
    check.better_order(wrong_order)
    assert path.read_bytes() == before
    path.unlink()
    folder.rmdir()
    check.better_order(wrong_order)
    assert record.entries("exercises")["better_order"]["attempts"] == 2
    assert capsys.readouterr().err == ""
    lab.progress(share=False)


def test_a_folder_that_hangs_holds_nobody_up(folder, monkeypatch):
    lab.progress(share="Ada")
    monkeypatch.setattr(opting, "PATIENCE_S", 0.1)
    write = opting._write

    def slow(place):
        time.sleep(1.5)
        write(place)

    monkeypatch.setattr(opting, "_write", slow)
    began = time.monotonic()
    for number in range(5):
        record.change("exercises", "waits", lambda _, n=number: {"state": "wrong", "attempts": n})
    assert time.monotonic() - began < 1.4
    deadline = time.monotonic() + 20
    while told_or_busy(folder).exercises.get("waits") is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while told_or_busy(folder).exercises["waits"].attempts != 4:  # the last one is not lost
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while opting._due.is_set() or opting._busy.locked():  # the thread has ended, for other tests
        assert time.monotonic() < deadline
        time.sleep(0.05)
