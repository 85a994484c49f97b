"""What runs under limits ends at them, with all that it has started."""

import subprocess
import sys
import time

import psutil
import pytest

from labkit.classroom.kernel_run import Limits, command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")
HIDES = """
import os, time
for number in range({number}):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep({seconds})
        os._exit(0)
{then}
"""


def run(tmp_path, code, **limits):
    """Exit status, what the note says, seconds, and who was left behind."""
    note = tmp_path / "note"
    mark = f"mark-{tmp_path.name}"
    began_s = time.monotonic()
    started = [sys.executable, "-c", code, mark]
    words = command(Limits(**limits), str(note), started)
    done = subprocess.run(words, timeout=60, stdout=subprocess.DEVNULL, check=False)
    told = note.read_text() if note.exists() else ""
    return done.returncode, told, time.monotonic() - began_s, alive(mark)


def alive(mark):
    """The processes that have a word in their command line."""
    found = []
    for each in psutil.process_iter(["cmdline", "status"]):
        if mark in (each.info["cmdline"] or []) and each.info["status"] != "zombie":
            found.append(each)
    return found


def test_what_keeps_to_its_limits_ends_by_itself(tmp_path):
    assert run(tmp_path, "raise SystemExit(3)")[:2] == (3, "")


@pytest.mark.parametrize(
    ("code", "limits", "told"),
    [
        ("import time; time.sleep(50)", {"seconds": 1}, "longer than 1 s"),
        (
            "import signal\nfor n in (2, 15): signal.signal(n, 1)\nwhile True: pass",
            {"seconds": 1},
            "longer than 1 s",
        ),
        (
            HIDES.format(number=100, seconds=50, then="time.sleep(50)"),
            {"processes": 20},
            "more than 20 processes",
        ),
        (
            "held = [bytearray(b'1') * 10**7 for _ in range(200)]\nimport time\ntime.sleep(50)",
            {"memory_gb": 0.5},
            "more than 0.5 GB",
        ),
    ],
    ids=["sleeps", "is deaf", "forks", "fills memory"],
)
def test_a_limit_ends_it(tmp_path, code, limits, told):
    status, note, took_s, left = run(tmp_path, code, **limits)
    assert (status, left) == (1, [])
    assert told in note
    assert took_s < 40


def test_daemons_are_gone_when_their_parent_has_ended(tmp_path):
    code = HIDES.format(number=3, seconds=50, then="time.sleep(0.5)")
    assert run(tmp_path, code)[3] == []


def test_who_kills_its_guard_is_still_ended(tmp_path):
    then = "time.sleep(0.5)\nos.kill(os.getppid(), 9)\ntime.sleep(50)"
    _, _, took_s, left = run(tmp_path, HIDES.format(number=2, seconds=50, then=then))
    assert left == []
    assert took_s < 40


def test_a_file_has_a_limit(tmp_path):
    file = tmp_path / "large"
    code = f"open({str(file)!r}, 'wb').write(bytes(10**7))"
    assert run(tmp_path, code, file_gb=0.001)[0] != 0
    assert file.stat().st_size <= 10**6
