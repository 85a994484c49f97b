"""A room: learners execute whole chapters at once, at one gate; what crosses or fails is seen."""

import importlib.util
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "room.py"


@pytest.fixture(scope="module")
def room():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(SOURCE.parent), *sys.path])
        spec = importlib.util.spec_from_file_location("room", SOURCE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def learner(room, number, folder):
    """One whose kernel had one run, with the right sum."""
    one = room.Learner.__new__(room.Learner)
    rank = {"zygote": 50 + number, "port": "1", "folder": folder}
    ranks = [{**rank, "pid": 8 + pid, "sum": 10.0 * (1 + number)} for pid in range(4)]
    one.__dict__ |= {"number": number, "token": 1 + number, "num_ranks": 4}
    one.__dict__ |= {"zygotes": {50 + number}, "launches": [{"ranks": ranks}]}
    one.__dict__ |= {"reports": [{"launches": [{"folder": folder}]}]}
    return one


def test_what_two_learners_share_is_counted(room):
    assert room.crossed([learner(room, 0, "a"), learner(room, 1, "b")]) == 0
    assert room.crossed([learner(room, 0, "a"), learner(room, 1, "a")]) == 1
    other = learner(room, 1, "b")
    other.launches[0]["ranks"][2]["sum"] = 10.0
    assert room.crossed([learner(room, 0, "a"), other]) == 1
    other = learner(room, 1, "b")
    other.launches[0]["ranks"][2]["zygote"] = 50
    assert room.crossed([learner(room, 0, "a"), other]) == 1


def test_waits_are_of_all_launches(room):
    told = [{"wait_s": wait, "paced": wait > 1, "overran": wait > 2} for wait in (0, 0, 1, 2, 3)]
    found = room._waits(told)
    assert [found[name] for name in ("queued", "median_wait_s", "longest_wait_s")] == [3, 1, 3]
    assert [found["paced"], found["overran"]] == [2, 1]


@pytest.mark.again
@pytest.mark.timeout(600)
def test_two_learners_execute_a_chapter_and_leave_nothing(room):
    row = room.measure(2, ["02"])
    wrong = {name: row[name] for name in ("failed", "crossed", "orphans", "leaked_files")}
    assert not any(wrong.values()), row
    assert row["launches"] > 20 and row["queued"] > 0
