"""A run that is expected to fail gives its verdict as a value, and a look from outside tells where
each rank is without telling which is odd."""

import pytest
import torch
from torch import distributed as dist

import labkit as lab
from labkit.debugging import broken_run
from labkit.launching.verdicts import verdict as verdicts


def only_rank_0_waits():
    if dist.get_rank() == 0:
        dist.barrier()


def one_raises():
    if dist.get_rank() == 1:
        raise KeyError("sample 17")
    dist.all_reduce(torch.ones(1))


def circle():
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)
    dist.all_reduce(torch.ones(1))


def test_a_hang_is_a_verdict_and_its_places_name_nobody():
    error = broken_run.verdict(only_rank_0_waits, ranks=3, backend="gloo", timeout_s=30)
    assert isinstance(error, lab.Deadlock) and error.finding.ranks == (1, 2)
    rows = broken_run.places(error)
    assert [row["rank"] for row in rows] == [0, 1, 2]
    assert rows[0]["line"] == "dist.barrier()"
    assert [row["line"] for row in rows[1:]] == ["", ""]
    assert [row["state"] for row in rows] == ["is still in a call", "returned", "returned"]


def test_a_rank_that_raised_is_told_by_its_exception_and_its_line():
    error = broken_run.verdict(one_raises, ranks=2, backend="gloo", timeout_s=30)
    assert isinstance(error, lab.RankFailed)
    row = broken_run.places(error)[1]
    assert (row["state"], row["line"]) == ("KeyError", 'raise KeyError("sample 17")')


def test_a_run_that_ends_well_has_no_verdict():
    with pytest.raises(ValueError, match="this one returned"):
        broken_run.verdict(dist.barrier, ranks=2, backend="gloo", timeout_s=30)


def test_a_run_that_hangs_now_tells_its_places_too():
    job = lab.start(circle, ranks=3, backend="gloo", timeout_s=30)
    rows = broken_run.places(job)
    job.stop()
    assert [row["rank"] for row in rows] == [0, 1, 2]
    assert {row["state"] for row in rows} == {"is still in a call"}
    assert [row["line"] for row in rows] == [
        "dist.all_reduce(torch.ones(1))",
        "dist.recv(torch.zeros(1), src=0)",
        "dist.all_reduce(torch.ones(1))",
    ]


def swapped():
    x, y = torch.ones(2, 1)
    if dist.get_rank() != 1:
        dist.all_reduce(x)
    dist.all_reduce(y)
    if dist.get_rank() == 1:
        dist.all_reduce(x)


def test_collectives_stand_in_a_row_by_their_number():
    rows = broken_run.numbered(lab.launch(swapped, ranks=3, backend="gloo", timeout_s=30))
    x, y = "dist.all_reduce(x)", "dist.all_reduce(y)"
    first, second = rows
    assert [first[f"rank {rank}"] for rank in range(3)] == [x, y, x]
    assert [second[f"rank {rank}"] for rank in range(3)] == [y, x, y]
    assert second["number"] == first["number"] + 1 and "group" not in first


def of_two_groups():
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), group=group)


def test_calls_of_another_group_have_their_own_rows():
    rows = broken_run.numbered(lab.launch(of_two_groups, ranks=2, backend="gloo", timeout_s=30))
    assert len({row["group"] for row in rows}) == 2
    assert rows[-1]["rank 1"] == "" and "group=group" in rows[-1]["rank 0"]


def test_a_verdict_shows_its_report_and_no_traceback(monkeypatch, capsys):
    drawn = []
    monkeypatch.setattr(verdicts.LaunchError, "draw", staticmethod(drawn.append))
    error = lab.RankFailed("rank 1 failed\nat once\n\nTraceback: deep")
    error._ipython_display_()
    assert drawn == [error]
    assert capsys.readouterr().out == "RankFailed: rank 1 failed\nat once\n"


def test_below_the_report_a_verdicts_words_are_folded_and_without_one_they_stand_there(
    monkeypatch, capsys
):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    monkeypatch.setattr(verdicts.LaunchError, "draw", staticmethod(lambda error: None))
    error = lab.RankFailed("rank 1 has x < 1\n\nTraceback: deep")
    error._ipython_display_()
    (told,) = shown
    folded = told._repr_html_()
    assert "<summary>RankFailed: the message that was raised</summary>" in folded
    assert "rank 1 has x &lt; 1" in folded and "deep" not in folded
    monkeypatch.setattr(verdicts.LaunchError, "draw", None)
    error._ipython_display_()
    assert capsys.readouterr().out == "RankFailed: rank 1 has x < 1\n" and len(shown) == 1
