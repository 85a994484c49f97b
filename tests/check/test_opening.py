"""Laws of ``lab.begin`` and ``lab.progress``: one line sets what holds from there on, and the table
shows what was reached."""

import random

import numpy as np
import pytest
import torch

import labkit as lab
from labkit import words
from labkit.check import chapters, exercises, opening, record
from labkit.launching import settings
from labkit.pipeline import check

pytestmark = pytest.mark.usefixtures("home", "a_fresh_learner", "no_zygote")
EXERCISES = ("better_order",)


@pytest.fixture
def no_zygote(monkeypatch):
    """Counts what would have been warmed."""
    warmed = []
    monkeypatch.setattr(opening.launcher, "warm", lambda: warmed.append(1))
    return warmed


def test_one_line_sets_everything(no_zygote):
    opened = lab.begin("zh", chapter="08", seed=3, deadline_s=50, ranks=4)
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    assert words.language() == "zh" and chapters.current() == "08" and no_zygote == [1]
    usual = settings.current()
    assert (usual.ranks, usual.seed, usual.timeout_s, usual.hang_s) == (4, 3, 50, 50)
    assert "rank" in repr(opened) and "50 s" in repr(opened)
    lab.begin("en", seed=3)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn
    assert words.language() == "en" and chapters.current() == ""
    usual = settings.current()
    assert (usual.ranks, usual.seed, usual.timeout_s, usual.hang_s) == (2, 3, 60, 60)


@pytest.mark.parametrize(
    "told",
    [
        {"language": "fr"},
        {"chapter": "8"},
        {"chapter": 8},
        {"seed": -1},
        {"seed": 0.5},
        {"deadline_s": 0},
        {"deadline_s": float("nan")},
        {"ranks": 0},
        {"ranks": "4"},
    ],
)
def test_what_cannot_be_set_is_refused_and_nothing_is_changed(told, no_zygote):
    lab.begin("zh", chapter="08", ranks=3)
    with pytest.raises(ValueError, match="got"):
        lab.begin(**{"language": "en", **told})
    assert words.language() == "zh" and settings.current().ranks == 3 and no_zygote == [1]


@pytest.mark.parametrize(
    ("forced", "gpus", "said"),
    [
        ("cpu", 0, "CPU, 6 cores, gloo. A launch has 2 ranks"),
        ("pretend", 0, "pretend devices, 6 CPU cores, gloo. A launch"),
        ("shared", 1, "shared GPUs (1), gloo. A launch"),
        ("cuda", 1, "shared GPUs (1), gloo. A launch"),
        ("cuda", 2, "2 GPUs, nccl. A launch"),
    ],
)
def test_it_says_what_ranks_will_stand_on(monkeypatch, no_zygote, forced, gpus, said):
    monkeypatch.setenv("LABKIT_DEVICE", forced)
    monkeypatch.setattr(opening.resources, "num_gpus", lambda: gpus)
    monkeypatch.setattr(opening.resources, "cores", lambda: 6)
    assert repr(lab.begin("en")).startswith(said)


def test_a_device_that_is_none_is_told_at_once(monkeypatch, no_zygote):
    lab.begin("zh")
    monkeypatch.setenv("LABKIT_DEVICE", "moon")
    with pytest.raises(ValueError, match="LABKIT_DEVICE is one of"):
        lab.begin("en")
    assert words.language() == "zh"


def test_status_and_hints_are_the_chapters_own(capsys):
    lab.begin("en", chapter="08")
    check.status()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "better_order",
        "fill_gaps",
        "choose_microbatches",
        "chart_fault",
        "real_pipeline",
        "0",
    ]
    with pytest.raises(ValueError, match="the exercises are better_order, fill_gaps"):
        exercises.hint("other")


def test_every_exercise_belongs_to_a_chapter():
    found = chapters.exercises()
    assert all(place[:2].isdigit() for place in found)
    on_pages = {name for names in found.values() for name in names}
    spare = {"cut_evenly", "ring_order", "experiment", "follow_speeds", "where_to_cut"}
    spare |= {"traffic", "model_state_gb", "hybrid_plan", "diagnose"}
    assert set(chapters.hints()) - on_pages == spare


def test_an_exercise_of_no_page_has_hints_and_no_chapter_counts_it(capsys):
    from labkit.zero import check as zero_check

    lab.begin("en", chapter="06")
    zero_check.hint("cut_evenly")
    assert capsys.readouterr().out.startswith("1/3: Lay all tensors end to end.")
    zero_check.status()
    assert "cut_evenly" not in capsys.readouterr().out


def right(rank, num_ranks, num_microbatches):
    from labkit.pipeline import schedules

    return [str(each) for each in schedules.one_f_one_b(num_ranks, num_microbatches).orders[rank]]


def row_of(table, chapter):
    (row,) = [row for row in table.cells if row[0].startswith(chapter)]
    return row


def test_every_attempt_is_kept_and_what_was_passed_stays_passed():
    def stub(*_):
        raise NotImplementedError("your turn")

    check.better_order(stub)
    assert record.entries("exercises") == {}
    check.better_order(lambda *_: [])
    kept = record.entries("exercises")["better_order"]
    assert (kept["state"], kept["passed"], kept["attempts"]) == ("wrong", False, 1)
    assert row_of(lab.progress().chapters, "08")[1:3] == ("✗ ○ ○ ○ ○", "0 / 5")
    assert check.better_order(right).state == "passed"
    check.better_order(lambda *_: [])
    kept = record.entries("exercises")["better_order"]
    assert (kept["state"], kept["passed"], kept["attempts"]) == ("wrong", True, 3)
    standing = lab.progress()
    assert row_of(standing.chapters, "08")[1:3] == ("✓ ○ ○ ○ ○", "1 / 5")
    assert standing.exercises.cells == (("08", "better_order", "✓ passed", "3"),)


def test_progress_shows_guesses_in_the_language_in_use_and_can_start_anew(capsys, home):
    lab.begin("en", chapter="08")
    lab.guess("idle share", between=(0, 1), value=0.5).score(0.25)
    lab.guess("time", unit="ms", value=5)
    standing = lab.progress()
    assert row_of(standing.chapters, "08")[3] == "1 far, 1 to be scored"
    assert standing.guesses.cells == (
        ("08", "idle share", "50.0 %", "25.0 %", "25.0 points too high"),
        ("08", "time", "5.00 ms", "", ""),
    )
    assert "Guesses" in repr(standing) and "<details>" in standing._repr_html_()
    words.use("zh")
    assert lab.progress().guesses.cells[0][4] == "高了 25.0 个百分点"
    words.use("en")
    assert lab.progress(reset=True).guesses.cells == ()
    (backup,) = home.glob("progress-backup-*.json")
    assert str(backup) in capsys.readouterr().out


def test_a_record_that_somebody_has_edited_is_still_shown(home):
    record.change("guesses", "a", lambda _: {"guess": [1], "unit": 3, "answer": "x"})
    record.change("exercises", "better_order", lambda _: {"state": "odd", "attempts": "many"})
    assert row_of(lab.progress().chapters, "08")[1] == "○ ○ ○ ○ ○"
    assert check.better_order(right).state == "passed"
    assert record.entries("exercises")["better_order"]["attempts"] == 1


def test_show_takes_the_standing(capsys):
    lab.show(lab.progress(), title="Mine")
    assert capsys.readouterr().out.startswith("Mine\nchapter")
