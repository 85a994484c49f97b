"""Slides and handouts from the sources of chapters: every guess stands before its answer, every
exercise without its solution, no sentence is torn apart."""

import re

import builds
import deck
import front
import handouts
import nbformat
import outline
import pace
import pytest
import slides
from book import WORDS
from chapter import SOLUTION, read, sources
from small import CHAPTERS, ROOT, TINY, TINY_CHINESE, loaded, make

from labkit.pictures import mime

PICTURE = '<svg viewBox="0 0 9 9"><title>Drawn</title></svg>'
SCORE = "<div>the question: <b>it is 27.</b> You made no guess.</div>"
BOTH = ["en", pytest.param("zh", marks=pytest.mark.again)]


@pytest.fixture(scope="module")
def chapters():
    return [read(path) for path in sources(ROOT)]


def ran(chapter, language="en"):
    """The learner's notebook, with a picture under each cell that shows one and an answer under
    each score."""
    notebook = builds.notebook(chapter, language, "learner")
    for cell in notebook.cells:
        if cell.cell_type == "code" and ".score(" in cell.source:
            data = {"text/html": SCORE}
        elif cell.cell_type == "code" and pace.shows(cell.source):
            data = {mime.OFFLINE: PICTURE}
        else:
            continue
        cell.outputs = [nbformat.v4.new_output("display_data", data)]
    return notebook


def made(chapter, language="en"):
    return deck.slides(chapter, ran(chapter, language), language, "Why?", WORDS[language])


@pytest.mark.parametrize("language", BOTH)
def test_every_guess_is_asked_before_it_is_answered(chapters, language):
    for chapter in chapters:
        found = made(chapter, language)
        kinds = [each.kind for each in found]
        assert kinds[0] == "title" and kinds[-1] == "list", chapter.name
        asked = outline.guesses(chapter, language)
        assert len(asked) >= 5
        for guess in asked:
            (question,) = [
                place
                for place, each in enumerate(found)
                if each.kind == "guess"
                and f"<b>{deck.html.escape(guess.question)}</b>" in each.figure
            ]
            answers = [
                place
                for place, each in enumerate(found)
                if each.kind == "answer" and deck.html.escape(guess.question) in each.title
            ]
            assert answers and min(answers) > question, (chapter.name, guess.question)
            shown = "".join(each.words + each.figure for each in found[: question + 1])
            if "it is 27." in shown:
                assert any(place < question for place, kind in enumerate(kinds) if kind == "answer")


@pytest.mark.parametrize("language", BOTH)
def test_no_slide_and_no_handout_has_a_line_of_a_solution(chapters, language):
    for chapter in chapters:
        slide_text = str(made(chapter, language))
        paper = handouts.page(ROOT, (language, chapter.name), PICTURE)
        exercises = outline.exercises(chapter, language)
        solutions = sum(bool(SOLUTION.search(source)) for source in chapter.code)
        assert len(exercises) == solutions and paper.count("<h3>") == solutions, chapter.name
        for each in exercises:
            assert each.title and each.words and each.check, (chapter.name, each.title)
            assert f"{deck.html.escape(each.title, quote=False)}" in deck.html.unescape(paper)
        plain = re.sub(r"<[^>]+>", "", deck.html.unescape(paper + slide_text))
        told = SOLUTION.sub("", str([cell.source + cell.chinese for cell in chapter.cells]))
        for found in SOLUTION.finditer("\n".join(chapter.code)):
            lines = [line.strip() for line in found[2].splitlines() if len(line) > 40]
            hidden = [each for each in lines if each not in told and "import " not in each]
            assert [line for line in hidden if line in plain] == [], chapter.name


@pytest.mark.parametrize(
    ("language", "said", "next_word"),
    [
        ("en", "The next function adds 1", "We launch it"),
        ("zh", "加 1", "我们在四个 rank"),
    ],
)
def test_what_a_guess_is_about_is_seen_before_it(chapters, language, said, next_word):
    found = made(chapters[0], language)
    place = next(number for number, each in enumerate(found) if each.kind == "guess")
    code, guess = found[place - 1 : place + 1]
    assert code.kind == "code" and "add_one" in code.figure and said in code.words
    assert guess.words.startswith(f"<p>{next_word}")
    assert guess.words.count("</p>") == 1


