"""The book: a small course becomes pages and is read in Chromium, the network cut; and what the
real chapters need."""

import base64
import json
import re
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from browser.contrast import COLOURS, contrast
from browser.lab import browser
from test_notebooks import CHAPTERS, ROOT, book, build

from labkit import widgets
from labkit.pictures import scene
from labkit.pipeline import schedules, simulation
from labkit.widgets import export, picture

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
HEAD = '# ---\n# jupyter:\n#   labkit:\n#     sections: ["{0}"]\n#     needs: ["a core"]\n#     minutes: 5\n# ---\n\n'
COURSE = {
    "01_words": HEAD.format("1.1")
    + """# %% [markdown] sections="1.1"
# # Words
#
# The share is $\\frac{p-1}{m}$ and `$HOME` is none. Next: [boards](02_boards.ipynb).

# %% [markdown] lang="zh"
# # 文字
#
# 占比是 $\\frac{p-1}{m}$，`$HOME` 不是公式。下一章：[板](02_boards.ipynb)。

# %%
LANGUAGE = "en"
print("\\x1b[31mzebra\\x1b[0m", LANGUAGE)  # <b>

# %% [markdown]
# ## Farther down
#
# | a | b |
# | --- | --- |
# | 1 | 2 |
#
# A pelican.

# %% [markdown] lang="zh"
# ## 更下面
#
# 一只鹈鹕。
""",
    "02_boards": HEAD.format("1.2")
    + """# %% [markdown] sections="1.2"
# # Boards

# %% [markdown] lang="zh"
# # 板

# %%
LANGUAGE = "en"
from labkit import pipeline, widgets
from labkit.pictures import scene
widgets.show(scene.timeline(pipeline.simulate(pipeline.gpipe(2, 2)), language=LANGUAGE))

# %%
widgets.pipeline_parallelism(language=LANGUAGE)

# %%
widgets.collectives(language=LANGUAGE)
""",
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of two chapters, built, executed and written as a book."""
    root = tmp_path_factory.mktemp("course")
    (root / "notebooks" / "src").mkdir(parents=True)
    for name, text in COURSE.items():
        (root / "notebooks" / "src" / f"{name}.py").write_text(text, encoding="utf-8")
        build.stamp(root / "notebooks" / "src" / f"{name}.py")
    (root / "README.md").write_text("<!-- chapters --><!-- /chapters -->")
    (root / "pyproject.toml").write_text("")
    assert build.main([], root) == 0
    assert book.main([], root) == 0
    return root


def text_of(path):
    return path.read_text(encoding="utf-8")


# --- without a browser ---


def loaded(markup):
    """What a page would load by itself: everything but links."""
    found = re.findall(
        r"""<(?!a\b)\w+[^>]*?\s(?:src|href|data|poster)\s*=\s*["']?([^"'>\s]+)""", markup
    )
    found += re.findall(r"url\(\s*[\"']?([^\"')]+)", markup) + re.findall(
        r"@import\s+(\S+)", markup
    )
    return [each for each in found if not each.startswith(("#", "data:"))]


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
    assert '<span class="ansi-red-fg">zebra</span> en' in page
    assert 'href="02_boards.html"' in page and '<div class="scroll"><table>' in page
    assert '<span class="c1"># &lt;b&gt;</span>' in page
    assert '<html lang="zh-Hans">' in text_of(course / "out" / "book" / "zh" / "01_words.html")


def test_the_anchors_of_both_languages_are_the_same(course):
    english, chinese = (
        re.findall(
            r'<h\d id="([^"]+)"', text_of(course / "out" / "book" / folder / "01_words.html")
        )
        for folder in ("", "zh")
    )
    assert english == chinese == ["c0", "c2"]


def test_a_second_build_executes_only_what_has_changed(course, monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(
        book,
        "execute",
        lambda path: ran.append(path.stem) or book.nbformat.read(path, as_version=4),
    )
    before = text_of(course / "out" / "book" / "02_boards.html")
    assert book.main(["--out", str(tmp_path)], course) == 0
    assert ran == [] and text_of(tmp_path / "02_boards.html") == before
    notebook = course / "notebooks" / "01_words.ipynb"
    kept, text = book.kept(notebook, course), text_of(notebook)
    notebook.write_text(text.replace("pelican", "stork"))
    assert book.kept(notebook, course) != kept
    notebook.write_text(text)
    (course / "labkit").mkdir()
    (course / "labkit" / "x.py").write_text("")
    book._foundation.cache_clear()
    assert book.kept(notebook, course) != kept
    (course / "labkit" / "x.py").unlink()
    (course / "labkit").rmdir()
    book._foundation.cache_clear()
    assert book.kept(notebook, course) == kept


def test_a_part_of_the_book_still_lists_every_chapter(course, tmp_path):
    assert book.main(["02", "--out", str(tmp_path)], course) == 0
    assert not (tmp_path / "01_words.html").exists()
    contents = text_of(tmp_path / "zh" / "index.html")
    assert (
        "文字" in contents
        and 'href="02_boards.html"' in contents
        and 'href="01_words.html"' not in contents
    )


def test_a_long_line_of_words_may_break_and_one_of_a_table_scrolls():
    words, table = "a line of words " * 8 + "end", "column   " * 12
    lines = book.shown(
        {"text": f"{words}\n  {words}\n{table}\nshort\n\x1b[31m{words}\x1b[0m"}
    ).splitlines()
    assert lines[0] == f'<pre class="text"><span class="words">{words}</span>'
    assert lines[1] == f'<span class="words">  {words}</span>' and lines[2:4] == [table, "short"]


def test_an_unknown_chapter_is_refused(course, capsys):
    with pytest.raises(SystemExit):
        book.main(["07"], course)
    assert "no such chapter: 07; there are 01 02" in capsys.readouterr().err


def test_an_error_in_a_chapter_ends_the_build_and_is_shown(course, monkeypatch, capsys, tmp_path):
    notebook = course / "notebooks" / "01_words.ipynb"
    text = text_of(notebook)
    notebook.write_text(text.replace("print(", "1 / 0, print("))
    assert book.main(["01", "--out", str(tmp_path)], course) == 1
    notebook.write_text(text)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_contents_have_every_chapter_of_the_course(tmp_path):
    book.write(ROOT, tmp_path, ["none"])
    for language, folder in (("en", ""), ("zh", "zh")):
        contents = text_of(tmp_path / folder / "index.html")
        for chapter in CHAPTERS:
            about = book.nbformat.read(
                book.source(ROOT, chapter, language), as_version=4
            ).metadata.labkit
            assert (
                about["title_zh" if language == "zh" else "title"].replace("'", "&#39;") in contents
            )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_formula_of_a_chapter_becomes_mathml(chapter):
    for language in ("en", "zh"):
        notebook = book.nbformat.read(book.source(ROOT, chapter, language), as_version=4)
        page = book.Page(name=chapter, language=language, notebook=notebook, built=True)
        for cell, raw in zip(book.rendered(page)[0], notebook.cells, strict=True):
            if raw.cell_type == "markdown":
                prose = re.sub(r"<(code|pre)\b.*?</\1>", "", cell["body"], flags=re.DOTALL)
                assert "merror" not in prose, raw.source
                assert not re.search(r"\$[^$\s][^$]*\$|\\(frac|sqrt|cdot)", prose), raw.source


@pytest.mark.parametrize("name", BOARDS)
def test_every_flipbook_has_all_its_pages_where_no_kernel_is(name):
    board = getattr(widgets, name)(language="zh")
    markup = export.offline(board, "zh")
    slider = board.book.slider
    labels = json.loads(book.html.unescape(re.search(r'data-labels="([^"]*)"', markup)[1]))
    assert labels == [label for label, _ in slider.options]
    pages = re.findall(r"<template>(.*?)</template>", markup, re.DOTALL)
    assert len(pages) == len(labels) > 1 and len(set(pages)) == len(pages)
    assert all("<svg" in page for page in pages)
    assert f'<div class="labkit-page">{pages[slider.index]}</div>' in markup
    assert (
        board.button.description not in markup.replace("rank 上运行，请", "")
        and "请打开笔记本" in markup
    )
    for control in board.controls.values():
        assert book.html.escape(control.description) in markup
        if control is not slider:
            assert f"<b>{book.html.escape(control.options[control.index][0])}</b>" in markup
    assert "<select" not in markup and markup.count("<input") == 1


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
    assert export.MIME not in picture.bundle(shown) and export.MIME not in board._repr_mimebundle_()
    monkeypatch.setenv("LABKIT_BOOK", "1")
    assert picture.bundle(shown)[export.MIME].startswith("<div")
    assert '<input type="range"' in board._repr_mimebundle_()[export.MIME]


def test_the_readmes_picture_is_one_of_the_book(course):
    notebook = book.executed(book.source(course, "02_boards", "en"), course)
    svg = book.picture(notebook, "GPipe, 4 ranks")
    assert svg.count("<svg") == 1 and book.THEMES in svg and svg.endswith("</svg>")
    with pytest.raises(ValueError, match="no picture's title begins with 'Nothing'"):
        book.picture(notebook, "Nothing")


# --- in Chromium, the network cut ---


@pytest.fixture(scope="module")
def chrome():
    """A running Chromium."""
    with browser() as running:
        yield running


@pytest.fixture
def read(chrome, course):
    """A function that opens a page of the book, and fails at the end if a page asked for anything
    that is no file."""
    asked, contexts = [], []

    def read(name, **options):
        context = chrome.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        context.set_offline(True)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error: {error}"))
        page.goto((course / "out" / "book" / name).as_uri())
        return page

    yield read
    for context in contexts:
        context.close()
    assert asked and [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.browser
def test_a_flipbook_moves_by_keyboard_with_the_network_cut(read):
    page = read("02_boards.html")
    board = page.locator(".labkit-board").first
    title = board.locator("svg title").first
    assert "8 microbatches" in title.text_content()
    slider = board.get_by_role("slider", name="microbatches (m)")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert (
        "9 microbatches" in title.text_content() and slider.get_attribute("aria-valuetext") == "9"
    )
    page.keyboard.press("End")
    assert (
        "32 microbatches" in title.text_content() and board.locator("output").text_content() == "32"
    )
    assert "Open the notebook to change schedule" in board.text_content()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_trace_zooms_with_the_network_cut(chrome, course, monkeypatch, tmp_path, scheme):
    board = widgets.trace(simulation.simulate(schedules.gpipe(4, 8)))
    notebook = book.executed(book.source(course, "02_boards", "en"), course)
    notebook.cells[-1].outputs = [
        book.nbformat.v4.new_output("display_data", {export.MIME: export.offline(board)})
    ]
    monkeypatch.setattr(book, "executed", lambda *_: notebook)
    book.write(course, tmp_path, ["02"])
    text = text_of(tmp_path / "02_boards.html")
    assert loaded(text) == ["assets/book.css", "assets/book.js"] and "labkit-trace" in text
    context = chrome.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    context.set_offline(True)
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.goto((tmp_path / "02_boards.html").as_uri())
    canvas = page.locator(".labkit-viewer canvas")
    before = canvas.screenshot()
    canvas.focus()
    page.keyboard.press("n")
    page.locator(".labkit-viewer .said:has-text('rank 0')").wait_for()
    page.keyboard.press("+")
    page.wait_for_timeout(200)
    assert canvas.screenshot() != before
    assert violations(page) == []
    context.close()


@pytest.mark.browser
def test_a_player_turns_the_steps_and_stops_at_the_last(read):
    page = read("zh/02_boards.html")
    page.clock.install()
    page.reload()
    board = page.locator(".labkit-board").nth(1)
    board.get_by_role("button", name="播放").click()
    page.clock.run_for(2000)
    assert board.locator("output").text_content() == "2"
    page.clock.run_for(20_000)
    assert board.locator("output").text_content() == "6"
    assert board.locator(".labkit-play").get_attribute("aria-pressed") == "false"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_theme_can_be_read_and_the_switch_is_remembered(read, scheme):
    page = read("02_boards.html", color_scheme=scheme)
    for choice, dark in (("", scheme == "dark"), ("light", False), ("dark", True)):
        page.get_by_label("Colours").select_option(choice)
        for place in ("main svg", "main h1", "main .code pre"):
            colour, background = page.locator(place).first.evaluate(
                COLOURS.replace("fill", "color")
            )
            assert contrast(colour, background) > 7 and (sum(background) < 200) == dark, (
                place,
                choice,
            )
    page.reload()
    assert page.get_by_label("Colours").input_value() == "dark"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.browser
def test_the_search_finds_words_of_all_pages_and_languages(read):
    page = read("02_boards.html")
    page.keyboard.press("/")
    page.keyboard.type("pelican")
    page.locator("#found a").first.wait_for()
    assert page.locator("#found a").all_text_contents()[0].startswith("01 Farther down")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/01_words.html#c2")
    page.get_by_label("Search").fill("no such word")
    page.locator("#found >> text=Nothing found").wait_for()
    page.get_by_label("Search").fill("ZEBRA print")
    assert page.locator("#found a").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#found").is_hidden()
    chinese = read("zh/index.html")
    chinese.get_by_label("搜索").fill("鹈鹕")
    chinese.locator("#found a:has-text('更下面')").wait_for()


@pytest.mark.browser
def test_previous_next_contents_and_the_other_language(read):
    page = read("index.html")
    page.locator("main").get_by_role("link", name="Words").click()
    assert page.locator("[rel=prev]").count() == 0
    page.locator("[rel=next]").click()
    page.wait_for_url("**/02_boards.html")
    assert page.locator("[aria-current=page]").text_content() == "02 Boards"
    assert page.locator("[rel=next]").count() == 0
    page.locator("[rel=prev]").click()
    page.wait_for_url("**/book/01_words.html")
    page.set_viewport_size({"width": 1280, "height": 300})
    page.evaluate("document.querySelector('#c2').scrollIntoView()")
    page.get_by_role("link", name="中文").click()
    page.wait_for_url("**/zh/01_words.html*")
    page.get_by_role("link", name="English").click()
    page.wait_for_url("**/book/01_words.html*")


@pytest.mark.browser
def test_code_is_copied(read):
    page = read("01_words.html", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").first.click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith('LANGUAGE = "en"\nprint(')


@pytest.mark.browser
def test_a_narrow_window_cuts_nothing_off(read):
    for name in ("index.html", "01_words.html", "zh/02_boards.html"):
        page = read(name)
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        assert page.locator("nav details").first.get_attribute("open") is None


def violations(page, *rules):
    """What axe-core finds, by these rules or by all: rule and elements."""
    page.evaluate(Path(AXE_FILE_PATH).read_text(encoding="utf-8"))
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    return page.evaluate(
        """async options => (await axe.run(options)).violations.map(
        rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 200))])""",
        options,
    )


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(read, scheme):
    for name in ("index.html", "01_words.html", "02_boards.html", "zh/02_boards.html"):
        page = read(name, color_scheme=scheme)
        assert violations(page) == [], name
    page.evaluate("document.querySelector('input').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('input').removeAttribute('placeholder')")
    assert [rule for rule, _ in violations(page)] == ["label"]
