"""What a teacher reads: each chapter's entry has its minutes, guesses and exercises from the
chapter itself, plans add up, and a chapter without an entry is refused."""

import copy
import re

import build
import outline
import pytest
import teaching
from chapter import read, sources
from small import CHAPTERS, ROOT, text_of

LANGUAGES = sorted(teaching.PAGES)


@pytest.fixture(scope="module")
def chapters():
    return [read(path) for path in sources(ROOT)]


@pytest.fixture
def source():
    return copy.deepcopy(teaching.told(ROOT))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_chapter_has_its_minutes_guesses_exercises_and_answers(chapters, language):
    page = text_of(ROOT / teaching.PAGES[language])
    parts = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    assert [part[1:3] for part in parts] == [name[:2] for name in CHAPTERS]
    words = teaching.told(ROOT)["words"][language]
    for chapter, part in zip(chapters, parts, strict=True):
        assert words["minutes"].format(chapter.header["minutes"]) in part
        for guess in outline.guesses(chapter, language):
            assert f"- {guess.question}\n" in part, chapter.name
        for exercise in outline.exercises(chapter, language):
            colon = "：" if language == "zh" else ": "
            assert f"- `{exercise.check}`{colon}{exercise.title}" in part, chapter.name
        asked = teaching.told(ROOT)["chapter"][chapter.name[:2]][language]
        for question, answer in asked["ask"]:
            assert question[-1] in "?？" and f"{question} *{answer}*" in part


def test_both_languages_say_as_much(source):
    for number, entry in source["chapter"].items():
        for field in teaching.FIELDS:
            english, chinese = (len(entry[each][field]) for each in ("en", "zh"))
            assert english == chinese, (number, field)
        said = str(entry["en"])
        assert not re.search("[\u4e00-\u9fff]", said), number


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_plans_add_up(chapters, source, language):
    made = teaching.parts(ROOT, chapters, language)
    minutes = {each.name[:2]: each.header["minutes"] for each in chapters}
    rows = [re.findall(r"[^|]+", line) for line in made["day"].splitlines()[2:]]
    total = 0
    for row, told in zip(rows, source["day"], strict=True):
        length = told.get("minutes") or minutes[told["chapter"]]
        begins, ends = (_minutes(each) for each in row[:2])
        assert begins == teaching.BEGINS_MINUTES + total and ends == begins + length
        assert int(row[2]) == length
        total += length
    assert 5 * 60 < total < 9 * 60
    weeks = made["term"].splitlines()[2:]
    for line, told in zip(weeks, source["term"], strict=True):
        assert f"| {sum(minutes[each] for each in told['chapters'])} |" in line


def _minutes(clock):
    hours, rest = clock.split(":")
    return 60 * int(hours) + int(rest)


def test_a_weeks_reading_is_no_longer_than_two_meetings(chapters, source):
    minutes = {each.name[:2]: each.header["minutes"] for each in chapters}
    for row in source["term"]:
        assert sum(minutes[each] for each in row["chapters"]) <= 180, row["en"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_lead_somewhere_and_commands_are_named_as_they_are(language):
    page = text_of(ROOT / teaching.PAGES[language])
    links = re.findall(r"\]\(([^)#]+)\)", page)
    assert [each for each in links if not (ROOT / each).exists()] == []
    makefile = text_of(ROOT / "Makefile")
    for target in re.findall(r"^    make (\w+)", page, re.MULTILINE):
        assert f"\n{target}:" in makefile
    main = text_of(ROOT / "labkit" / "__main__.py")
    for command in re.findall(r"-m labkit (\w+)", page):
        assert f'"{command}"' in main


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told["chapter"].pop("08"), "chapter 08 has no entry. Write [chapter.08.en]"),
        (lambda told: told["chapter"].update({"77": told["chapter"]["08"]}), "no chapter 77"),
        (lambda told: told["chapter"]["08"]["zh"].pop("ask"), "chapter 08, zh: ask has 2 or more"),
        (lambda told: told["chapter"]["08"].pop("en"), "chapter 08, en: points has 3 or more"),
        (lambda told: told["chapter"]["08"]["zh"]["ask"].append(["?", "!"]), "the same questions"),
        (lambda told: told["term"][0]["chapters"].append("88"), "a plan names a chapter 88"),
        (lambda told: told["day"][1].update(minutes=3), "a chapter or minutes of its own"),
    ],
)
def test_an_entry_that_is_missing_or_says_too_little_is_named(chapters, source, change, words):
    assert teaching.faults(source, chapters) == []
    change(source)
    assert any(words in fault for fault in teaching.faults(source, chapters))


def test_a_course_without_the_page_needs_no_entries(tiny):
    assert build.main([], tiny) == 0
    markers = "".join(f"<!-- {each} --><!-- /{each} -->" for each in teaching.MARKERS)
    (tiny / "TEACHING.md").write_text(markers)
    with pytest.raises(ValueError, match=r"made from .*teaching.toml, which is not there"):
        build.expected(tiny)