def test_a_picture_comes_with_the_sentences_around_it(chapters):
    (chapter,) = [each for each in chapters if each.name.startswith("08")]
    found = made(chapter)
    (formula, _) = [each for each in found if each.kind == "formula"]
    assert "<mfrac>" in formula.figure and formula.words.rstrip().endswith("equally long:</p>")
    first = next(each for each in found if each.kind == "picture")
    assert first.title == "The scene" and "Each row is a card" in first.foot
    answer = next(each for each in found if each.kind == "answer")
    assert "<b>it is 27.</b>" in answer.words
    assert answer.title == "bubble of GPipe, 4 ranks, 8 microbatches"
    assert not any("Erratum" in str(each) or "Further reading" in str(each) for each in found)


def test_what_an_answer_draws_comes_with_it(chapters):
    (chapter,) = [each for each in chapters if each.name.startswith("03")]
    answer = next(each for each in made(chapter) if each.kind == "answer")
    assert "<b>it is 27.</b>" in answer.words and "Drawn" in answer.figure


@pytest.mark.parametrize(
    ("text", "limit", "said"),
    [
        ("One. Two words more. Three.", 4, "One. Two words more."),
        ("A long first sentence stays whole. Two.", 3, "A long first sentence stays whole."),
        ("It is so. (A remark. And more.) Last.", 9, "It is so. (A remark. And more.) Last."),
        ("It is so. (A remark. And more.) Last.", 5, "It is so."),
        ("With $p-1$ of 1.5 GB. Next.", 6, "With $p-1$ of 1.5 GB. Next."),
        ("先猜。再看！最后？", 5, "先猜。再看！"),
        ("*About an hour.*\n\nWords.\n\n| a | b |", 9, "Words."),
        ("- one\n- two\n- three", 4, "- one\n- two"),
    ],
)
def test_the_beginning_of_a_text_is_whole_sentences(text, limit, said):
    assert deck.beginning(text, limit) == said


def test_a_box_in_a_box_and_links_to_pages_are_left_out():
    box = "<details><summary>Eight</summary>\n\n<details>x</details>\n\n</details>\n"
    text = f"A [word](GLOSSARY.md#word). {box}[web](https://a.b)."
    assert outline.bare(text) == "A word. [web](https://a.b)."


def test_a_heading_that_only_one_language_has_is_refused(tmp_path):
    chinese = TINY_CHINESE.replace("字。", "字。\n\n## 多的")
    root = make(tmp_path, "<!-- chapters --><!-- /chapters -->", {"03_tiny": (TINY, chinese)})
    (source,) = sources(root)
    with pytest.raises(ValueError, match="same headings in both languages"):
        outline.pieces(read(source), "zh")


def test_a_deck_and_a_handout_are_one_file_and_say_what_is_theirs(chapters):
    (chapter,) = [each for each in chapters if each.name.startswith("08")]
    for language in ("en", "zh"):
        text = slides.page(ROOT, (language, chapter.name), ran(chapter, language))
        paper = handouts.page(ROOT, (language, chapter.name), PICTURE)
        card = front.cards(ROOT, [chapter], language)[0]
        for page in (text, paper):
            assert loaded(page) == [] and card.question in page and "http" not in loaded(page)
        assert WORDS[language]["guess_first"] in text and "<mfrac>" in paper


def test_a_chapters_summary_and_words_are_found(chapters):
    for chapter in chapters:
        for language in ("en", "zh"):
            points, words = outline.summary(chapter, language)
            assert len(points) >= 4, chapter.name
            assert words or chapter.name == CHAPTERS[-1]
            assert len(outline.sections(chapter, language)) >= 4


def test_a_stub_on_paper_is_its_first_line_and_what_it_promises():
    code = 'import x\n\ndef f(\n    a,\n):\n    """Two."""\n    raise NotImplementedError\n\ny = 1'
    assert handouts.stub(code) == 'def f(\n    a,\n):\n    """Two."""'
    assert handouts.stub("y = 1") == "y = 1"
