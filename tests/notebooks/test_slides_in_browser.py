"""Slides and handouts in Chromium, the network cut: nothing below the fold, boards alive, paper."""

import re

import book
import builds
import checked
import handouts
import nbformat
import pytest
import slides
from chapter import read
from small import CHAPTERS, ROOT

from labkit import pipeline
from labkit.pictures import mime
from labkit.pictures.painters import svg
from labkit.widgets import export

NAME = "08_pipeline_parallel"
LOWEST = """() => [...document.querySelectorAll('section')].map(slide => {
  const frame = slide.getBoundingClientRect(), low = [0], right = [0];
  for (const part of slide.querySelectorAll('.body, .figure, .body *')) {
    const inside = part.closest('.figure[tabindex]'), box = part.getBoundingClientRect();
    if (part.closest('details') || (inside && inside !== part) || !box.width) continue;
    low.push(box.bottom - frame.top);
    right.push(box.right - frame.left);
  }
  return [Math.max(...low), Math.max(...right)];
})"""
ROOM_PX, WIDE_PX = 684, 1228


def below_the_fold(page):
    """The numbers of the slides of which something is not seen."""
    faults = []
    for number, (low, right) in enumerate(page.evaluate(LOWEST), start=1):
        if low > ROOM_PX or right > WIDE_PX:
            faults.append((number, low, right))
    return faults


@pytest.fixture(scope="module")
def deck(tmp_path_factory):
    """Slides of chapter 08 with pictures as large as it draws, without running it."""
    step = pipeline.Step(schedule="1f1b", ranks=4, microbatches=8)
    drawn = svg.render(step.predict().picture(language="en"), uid="drawn")
    notebook = builds.notebook(read(ROOT / "notebooks" / "src" / f"{NAME}.py"), "en", "learner")
    boards = 0
    for cell in notebook.cells:
        if cell.cell_type != "code" or "check." in cell.source:
            continue
        data = {mime.OFFLINE: drawn}
        if ".board()" in cell.source:
            boards += 1
            data = {mime.OFFLINE: export.offline(step.board())}
        cell.outputs = [nbformat.v4.new_output("display_data", data)]
    assert boards == 1
    out = tmp_path_factory.mktemp("slides")
    return slides.write(out, ("en", NAME), slides.page(ROOT, ("en", NAME), notebook))


@pytest.fixture
def shown(chrome, deck):
    """The deck, opened with the network cut; nothing but its file may be asked for."""
    context = chrome.new_context(viewport={"width": 1280, "height": 720})
    context.set_offline(True)
    page = context.new_page()
    page.set_default_timeout(10_000)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: asked.append(f"error: {error}"))
    page.goto(deck.as_uri())
    yield page
    context.close()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}


@pytest.mark.browser
def test_nothing_is_below_the_fold_and_what_would_be_is_seen(shown):
    assert below_the_fold(shown) == []
    shown.evaluate("document.querySelectorAll('.figure').forEach(each => each.style.zoom = 1)")
    assert below_the_fold(shown) != []


@pytest.mark.browser
def test_arrows_turn_slides_and_a_slider_turns_its_board(shown):
    def place():
        return int(shown.locator("section.now").get_attribute("id"))

    count = shown.locator("section").count()
    assert place() == 1
    for key, there in (("ArrowRight", 2), (" ", 3), ("ArrowLeft", 2), ("End", count), ("Home", 1)):
        shown.keyboard.press(key)
        assert place() == there and shown.url.endswith(f"#{there}")
    shown.get_by_role("button", name="Next").click()
    assert place() == 2
    board = next(
        each for each in shown.locator("section").all() if each.locator(".labkit-board").count()
    )
    number = board.get_attribute("id")
    shown.evaluate("number => { location.hash = number }", number)
    board.locator("xpath=self::*[contains(@class, 'now')]").wait_for()
    before = board.locator("svg title").first.text_content()
    board.get_by_role("slider").first.focus()
    shown.keyboard.press("ArrowRight")
    shown.wait_for_function(
        "([number, before]) => document.getElementById(number).querySelector('svg title')"
        ".textContent !== before",
        arg=[number, before],
    )
    assert str(place()) == number
    light = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    shown.evaluate("document.activeElement.blur()")
    shown.keyboard.press("d")
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") != light


@pytest.mark.again
@pytest.mark.browser
def test_a_deck_prints_a_slide_a_page(shown):
    printed = shown.pdf(prefer_css_page_size=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert pages == shown.locator("section").count()


@pytest.mark.browser
@pytest.mark.a_few(2)
@pytest.mark.parametrize("name", CHAPTERS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_handout_prints_on_two_pages(chrome, tmp_path, language, name):
    drawn = '<svg viewBox="0 0 900 400"><rect width="900" height="400"/></svg>'
    path = slides.write(tmp_path, (language, name), handouts.page(ROOT, (language, name), drawn))
    context = chrome.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    printed = page.pdf(prefer_css_page_size=True)
    context.close()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) in (1, 2)


@pytest.mark.notebooks
@pytest.mark.timeout(3600)
def test_every_handout_of_the_course_has_its_picture(copies):
    for copy in checked.standard(ROOT):
        paper = handouts.of_copy(ROOT, copy)
        assert "<svg" in paper.partition('class="halves"')[0], copy
        assert book.TITLE in paper


@pytest.mark.notebooks
@pytest.mark.browser
@pytest.mark.timeout(3600)
@pytest.mark.a_few(2)
@pytest.mark.parametrize("copy", checked.standard(ROOT), ids="-".join)
def test_no_deck_of_the_whole_course_is_cut_or_large(copies, chrome, tmp_path, copy):
    """With the outputs of the copies that this session has."""
    context = chrome.new_context(viewport={"width": 1280, "height": 720})
    context.set_offline(True)
    path = slides.write(tmp_path, copy, slides.of_copy(ROOT, copy))
    assert path.stat().st_size < 3_000_000
    page = context.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(path.as_uri())
    assert below_the_fold(page) == wrong == []
    context.close()
