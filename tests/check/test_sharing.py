"""Laws of opting in to a classroom's board: who has not opted in shows nothing, who has shows no
word of theirs but a name, and whatever becomes of the folder no cell fails or waits."""

import json
import os
import stat
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit as lab
from labkit import words
from labkit.check import exercises, record, standing
from labkit.check.shared import content, mistakes
from labkit.check.verdict import STATES
from labkit.pipeline import check

pytestmark = pytest.mark.usefixtures("home", "a_fresh_learner", "patient")
EXERCISES = ("better_order", "choose_microbatches")


def wrong_order(rank, num_ranks, num_microbatches):
    return ["0F0"]


def told(folder) -> content.Shared:
    """What the one file in the folder says."""
    (path,) = folder.iterdir()
    return content.read(path.read_bytes())


def test_who_has_not_opted_in_shows_nothing(folder):
    check.better_order(wrong_order)
    lab.guess("how much", value=2.0).score(2.0)
    lab.progress()
    assert list(folder.iterdir()) == []


def test_who_has_opted_in_shows_each_change(folder, home):
    check.better_order(wrong_order)
    assert "On the board" not in lab.progress().note
    note = lab.progress(share="  Ada ").note
    assert "On the board of your classroom you are Ada" in note
    assert told(folder).exercises["better_order"].attempts == 1
    check.better_order(wrong_order)
    found = told(folder)
    assert found.name == "Ada"
    tried = found.exercises["better_order"]
    assert (tried.state, tried.attempts) == ("wrong", 2)
    (mistake,) = tried.mistakes
    assert tried.mistakes == {mistake: 2} and "the best order has" in mistakes.worded(mistake)
    assert abs(tried.began_s - time.time()) < 60 and tried.began_s <= tried.last_s


def test_a_passed_exercise_stays_passed_on_the_board(folder):
    lab.progress(share="Ada")
    for state in ("passed", "wrong"):
        verdict = exercises.Verdict(state=state)
        record.change("exercises", "better_order", lambda e, v=verdict: exercises._attempted(v, e))
    tried = told(folder).exercises["better_order"]
    assert (tried.state, tried.attempts) == ("passed", 2)


def test_guesses_are_shown_as_grades_alone(folder):
    lab.begin(chapter="08")
    lab.progress(share="Ada")
    lab.guess("a question of mine", value=31337.0).score(31337.0)
    lab.guess("another", value=1.0)
    assert told(folder).guesses == {"08": {"close": 1, "": 1}}
    (path,) = folder.iterdir()
    assert b"31337" not in path.read_bytes() and b"question" not in path.read_bytes()


class SecretTrouble(Exception):
    """A class of the learner's own."""


def raises_secret(*_: object) -> None:
    raise SecretTrouble("my secret words")


