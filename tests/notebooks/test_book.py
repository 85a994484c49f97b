"""The book: a small course becomes pages; and what the real chapters need. In a browser:
test_book_in_browser."""

import base64
import gzip
import html
import itertools
import json
import math
import re
import shutil

import book
import build
import builds
import checked
import ipywidgets
import nbformat
import pages
import pytest
from small import CHAPTERS, ROOT, edit, loaded, rendered_cells, text_of

from labkit import widgets
from labkit.pictures import mime, scene
from labkit.pipeline import schedules, simulation
from labkit.widgets import export, flipbook, turning

BOARDS = (
    "collectives",
    "ddp_communication",
    "fsdp_sharding",
    "offload_flow",
    "pipeline_parallelism",
    "strategies",
    "training_need",
    "zero_stages",
)


def test_no_page_loads_anything_from_elsewhere(course):
    files = [
        path
        for path in (course / "out" / "book").rglob("*")
        if path.suffix in (".html", ".css", ".js")
    ]
    assert len(files) == 10
    for path in files:
        text = text_of(path)
        assert all((path.parent / each).exists() for each in loaded(text)), (path, loaded(text))
        assert not re.search(r"\bfetch\(|XMLHttpRequest|import\(", text), path
    found = loaded(
        '<img src="https://a.b/c.png"><link href=//d.e><a href="https://f"><p '
        'style="color:url(x.png)">'
    )
    assert found == ["https://a.b/c.png", "//d.e", "x.png"]


def test_formulas_code_terminal_colours_tables_and_links_are_rendered(course):
    page = text_of(course / "out" / "book" / "01_words.html")
    assert "<mfrac>" in page and "$\\frac" not in page and "<code>$HOME</code>" in page
    assert '<span class="ansi-red-fg">zebra</span>' in page
    assert 'href="02_boards.html"' in page and '<div class="scroll"><table>' in page
    assert '<span class="c1"># &lt;b&gt;</span>' in page
    assert '<html lang="zh-Hans">' in text_of(course / "out" / "book" / "zh" / "01_words.html")


def test_the_anchors_of_both_languages_are_the_same(course):
    anchors = [
        re.findall(
            r'<h\d id="([^"]+)"', text_of(course / "out" / "book" / folder / "01_words.html")
        )
        for folder in ("", "zh")
    ]
    assert anchors == [["c0", "c2"], ["c0", "c2"]]


def test_a_second_book_executes_only_what_has_changed(course, monkeypatch, tmp_path):
    root = shutil.copytree(course, tmp_path / "course")
    ran = []

    def nbmake(root, paths):
        ran.extend(path.relative_to(root / "out" / "checked").as_posix() for path in paths)
        return True

    monkeypatch.setattr(checked, "nbmake", nbmake)
    before = text_of(course / "out" / "book" / "02_boards.html")
    assert book.main(["--out", str(tmp_path / "book")], root) == 0
    assert ran == [] and text_of(tmp_path / "book" / "02_boards.html") == before
    edit(root, "一只鹈鹕", "一只鹳", "zh/01_words.md")
    assert book.main(["--out", str(tmp_path / "book")], root) == 0
    assert ran == ["zh/01_words.ipynb"]


def test_a_part_of_the_book_still_lists_every_chapter(course, tmp_path):
    assert book.main(["02", "--out", str(tmp_path)], course) == 0
    assert not (tmp_path / "01_words.html").exists()
    contents = text_of(tmp_path / "zh" / "index.html")
    assert "文字" in contents
    assert 'href="02_boards.html"' in contents
    assert 'href="01_words.html"' not in contents


def test_a_long_line_of_words_may_break_and_one_of_a_table_scrolls():
    words = "a line of words " * 8 + "end"
    table = "column   " * 12
    lines = pages.shown(
        {"text": f"{words}\n  {words}\n{table}\nshort\n\x1b[31mError\x1b[0m: {words}"}
    ).splitlines()
    assert lines[0] == f'<pre class="text"><span class="words">{words}</span>'
    assert lines[1] == f'<span class="words">  {words}</span>' and lines[2:4] == [table, "short"]
    assert lines[4].startswith('<span class="words"><span class="ansi-red-fg">Error</span>: a line')


def test_what_lies_between_a_guess_and_its_score_is_folded_another_guess_is_not():
    sources = (
        "one = lab.guess(1)",
        "two = lab.guess(2)",
        "run()",
        "one.score(3)",
        "two.score(3)",
        "run()",
    )
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    page = pages.Page(name="01_words", language="en", notebook=notebook, built=True)
    folded = [cell["fold"] for cell in pages.rendered(page, "see")[0]]
    assert folded == ["", "", "see", "see", "see", ""]


