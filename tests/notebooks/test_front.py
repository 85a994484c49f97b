"""The first page: the notebook and the book's contents have every chapter, its picture and its
question, and sums of minutes that are counted; the READMEs' measured lines are the results."""

import json
import re
import shutil

import book
import front
import headlines
import nbformat
import pytest
import thumbnails
from chapter import read, sources
from small import CHAPTERS, NOTEBOOKS, ROOT, text_of

LANGUAGES = sorted(front.FOLDERS)


@pytest.fixture(scope="module")
def chapters():
    return [read(path) for path in sources(ROOT)]


def page(language):
    path = ROOT / front.FOLDERS[language] / "index.ipynb"
    notebook = nbformat.read(path, as_version=4)
    return path, "\n\n".join(cell.source for cell in notebook.cells)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_chapter_has_a_picture_a_question_and_its_minutes(chapters, language):
    known = front.cards(ROOT, chapters, language)
    assert [card.name for card in known] == CHAPTERS
    for card in known:
        assert card.question and card.minutes > 0, f"{card.number} has no entry in index.toml"
        assert card.question.count("\n") == 0 and card.question[-1] in "?？"
        assert card.picture, f"python notebooks/thumbnails.py {card.number} draws its picture"


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_picture_says_where_its_numbers_come_from(chapters, language):
    english = r"(measured|simulated|predicted|computed|recorded|published|paced( links)?|overran)"
    for card in front.cards(ROOT, chapters, language):
        if language == "en":
            assert re.fullmatch(rf"{english}((, | / ){english})*", card.badge), card.number
        else:
            assert card.badge and not re.search("[a-z]", card.badge), card.number


def test_a_small_picture_holds_no_words_and_no_script():
    found = sorted((NOTEBOOKS / "pictures").glob("[0-9]*.svg"))
    assert [path.stem for path in found] == [name[:2] for name in CHAPTERS]
    for path in found:
        text = text_of(path)
        assert text.count("<svg") == 1 and "<text" not in text and "<script" not in text
        assert 'width="240" height="100"' in text and path.stat().st_size < 150_000


@pytest.mark.parametrize("language", LANGUAGES)
def test_all_links_and_pictures_of_the_notebook_are_there(language):
    path, text = page(language)
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 3 * len(CHAPTERS)
    assert [each for each in links if not (path.parent / each).exists()] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_ways_minutes_are_those_of_their_chapters(chapters, language):
    minutes = {each.name[:2]: each.header["minutes"] for each in chapters}
    known = front.cards(ROOT, chapters, language)
    say = front.told(ROOT)["words"][language]
    rows = front.told(ROOT)["path"]
    found = front.ways(ROOT, known, language)
    assert {row["hours"] for row in rows} >= {6.5, 15}
    text = page(language)[1]
    for way, row in zip(found, rows, strict=True):
        assert way.minutes == sum(minutes[number] for number in row["chapters"])
        assert f"| {front.duration(way.minutes, say)} |" in text
    assert not re.search(r"\d+ ?(min|minutes|分钟)\b", text_of(ROOT / front.SOURCE))


def test_minutes_in_words():
    say = front.told(ROOT)["words"]["en"]
    said = [front.duration(minutes, say) for minutes in (99, 100, 120)]
    assert [each.replace("\u00a0", " ") for each in said] == ["99 min", "1 h 40 min", "2 h"]


def project(tmp_path, old="", new=""):
    """A folder with the real page's source, in which something is replaced."""
    target = tmp_path / front.SOURCE
    target.parent.mkdir(parents=True)
    text = text_of(ROOT / front.SOURCE)
    assert old in text
    target.write_text(text.replace(old, new), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hours = 6.5", "hours = 5", "has 5, its chapters take .* minutes. Take one out"),
        ('["03", "08"]', '["03", "99"]', "there is no chapter 99"),
    ],
)
def test_a_way_that_cannot_be_walked_is_refused(chapters, tmp_path, old, new, words):
    root = project(tmp_path, old, new)
    known = front.cards(root, chapters, "en")
    with pytest.raises(ValueError, match=words):
        front.ways(root, known, "en")