@pytest.mark.parametrize(
    "answer",
    [
        raises_secret,
        lambda *_: ["secret"],
        lambda *_: "secret",
        lambda *_: secret_name,  # noqa: F821
        lambda *_: int("secret"),
        lambda *_: {"secret": 1}["more secret"],
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("asked", [check.better_order, check.choose_microbatches])
def test_no_word_of_an_answer_is_shared(folder, answer, asked, language):
    words.use(language)
    lab.progress(share="Ada")
    verdict = asked(answer)
    assert verdict.state == "wrong" and verdict.mistake
    (path,) = folder.iterdir()
    text = path.read_text(encoding="utf-8").lower()
    assert "secret" not in text
    (tried,) = told(folder).exercises.values()
    assert tried.mistakes == {verdict.mistake: 1}


def test_one_mistake_has_one_name_in_both_languages():
    found = set()
    for language in words.LANGUAGES:
        words.use(language)
        found.add(check.better_order(wrong_order).mistake)
    assert len(found) == 1


def test_an_error_is_named_by_what_python_calls_it():
    assert check.better_order(raises_secret).mistake == "Exception"
    assert check.better_order(lambda *_: 1 / 0).mistake == "ZeroDivisionError"
    assert mistakes.worded("ZeroDivisionError") == "it raised ZeroDivisionError"


@pytest.mark.parametrize("language", words.LANGUAGES)
def test_every_mistake_that_can_be_named_can_be_told(language):
    words.use(language)
    for name in mistakes._english():
        shown = mistakes.worded(name)
        assert 0 < len(shown) <= mistakes.MOST_LETTERS and "{" not in shown.replace("{'", "")


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_counterexample_has_a_known_mistake_or_none(text):
    name = mistakes.mistake(text)
    assert name == "" or mistakes.is_known(name)


def test_who_takes_it_back_is_gone_and_stays_so(folder):
    lab.progress(share="Ada")
    assert "On the board" not in lab.progress(share=False).note
    assert list(folder.iterdir()) == []
    check.better_order(wrong_order)
    assert list(folder.iterdir()) == []


def test_who_comes_again_has_the_same_file(folder):
    lab.progress(share="Ada")
    before = [path.name for path in folder.iterdir()]
    lab.progress(share="Countess")
    assert [path.name for path in folder.iterdir()] == before
    assert told(folder).name == "Countess"


def test_opting_out_works_without_the_variable(folder, monkeypatch):
    lab.progress(share="Ada")
    monkeypatch.delenv(content.VARIABLE)
    lab.progress(share=False)
    assert list(folder.iterdir()) == []


def test_another_board_is_not_told(folder, tmp_path, monkeypatch):
    lab.progress(share="Ada")
    other = tmp_path / "other"
    other.mkdir()
    other.chmod(content.FOLDER_MODE)
    monkeypatch.setenv(content.VARIABLE, str(other))
    check.better_order(wrong_order)
    assert list(other.iterdir()) == [] and "On the board" not in lab.progress().note


def test_a_reset_keeps_the_place_on_the_board(folder, capsys):
    lab.progress(share="Ada")
    check.better_order(wrong_order)
    lab.progress(reset=True)
    assert told(folder) == content.Shared(name="Ada", exercises={}, guesses={})
    check.better_order(wrong_order)
    assert told(folder).exercises["better_order"].attempts == 1


def test_the_next_kernel_goes_on_with_the_same_file(folder, home):
    lab.progress(share="Ada")
    program = """
from labkit.check.shared import opting
from labkit.pipeline import check
opting.PATIENCE_S = 60.0
check.better_order(lambda *_: 1 / 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert told(folder).exercises["better_order"].mistakes == {"ZeroDivisionError": 1}


def test_a_kernel_that_ends_at_once_waits_a_little_for_its_last_change(folder, home):
    lab.progress(share="Ada")
    program = """
import time
from labkit.check import record
from labkit.check.shared import opting
opting.PATIENCE_S = 0.0
opting.EXIT_S = 60.0
write = opting._write
def slow(folder):
    time.sleep(0.5)
    write(folder)
opting._write = slow
record.change("exercises", "waits", lambda _: {"state": "wrong", "attempts": 7})
while not opting._busy.locked():
    time.sleep(0.001)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    assert told(folder).exercises["waits"].attempts == 7


def test_two_kernels_at_once_leave_a_whole_file(folder, home):
    lab.progress(share="Ada")
    program = """
from labkit.check import exercises, record
for _ in range(30):
    verdict = exercises.Verdict(state="wrong")
    record.change("exercises", "better_order", lambda e: exercises._attempted(verdict, e))
"""
    kernels = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    while any(kernel.poll() is None for kernel in kernels):
        assert told_or_busy(folder).name == "Ada"
    assert [kernel.wait(timeout=1) for kernel in kernels] == [0, 0, 0]
    record.change("guesses", "any", lambda _: {})
    assert told(folder).exercises["better_order"].attempts == 90


def told_or_busy(folder) -> content.Shared:
    """The one file that is not being written."""
    (path,) = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return content.read(path.read_bytes())


def test_a_file_belongs_to_the_group_and_to_nobody_else(folder):
    before = os.umask(0)
    try:
        lab.progress(share="Ada")
    finally:
        os.umask(before)
    (path,) = folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert len(path.stem) == content.TOKEN_LETTERS and path.suffix == content.SUFFIX


@pytest.mark.parametrize(
    "name",
    [
        "",
        "   ",
        "x" * 41,
        "a\u202eb",
        "a\u2066b",
        "a\u200bb",
        "a\nb",
        "a\x1b[31mb",
        "a\x00b",
        "\ud800a",
        "...",
        "a" + "\u0301" * 4,
        5,
        True,
        b"Ada",
        ["Ada"],
        "x" * 10**6,
    ],
)
def test_what_is_no_name_is_refused(folder, name):
    with pytest.raises(ValueError, match="a name on the board has 1 to 40 letters") as caught:
        lab.progress(share=name)
    assert len(str(caught.value)) < 500 and str(caught.value).isascii()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["Ada", "陈晓", "محمد", "Élise", "O'Neil <3", "7"])
def test_names_of_all_languages_are_fine(folder, name):
    lab.progress(share=name)
    assert told(folder).name == name


def test_a_record_of_an_earlier_labkit_is_read(home):
    home.mkdir()
    earlier = {"exercises": {"better_order": {"attempts": 2, "when": "2026-01-01T00:00:00"}}}
    text = json.dumps({"version": 1, "guesses": {}, **earlier})
    (home / "progress.json").write_text(text)
    check.better_order(wrong_order)
    entry = record.entries("exercises")["better_order"]
    assert (entry["attempts"], entry["began"]) == (3, "2026-01-01T00:00:00")


def test_a_strange_record_is_shared_as_far_as_it_makes_sense(folder):
    lab.progress(share="Ada")
    odd = {
        "state": "odd",
        "attempts": -3,
        "when": "x",
        "began": 7,
        "mistakes": {"mine": 2, "a": "b"},
    }
    record.change("exercises", "better_order", lambda _: odd)
    tried = told(folder).exercises["better_order"]
    assert (tried.state, tried.attempts, dict(tried.mistakes)) == ("wrong", 1, {})


def test_the_longest_file_that_a_learner_can_have_is_read():
    longest = sorted(mistakes._english(), key=len)[-content.MOST_MISTAKES :]
    tried = content.Tried(
        state="over budget",
        attempts=content.MOST_ATTEMPTS,
        began_s=2 * 10**9,
        last_s=2 * 10**9,
        mistakes=dict.fromkeys(longest, content.MOST_ATTEMPTS),
    )
    names = [each for names in standing.chapters.exercises().values() for each in names]
    whole = content.Shared(name="名" * 40, exercises=dict.fromkeys(names, tried), guesses={})
    assert content.read(content.written(whole)) == whole


def test_states_are_those_of_verdicts():
    assert {*content.STATES, "not attempted"} == set(STATES)
