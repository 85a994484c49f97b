"""The map of the course and the ladder: what lies there, drawn within the picture, in both
languages."""

import json

import pytest

import labkit as lab
from labkit import words
from labkit.check import course, ladder, record
from labkit.devices import rung
from labkit.pictures.sketch import Box, Words
from labkit.pictures.style import text_px

EXERCISES = ()


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """A folder of two chapters, one of which stands in no lane."""
    for number, title in (("08", "Pipeline parallelism of a long title"), ("99", "Odds")):
        about = {"chapter": number, "title": title, "title_zh": "流水线并行与很长很长的标题"}
        content = {"metadata": {"labkit": {**about, "minutes": 40}}, "cells": []}
        (tmp_path / f"{number}_name.ipynb").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(course, "NOTEBOOKS", tmp_path)


def test_every_chapter_there_is_has_one_place():
    numbers = [stop.number for stops in lab.course().lanes.values() for stop in stops]
    files = [path.name[:2] for path in course.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")]
    assert sorted(numbers) == sorted(files) and len(set(numbers)) == len(numbers) > 10
    placed = [number for lane in course.LANES.values() for number in lane]
    assert set(numbers) <= set(placed) and len(set(placed)) == len(placed)


@pytest.mark.usefixtures("notebooks")
def test_a_chapter_that_stands_nowhere_comes_last():
    assert [*lab.course().lanes] == ["cut", "other"]
    assert repr(lab.course()) == "Course(08, 99)"


@pytest.mark.usefixtures("home", "notebooks")
def test_a_passed_exercise_fills_the_number():
    (before,) = lab.course().lanes["cut"]
    name = course._exercises("08")[0]
    record.change("exercises", name, lambda _: {"state": "passed", "passed": True})
    (after,) = lab.course().lanes["cut"]
    assert (before.passed, after.passed) == (0, 1) and before.exercises == after.exercises > 1
    strips = [box for box in lab.course().picture().only(Box) if box.texts == ("08",)]
    assert [box.fill for box in strips] == [pytest.approx(1 / after.exercises)]


@pytest.mark.usefixtures("home", "notebooks")
def test_in_the_book_nothing_is_passed(monkeypatch):
    monkeypatch.setenv("LABKIT_BOOK", "1")
    name = course._exercises("08")[0]
    record.change("exercises", name, lambda _: {"state": "passed", "passed": True})
    (stop,) = lab.course().lanes["cut"]
    assert stop.passed == 0 and record.entries("exercises")[name]["passed"]
    record._kept["exercises"].clear()


@pytest.mark.parametrize("language", words.LANGUAGES)
@pytest.mark.parametrize("make", [lab.course, lab.ladder])
def test_the_words_stay_in_the_picture(make, language):
    drawn = make().picture(language=language)
    assert drawn.language == language
    for shape in drawn.only(Words):
        assert shape.x_px + text_px(shape.text, shape.size_px) <= 904, shape
        assert shape.size_px >= 11 and shape.y_px < drawn.height_px
    for box in drawn.only(Box):
        assert box.x_px >= 0 and box.x_px + box.width_px <= 900


def test_lines_break_between_words_and_between_chinese_characters():
    assert course._wrapped("Which layout for which", 60, 12.0)[0] in ("Which", "Which layout")
    lines = course._wrapped("用 DeepSpeed 做流水线并行", 70, 12.0)
    assert "".join(lines).replace(" ", "") == "用DeepSpeed做流水线并行"
    assert any("DeepSpeed" in line for line in lines) and len(lines) > 1


@pytest.mark.parametrize("name", rung.NAMES)
def test_the_rung_of_this_machine_is_marked(name):
    marked = [box for box in ladder.Ladder(here=name).picture().only(Box) if box.marked]
    assert len(marked) == 1 and marked[0].fill == 1.0
    assert marked[0].texts[0] == ladder._WORDS["en"][name]


@pytest.mark.parametrize("name", rung.NAMES)
def test_a_shared_gpu_is_drawn_only_where_it_is_taken(name):
    told = str(ladder.Ladder(here=name).picture().table)
    assert ("a shared GPU, if asked for" in told) == (name == ladder.ASKED_FOR)
    assert all(ladder._WORDS["en"][each] in told for each in ("cuda", "pretend", "cpu"))


def test_the_ladder_has_every_rung_of_a_launch():
    assert [*ladder.RUNGS] == [*rung.NAMES]
    assert lab.ladder().here in rung.NAMES
