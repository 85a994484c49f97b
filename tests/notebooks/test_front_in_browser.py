"""The book's first page in Chromium, the network cut: every chapter of the real course."""

from pathlib import Path

import book
import pytest
from small import CHAPTERS, ROOT, violations


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.again)])
@pytest.mark.parametrize(
    "name", ["index.html", pytest.param("zh/index.html", marks=pytest.mark.again)]
)
def test_the_first_page_has_its_pictures_its_links_and_no_fault(first_page, scheme, name):
    page = first_page(name, scheme)
    widths = page.evaluate("[...document.querySelectorAll('main img')].map(i => i.naturalWidth)")
    assert len(widths) == len(CHAPTERS) and set(widths) == {240}
    assert page.locator("main .map svg").count() == 1
    folder = Path(page.url.removeprefix("file://")).parent
    links = page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert len(links) > 3 * len(CHAPTERS)
    for link in links:
        assert link.startswith("#") or (folder / link.partition("#")[0]).exists(), link
    assert violations(page) == []
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.wait_for_function("document.querySelector('main .map').tabIndex === 0")
    assert violations(page) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The real book without outputs."""
    folder = tmp_path_factory.mktemp("whole")
    book.write(ROOT, folder, [book.pages(ROOT, each, CHAPTERS, []) for each in book.WORDS])
    return folder


@pytest.fixture
def first_page(chrome, whole):
    """A function that opens a page of the real book in a theme, the network cut."""
    contexts = []

    def opened(name, scheme):
        size = {"width": 1280, "height": 900}
        contexts.append(chrome.new_context(viewport=size, color_scheme=scheme))
        contexts[-1].set_offline(True)
        page = contexts[-1].new_page()
        page.goto((whole / name).as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
