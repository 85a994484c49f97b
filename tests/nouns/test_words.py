"""One language at a time, one catalogue: what is said in each, and what nobody has translated."""

import subprocess
import sys
import threading

import pytest

from labkit import words
from labkit.launching.verdicts.outcome import line_of, rank_list

PO = """
msgid ""
msgstr "Language: zh\\n"

#: labkit/a.py
msgid "one \\"{place}\\""
msgstr "一 \\"{place}\\""

msgid ""
"two\\n"
"lines"
msgstr ""
"两\\n"
"行"

#~ msgid "gone"
#~ msgstr "没了"
"""


def test_the_language_in_use_is_one_for_all_threads(chinese):
    seen = []
    thread = threading.Thread(target=lambda: seen.append((words.language(), rank_list([0, 2]))))
    thread.start()
    thread.join()
    assert seen == [("zh", "rank 0、2")]
    assert (words.spoken_in(None), words.spoken_in("en")) == ("zh", "en")


def test_a_text_is_said_with_its_places_filled_by_name(chinese):
    place = {"line": 3, "file": "In[2]", "text": "x = {1}"}
    assert line_of(place) == "In[2] 第 3 行（x = {1}）"
    words.use("en")
    assert line_of(place) == "line 3 of In[2] (x = {1})"
    assert words.say("nothing in {it}") == "nothing in {it}", "no values, no places"
    with pytest.raises(KeyError, match="line"):
        words.say("line {line}", number=3)


def test_a_number_chooses_between_two_english_texts(chinese):
    pair = ("rank {listed}", "ranks {listed}")
    assert {words.say_number(*pair, number, listed=7) for number in (1, 2)} == {"rank 7"}
    words.use("en")
    said = [words.say_number(*pair, number, listed=7) for number in (0, 1, 2)]
    assert said == ["ranks 7", "rank 7", "ranks 7"]


def test_a_purpose_tells_two_texts_apart_and_is_not_said(chinese):
    assert words.say("list|, ") == "、" and words.say(", ") == "，"
    words.use("en")
    assert words.say("list|, ") == ", " and words.say("a | b") == "a | b"


def test_what_nobody_has_translated_stays_english(chinese):
    assert words.say("torch says {it}", it=1) == "torch says 1"
    assert words.both("torch says") == {"en": "torch says", "zh": "torch says"}
    assert words.both("idle share") == {"en": "idle share", "zh": "空闲占比"}


@pytest.mark.parametrize("asked", ["fr", "", "ZH", 1])
def test_another_language_is_refused_and_changes_nothing(asked):
    for ask in (words.use, words.spoken_in, words.WORDS.__getitem__):
        with pytest.raises(ValueError, match="a language is one of en, zh; got"):
            ask(asked)
    assert words.language() == "en"


def test_a_po_file_is_read():
    assert words.entries(PO) == [('one "{place}"', '一 "{place}"'), ("two\nlines", "两\n行")]
    assert words.entries("") == []


def test_a_table_has_the_same_keys_in_both_languages_and_may_bring_its_own_chinese():
    table = words.catalogue([("busy", "busy"), ("mine", "busy", "我忙")])
    assert table["en"] == {"busy": "busy", "mine": "busy"}
    assert table["zh"] == {"busy": "忙碌", "mine": "我忙"}


def test_english_needs_no_catalogue():
    code = (
        "from labkit import words; words.CATALOGUE = words.CATALOGUE / 'gone';"
        "print(words.say('ranks {listed}', listed=1), words.WORDS['en']['idle'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ranks 1 idle\n", done.stderr


@pytest.mark.real
def test_ranks_speak_the_language_of_the_notebook(chinese):
    import labkit as lab

    def told():
        from labkit import words
        from labkit.launching.verdicts.outcome import rank_list

        return words.language(), rank_list([0, 2])

    assert list(lab.launch(told, ranks=2)) == [("zh", "rank 0、2")] * 2
    words.use("en")
    assert lab.launch(told, ranks=1)[0] == ("en", "ranks 0, 2")