def test_answers_without_prose_between_them_are_one_fold():
    cells = [nbformat.v4.new_code_cell(f"run({name})") for name in "abcd"]
    for cell in cells:
        cell.outputs = [nbformat.v4.new_output("stream", text=f"made by {cell.source}")]
    cells[0].source = "one = lab.guess(1)"
    cells[-1].source = "one.score(3)"
    cells.insert(2, nbformat.v4.new_markdown_cell("Look at it."))
    notebook = nbformat.v4.new_notebook(cells=cells)
    page = pages.Page(name="01_words", language="en", notebook=notebook, built=True)
    shown = [cell["outputs"] for cell in pages.rendered(page, "see")[0]]
    assert [len(each) for each in shown] == [1, 1, 0, 0, 2]
    assert "run(c)" in shown[-1][0] and "run(d)" in shown[-1][1]


def _page(notebook):
    return pages.Page(name="01_words", language="en", notebook=notebook, built=True)


def _optional_end(*titles):
    """A notebook's cells as a chapter has them behind the line that ends what most people need."""
    cells = [nbformat.v4.new_markdown_cell("# A chapter"), nbformat.v4.new_code_cell("1")]
    for title, closed in titles:
        metadata = {builds.COLLAPSED: True} if closed else {}
        cells.append(nbformat.v4.new_markdown_cell(f"## {title}\n\nWords.", metadata=metadata))
        cells.append(nbformat.v4.new_code_cell("2"))
    return nbformat.v4.new_notebook(cells=cells)


def test_an_optional_section_is_closed_under_its_heading():
    notebook = _optional_end(("Core", False), ("First", True), ("Second", True), ("Errata", False))
    cells, headings = pages.rendered(_page(notebook))
    assert [bool(cell["opens"]) for cell in cells] == [False] * 4 + [True, False] * 2 + [False] * 2
    assert [cell["ends"] for cell in cells] == [False] * 5 + [True, False] * 2 + [False]
    assert "First" in cells[4]["opens"] and "First" not in cells[4]["body"]
    assert [title for _, _, title in headings][2:4] == ["First", "Second"]


def test_an_optional_section_that_comes_last_is_closed_too():
    cells, _ = pages.rendered(_page(_optional_end(("Core", False), ("First", True))))
    assert [cell["ends"] for cell in cells] == [False] * 5 + [True]


@pytest.mark.parametrize(("language", "word"), [("en", "optional"), ("zh", "选读")])
def test_the_contents_beside_a_page_say_what_is_optional(tmp_path, language, word):
    book.write(ROOT, tmp_path, [book.pages(ROOT, language, ["07_fsdp"], [])])
    page = text_of(tmp_path / ("zh" if language == "zh" else "") / "07_fsdp.html")
    listed = re.findall(r"<li(.*?)>(?:<a href=\"#(.*?)\">)?(.*?)<", page.partition("</nav>")[0])
    marked = [(anchor, text) for look, anchor, text in listed if "more" in look]
    closed = re.findall(r'<details class="optional"><summary><h2 id="(.*?)"', page)
    assert marked[0] == ("", word) and [anchor for anchor, _ in marked[1:]] == closed and closed


def test_an_unknown_chapter_is_refused(course, capsys):
    with pytest.raises(SystemExit):
        book.main(["07"], course)
    assert "no such chapter: 07; there are 01 02" in capsys.readouterr().err


def test_an_error_in_a_chapter_ends_the_build_and_is_shown(course, capfd, monkeypatch, tmp_path):
    root = shutil.copytree(course, tmp_path / "course")
    edit(root, "print(", "1 / 0, print(", "01_words.py")
    assert build.main([], root) == 0
    assert not checked.execute(root, [("en", "01_words")])
    assert "ZeroDivisionError" in capfd.readouterr().out
    monkeypatch.setattr(checked, "nbmake", lambda root, paths: False)
    assert book.main(["01", "--out", str(tmp_path / "book")], root) == 1
    told = capfd.readouterr()
    assert told.err == "The chapters that passed are kept: the next call runs the others.\n"
    assert not (tmp_path / "book").exists()


def test_the_contents_have_every_chapter_of_the_course(tmp_path):
    book.write(ROOT, tmp_path, [book.pages(ROOT, language, [], []) for language in book.WORDS])
    for language, folder in (("en", ""), ("zh", "zh")):
        contents = text_of(tmp_path / folder / "index.html")
        for chapter in CHAPTERS:
            path = book.learner(ROOT, (language, chapter))
            about = nbformat.read(path, as_version=4).metadata.labkit
            title = about["title_zh" if language == "zh" else "title"]
            assert title.replace("'", "&#39;") in contents


