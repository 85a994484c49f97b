"""Several notebooks at once: each has its own ranks, and when they end, kindly or not, nothing of
them is left."""

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "crowd.py"


@pytest.fixture(scope="module")
def crowd():
    spec = importlib.util.spec_from_file_location("crowd", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.again
def test_two_notebooks_do_not_see_one_another_and_leave_nothing(crowd):
    """One of them ends kindly, the other is killed."""
    row = crowd.measure(2, 2, 2)
    assert row["launches"] == 4 and row["seconds"] < 120
    assert [row[name] for name in ("failed", "crossed", "orphans", "leaked_files")] == [
        0,
        0,
        0,
        0,
    ], row


def test_a_rank_of_another_kernel_would_be_seen(crowd):
    one, other = (crowd.Notebook.__new__(crowd.Notebook) for _ in range(2))
    rank = {"zygote": 5, "port": "1", "folder": "a"}
    one.__dict__ |= {"token": 7, "num_ranks": 2, "zygote": 5}
    good = {"ranks": [{**rank, "pid": 8, "sum": 21.0}, {**rank, "pid": 9, "sum": 21.0}]}
    assert not one.is_wrong(good)
    for wrong in ({"sum": 22.0}, {"port": "2"}, {"folder": "b"}, {"zygote": 6}, {"pid": 9}):
        assert one.is_wrong({"ranks": [{**good["ranks"][0], **wrong}, good["ranks"][1]]})
    other.__dict__ |= {"token": 9, "num_ranks": 2, "zygote": 6}
    assert other.is_wrong(good)
