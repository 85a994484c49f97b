"""What is kept of a survey, what stands beside it, and where its ranks stand."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.collectives import published
from labkit.launching.verdicts.verdict import Refused
from labkit.survey import picture, readings, report_picture, run, summary, trials
from labkit.survey.summary import Number, Summary, Taken

NUMBER = Number(
    part="pipeline",
    group="bubble",
    case=("1F1B", "m = 8"),
    what="bubble",
    unit="share",
    value=0.25,
    origin="measured",
    ranks=4,
    rung="cpu",
    headline=True,
    at=8,
)
SUMMARY = Summary(
    started="2026-01-01T00:00:00",
    minutes=1.0,
    machine={"cpu": "a <CPU>", "cores": 2, "memory_bytes": 10**9, "gpus": 0},
    versions={"torch": "2.13.0"},
    taken=(Taken(name="one", part="pipeline", ranks=4, fields={}, rung="cpu", error="<broken>"),),
    numbers=(NUMBER, replace(NUMBER, origin="predicted", value=0.2)),
)


def test_what_is_read_is_what_was_written_and_measured_is_recorded(tmp_path):
    replace(SUMMARY, folder=tmp_path).save()
    found = summary.load(tmp_path)
    assert found == SUMMARY.recorded()
    assert [each.origin for each in found.numbers] == ["recorded", "predicted"]
    assert [path.name for path in tmp_path.iterdir()] == [summary.FILE]


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": [{"value": 1}]},
        {"numbers": 3},
        {"taken": [{}]},
        {"left_out": None},
        {"more": 1},
    ],
    ids=str,
)
def test_what_no_survey_wrote_is_refused(tmp_path, change):
    replace(SUMMARY, folder=tmp_path).save()
    content = json.loads((tmp_path / summary.FILE).read_text())
    (tmp_path / summary.FILE).write_text(json.dumps({**content, **change}))
    with pytest.raises(ValueError, match="Measure again: python -m labkit measure"):
        summary.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"origin": "guessed"}, {"unit": "furlongs"}, {"rung": "moon"}, {"value": float("nan")}],
    ids=str,
)
def test_a_number_says_where_it_comes_from_and_in_what_unit(change):
    with pytest.raises(ValueError):
        replace(NUMBER, **change)


def test_the_same_number_of_as_many_ranks_stands_beside_it_before_any_other():
    two = replace(NUMBER, origin="recorded", ranks=2, value=0.1)
    four = replace(NUMBER, origin="recorded", ranks=4, value=0.3)
    predicted = replace(NUMBER, origin="predicted")
    other = replace(four, case=("1F1B", "m = 4"))
    assert summary.beside(NUMBER, [predicted, other, two, four]) is four
    assert summary.beside(NUMBER, [predicted, other, two]) is two
    assert summary.beside(NUMBER, [predicted, other]) is None


def test_another_number_of_ranks_stands_in_brackets():
    others = {"there": [replace(NUMBER, origin="recorded", ranks=2, value=0.1)]}
    (table,) = picture.tables(SUMMARY.numbers, others)
    assert "10.0 % (N = 2)" in str(table) and "25.0 %" in str(table) and "20.0 %" in str(table)


def test_published_bandwidths_are_those_of_the_table():
    machine = published.machines()[0]
    found = {each.case[0]: each.value for each in readings.published_numbers(machine)}
    rows = list(csv.DictReader(published.TABLE.open(encoding="utf-8")))
    printed = [float(row["busbw_GBps"]) for row in rows if row["node"] == machine]
    assert list(found.values()) == pytest.approx(printed, rel=0.01)


def test_the_page_escapes_what_it_is_told_and_tells_what_failed():
    page = report_picture.page(SUMMARY, {}, {})
    assert "&lt;broken&gt;" in page and "<broken>" not in page and "a &lt;CPU&gt;" in page
    assert "one: <broken>" in report_picture.lines(SUMMARY, {}, {})


def test_the_page_speaks_chinese(chinese):
    page = report_picture.page(SUMMARY, {}, {})
    assert 'lang="zh"' in page and "这台机器的表现" in page and "In short" not in page


@pytest.mark.parametrize(
    ("num_gpus", "forced", "expected"),
    [
        (8, "", ("cuda",)),
        (1, "", ("shared", "cpu")),
        (0, "", ("cpu",)),
        (0, "pretend", ("pretend",)),
        (8, "cpu", ("cpu",)),
    ],
)
def test_ranks_stand_on_the_best_rung_there_is(monkeypatch, num_gpus, forced, expected):
    monkeypatch.setattr(run.resources, "num_gpus", lambda: num_gpus)
    monkeypatch.setenv("LABKIT_DEVICE", forced)
    assert run.rungs(4) == expected
    assert run.usual_ranks() == (8 if num_gpus == 8 else 4)


def test_a_rung_that_is_refused_gives_way_to_the_next(monkeypatch, tmp_path):
    tried = []

    def start(trial: trials.Trial) -> None:
        tried.append(run.os.environ["LABKIT_DEVICE"])
        raise Refused("not here")

    monkeypatch.delenv("LABKIT_DEVICE", raising=False)
    monkeypatch.setattr(run, "rungs", lambda ranks: ("shared", "cpu"))
    monkeypatch.setattr(run, "start", start)
    empty = run.begin(tmp_path / "new", 1.0)
    (trial,) = trials.trials(["device"], 2, minutes=1.0, has_gpu=False)[:1]
    *_, found = run.survey([trial], empty)
    assert tried == ["shared", "cpu"] and "LABKIT_DEVICE" not in run.os.environ
    assert found.errors == {"device": "not here"}


def test_what_no_time_is_left_for_is_left_out_and_said(tmp_path):
    empty = run.begin(tmp_path / "new", 0.0)
    wanted = trials.trials(trials.PARTS, 4, minutes=1.0, has_gpu=False)
    *_, found = run.survey(wanted, empty)
    assert found.left_out == tuple(each.name for each in wanted) and not found.taken
    assert "No time was left for device" in report_picture.lines(found, {}, {})


@pytest.mark.parametrize(("parts", "ranks"), [(["weather"], 4), (["device"], 1)])
def test_no_survey_of_what_is_none(parts, ranks):
    with pytest.raises(ValueError, match=r"is one of device, collectives|from 2 to 64"):
        trials.trials(parts, ranks, minutes=1.0, has_gpu=False)


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ValueError, match="--out FOLDER"):
        run.begin(tmp_path, 1.0)
    assert [Path(each).name for each in tmp_path.iterdir()] == ["mine"]


def test_every_recorded_survey_can_be_read():
    for name, found in summary.elsewhere().items():
        assert found.numbers and not found.errors, name