@pytest.mark.a_few(7)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_formula_of_a_chapter_becomes_mathml(chapter):
    for language in ("en", "zh"):
        notebook = nbformat.read(book.learner(ROOT, (language, chapter)), as_version=4)
        cells = rendered_cells(chapter, language, notebook)
        for cell, raw in zip(cells, notebook.cells, strict=True):
            if raw.cell_type == "markdown":
                prose = re.sub(r"<(code|pre)\b.*?</\1>", "", cell["body"], flags=re.DOTALL)
                assert "merror" not in prose, raw.source
                assert not re.search(r"\$[^$\s][^$]*\$|\\(frac|sqrt|cdot)", prose), raw.source


@pytest.mark.a_few(2)
@pytest.mark.parametrize("name", BOARDS)
def test_every_flipbook_has_all_its_pages_where_no_kernel_is(name):
    board = getattr(widgets, name)(language="zh")
    markup = export.offline(board, "zh")
    slider, *others = turning.free_controls(board.book)
    assert 1 <= len(others) <= turning.MOST_FREE and len(markup) < flipbook.MAX_BYTES
    found = unpacked(markup)
    assert len(found) == math.prod(len(each.options) for each in others)
    here = found[",".join(str(each.index) for each in others)]
    assert len(here) == len(slider.options) > 1 and len(set(here)) == len(here)
    without_ids = re.compile(r"lk[0-9a-f]{8}")
    shown = re.search(r'<div class="labkit-page">(.*?)</div><script', markup, re.DOTALL)[1]
    assert without_ids.sub("", shown) == without_ids.sub("", here[slider.index])
    drawn = itertools.chain.from_iterable(found.values())
    assert all("<svg" in page or "没有这样的调度" in page for page in drawn)
    assert (
        board.button.description not in markup.replace("可以在真实 rank 上运行", "")
        and "打开笔记本" in markup
    )
    kinds = {"select": 0, "input": 0}
    for control in board.controls.values():
        assert html.escape(control.description) in markup
        if control in (slider, *others):
            kinds["select" if isinstance(control, ipywidgets.Dropdown) else "input"] += 1
        else:
            assert f"<b>{html.escape(control.options[control.index][0])}</b>" in markup
    assert {kind: markup.count(f"<{kind}") for kind in kinds} == kinds


def unpacked(markup):
    """The pages of every position of the free controls."""
    packed = re.search(r'class="labkit-pages">([^<]*)<', markup)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_pages_that_would_weigh_too_much_are_left_out(monkeypatch):
    board = widgets.accelerate_workflow()
    every = len(unpacked(export.offline(board)))
    monkeypatch.setattr(turning, "MAX_BYTES", 6000)
    fewer = export.offline(board)
    assert len(unpacked(fewer)) < every and fewer.count("data-place") < 3


def test_a_trace_carries_its_columns():
    board = widgets.trace(simulation.simulate(schedules.gpipe(2, 2)), title="</script>")
    markup = export.offline(board)
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', markup)[1])
    assert data["about"] == board.viewer.about and "</script>" in data["about"]["heading"]
    assert {
        name: base64.b64decode(part) for name, part in data["columns"].items()
    } == board.viewer.columns


def test_outputs_carry_the_books_form_only_while_the_book_is_made(monkeypatch):
    shown = scene.timeline(simulation.simulate(schedules.gpipe(2, 2)))
    board = widgets.pipeline_parallelism(num_ranks=2)
    monkeypatch.delenv("LABKIT_BOOK", raising=False)
    assert mime.OFFLINE not in mime.bundle(shown) and mime.OFFLINE not in board._repr_mimebundle_()
    monkeypatch.setenv("LABKIT_BOOK", "1")
    assert mime.bundle(shown)[mime.OFFLINE].startswith("<div")
    assert '<input type="range"' in board._repr_mimebundle_()[mime.OFFLINE]


def test_the_readmes_picture_is_one_of_the_book(course):
    notebook = book.outputs(course, ("en", "02_boards"))
    svg = book.picture(notebook, "GPipe, 4 ranks")
    assert svg.count("<svg") == 1 and book.THEMES in svg and svg.endswith("</svg>")
    with pytest.raises(ValueError, match="no picture's title begins with 'Nothing'"):
        book.picture(notebook, "Nothing")
