"""Laws of guesses: what can be typed, how far is said in the right measure, nobody is stopped."""

import numpy as np
import pytest
import torch

import labkit as lab
from labkit import words
from labkit.check import chapters, guess_field, guesses, record

pytestmark = pytest.mark.usefixtures("home")


def share(**options):
    return lab.guess("idle share", between=(0, 1), **options)


@pytest.mark.parametrize(
    ("typed", "value"),
    [("0.27", 0.27), ("27 %", 0.27), ("27%", 0.27), (" 1/4 ", 0.25), ("27％", 0.27), ("0", 0.0)],
)
def test_a_number_may_be_typed_as_people_write_it(typed, value):
    made = share()
    made.put(typed)
    assert made.value == pytest.approx(value)


@pytest.mark.parametrize("typed", ["", "much", "2", "-1", "nan", "inf", "1/0", None, True, [0.5]])
def test_what_is_no_guess_is_refused_and_the_last_one_stays(typed):
    made = share(value=0.5)
    with pytest.raises(ValueError, match="the guess is a number, 0 % to 100 %; got"):
        made.put(typed)
    assert made.value == 0.5


@pytest.mark.parametrize(
    ("options", "guess", "answer", "said", "grade"),
    [
        ({"between": (0, 1)}, 0.3, 0.273, "30.0 %, it is 27.3 %: 2.7 points too high", "close"),
        ({"between": (0, 1)}, 0.2, 0.273, "7.3 points too low", "near"),
        ({"between": (0, 1)}, 0.9, 0.273, "62.7 points too high", "far"),
        ({"between": (0, 1)}, 0.273, 0.27301, "you guessed 27.3 %, and so it is", "close"),
        ({"unit": "ms"}, 5, 5.2, "5.00 ms, it is 5.20 ms: 3.8 % too low", "close"),
        ({"unit": "bytes"}, 3e9, 2e9, "3.00 GB, it is 2.00 GB: 50.0 % too high", "near"),
        ({}, 1, 40, "40 times too low", "far"),
        ({}, 40, 1, "40 times too high", "far"),
        ({}, -1, 2, "3 too low", "far"),
        ({}, 0, 0, "and so it is", "close"),
        ({"choices": ("ring", "tree")}, "ring", "ring", "you guessed ring, and so it is", "close"),
        ({"choices": ("ring", "tree")}, "ring", "tree", "it is tree: another one", "far"),
    ],
)
def test_a_score_says_how_far_in_the_right_measure_and_is_kept(options, guess, answer, said, grade):
    score = lab.guess("how much", value=guess, **options).score(answer)
    assert said in repr(score) and score.grade == grade
    assert said.split(": ")[-1] in score._repr_html_()
    (kept,) = record.entries("guesses").values()
    assert (kept["guess"], kept["answer"], kept["grade"]) == (guess, answer, grade)


def test_an_answer_may_be_of_any_number_type():
    made = share(value=np.float32(0.25))
    for answer in (np.float64(0.25), torch.tensor(0.25), 0.25):
        assert made.score(answer).grade == "close"
    for answer in (None, "a", float("nan"), torch.zeros(2)):
        with pytest.raises(ValueError, match="the answer is a number; got"):
            made.score(answer)


def test_without_a_guess_the_answer_is_said_and_nothing_is_kept(monkeypatch):
    score = share().score(0.273)
    assert repr(score).startswith("idle share: it is 27.3 %. You made no guess.")
    assert score.grade == "" and record.entries("guesses") == {}
    monkeypatch.setenv("LABKIT_BOOK", "1")  # whose readers have no cell to run again
    assert repr(score) == "idle share: it is 27.3 %."


def test_a_guess_outlives_the_kernel_and_belongs_to_its_chapter():
    chapters.open_chapter("08")
    share(value=0.5)
    assert share().value == 0.5
    # a range in which it is none
    assert lab.guess("idle share", between=(0, 0.4)).value is None
    chapters.open_chapter("03")
    assert share().value is None
    assert [*record.entries("guesses")] == ["08: idle share"]


def test_a_question_in_two_languages_is_one_guess():
    pair = {"en": "idle share", "zh": "空闲占比"}
    lab.guess(pair, between=(0, 1), value=0.5)
    words.use("zh")
    made = lab.guess(pair, between=(0, 1))
    assert (made.question, made.value) == ("空闲占比", 0.5)
    assert repr(made.score(0.25)) == (
        "空闲占比：你猜 50.0 %，答案是 25.0 %：高了 25.0 个百分点。出乎意料——先猜再看，正是为此。"
    )
    assert lab.guess("bubble", between=(0, 1)).question == "气泡"


@pytest.mark.parametrize(
    "options",
    [
        {"between": (1, 0)},
        {"between": (0, float("inf"))},
        {"between": 3},
        {"between": ("a", "b")},
        {"unit": "miles"},
        {"choices": ("one",)},
        {"choices": ("a", "a")},
        {"choices": "ab"},
        {"choices": ("a", "b"), "unit": "us"},
        {"choices": ("a", "b"), "between": (0, 1)},
        {"choices": ("a", "b"), "value": "c"},
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(options):
    with pytest.raises(ValueError, match="got"):
        lab.guess("what", **options)


def test_the_field_keeps_what_is_typed_and_says_so():
    made = share()
    field = guess_field.Field(made)
    assert "Enter keeps it" in field.told.value and field.control.placeholder == "0 % to 100 %"
    field.control.value = "30 %"
    assert made.value == 0.3 and "Kept: 30.0 %." in field.told.value
    field.control.value = "<much>"
    assert made.value == 0.3 and "got &#x27;&lt;much&gt;&#x27;" in field.told.value
    assert guess_field.Field(share()).control.value == "30.0 %"
    choice = lab.guess("which", choices=("ring", "tree"))
    field = guess_field.Field(choice)
    assert field.control.value is None
    field.control.value = "tree"
    assert choice.value == "tree"


def test_without_a_kernel_the_field_is_a_plain_one(monkeypatch):
    data = guess_field.Field(lab.guess("a < b", between=(0, 1)))._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert '<input type="text"' in data["text/html"] and "a &lt; b" in data["text/html"]
    assert data["text/plain"] == "a < b: no guess yet"
    told = guess_field.plain_field(lab.guess("kept", unit="ms", value=5))
    assert 'value="5.00 ms"' in told
    choice = guess_field.Field(lab.guess("which", choices=("ring", "tree"), value="ring"))
    assert "<option selected>ring</option>" in choice._repr_mimebundle_()["text/html"]
    assert "<option>tree</option>" in choice._repr_mimebundle_()["text/html"]
    monkeypatch.setenv("LABKIT_BOOK", "1")
    data = choice._repr_mimebundle_()
    assert data[guess_field.mime.OFFLINE] == data["text/html"]


def test_a_notebook_shows_the_field_once_per_cell(monkeypatch):
    from types import SimpleNamespace

    import IPython
    import IPython.display

    shown = []
    shell = SimpleNamespace(kernel=object(), execution_count=1)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(IPython.display, "display", shown.append)
    made = share()
    made._ipython_display_()
    assert len(shown) == 1 and isinstance(shown[0], guess_field.Field)
    shell.execution_count = 2
    made._ipython_display_()
    assert len(shown) == 2


def test_none_of_a_score_is_the_red_of_what_is_wrong():
    assert "#d9534f" not in guesses.COLOURS.values()