def test_a_chapter_without_an_entry_is_listed_and_a_course_without_a_page_has_none(chapters, tiny):
    root = project(tiny / "other", "[chapter.08]", "[chapter.80]")
    (card,) = [each for each in front.cards(root, chapters, "en") if each.number == "08"]
    assert (card.question, card.picture, card.title) == ("", "", "Pipeline parallelism")
    assert front.files(tiny, chapters) == {} and not (tiny / "notebooks" / "index.ipynb").exists()


def test_the_map_is_legible_before_any_background(chapters):
    for language in LANGUAGES:
        text = text_of(ROOT / front.map_file(language))
        assert text.count("background:") == 2 and "exercises" not in text
        for card in front.cards(ROOT, chapters, language):
            assert f">{card.number}</text>" in text


def test_the_books_first_page_links_only_pages_that_there_are(tmp_path):
    some = ["00_start_here", "08_pipeline_parallel"]
    book.write(ROOT, tmp_path, [book.pages(ROOT, "en", some, [])])
    text = text_of(tmp_path / "index.html")
    main = text.partition("<main")[2]
    linked = set(re.findall(r'href="([^"#:]+\.html)"', main))
    assert {f"{name}.html" for name in some} <= linked
    assert [each for each in linked if not (tmp_path / each).exists()] == []
    assert "Data parallelism" in main and "03_data_parallel" not in main


PICTURE = (
    '<svg id="a"><title id="t">Small: b 1 (measured, gloo)</title><desc>more</desc><text>w</text>'
    '<path stroke-width="20" d="M0 50m1 0h2"/><path stroke-width="10" d="M0 80m1 0h2"/></svg>'
)


def test_a_picture_becomes_small_and_a_timeline_is_cropped_to_its_rows():
    drawn = thumbnails.small(PICTURE, thumbnails.rows(PICTURE))
    assert "<text" not in drawn and "more" not in drawn
    assert "<title>Small: b 1 (measured, gloo)</title>" in drawn
    assert 'viewBox="58 34 730 57"' in drawn
    with pytest.raises(ValueError, match="has no rows: its entry"):
        thumbnails.rows('<svg><title id="t">A curve</title></svg>')


def test_a_picture_is_found_by_its_title(course):
    notebook = book.outputs(course, ("en", "02_boards"))
    assert thumbnails.title(thumbnails.titled(notebook, "GPipe")).startswith("GPipe")
    with pytest.raises(ValueError, match="no picture's title begins with 'Nothing'"):
        thumbnails.titled(notebook, "Nothing")


def test_a_picture_is_found_where_a_cell_shows_but_its_html():
    board = nbformat.v4.new_output("display_data", {"text/html": f"<div>{PICTURE}</div>"})
    assert thumbnails.drawn(board) == PICTURE
    assert thumbnails.drawn(nbformat.v4.new_output("display_data", {"text/html": "<b>3</b>"})) == ""
    assert thumbnails.drawn(nbformat.v4.new_output("stream", text=PICTURE)) == ""


@pytest.mark.parametrize(("language", "file"), [("en", "README.md"), ("zh", "README.zh.md")])
def test_the_readmes_measured_lines_are_those_of_the_results(language, file):
    lines = headlines.lines(ROOT, language)
    assert lines in text_of(ROOT / file) and lines.count("\n") == 3
    for name in re.findall(r"README.md#(\w+)", lines):
        assert f"\n## {name}\n" in text_of(ROOT / "benchmarks" / "README.md")


def test_another_result_gives_another_line(tmp_path):
    shutil.copytree(ROOT / headlines.RESULTS, tmp_path / headlines.RESULTS)
    for name, field, value in (
        ("launch", "labkit_s", 0.5),
        ("bubble", "worst", 0.25),
        ("memory", "predicted_state_bytes", 1),
        ("soak", "orphans", 7),
    ):
        path = tmp_path / headlines.RESULTS / f"{name}.json"
        told = json.loads(text_of(path))
        for row in told["rows"]:
            row[field] = value
        path.write_text(json.dumps(told))
    lines = headlines.lines(tmp_path, "en")
    for words in ("500 ms", "25.0 points", "predicted within 100.00 %", "7 processes"):
        assert words in lines


def test_the_film_is_small_and_moves():
    from PIL import Image

    path = ROOT / "data" / "readme" / "film.gif"
    with Image.open(path) as film:
        assert film.n_frames > 10 and film.size[0] > 800
    assert path.stat().st_size < 600_000
