"""The book in Chromium, the network cut: a small course, and every page of the real one."""

import re

import book
import checked
import nbformat
import pages
import pytest
from browser.contrast import COLOURS, contrast
from small import CHAPTERS, ROOT, loaded, text_of, violations

from labkit import widgets
from labkit.pictures import mime
from labkit.pipeline import schedules, simulation
from labkit.widgets import export

LOOK = """() => {
  const look = word => {
    const shown = getComputedStyle(word);
    const found = [shown.color, shown.backgroundColor, shown.fontSize, shown.fontWeight,
                   shown.opacity, shown.textShadow,
                   getComputedStyle(word.closest('pre')).backgroundColor];
    for (let each = word; each !== document.body; each = each.parentElement) {
      found.push(each.tagName, each.className, each.getAttribute('style'));
    }
    return found.join();
  };
  const words = document.querySelectorAll('.code pre span:not(:has(*))');
  return [words, [...words].map(look)];
}"""
CONTRAST = {"runOnly": ["color-contrast"]}
NO_CONTRAST = {"rules": {"color-contrast": {"enabled": False}}}
NOTE = f"""() => {{
  const [words, looks] = ({LOOK})();
  words.forEach((word, place) => word.look = (word.look || '') + looks[place]);
}}"""
MERGE = f"""() => {{
  const kept = new Set();
  for (const word of document.querySelectorAll('.code pre span:not(:has(*))')) {{
    if (kept.has(word.look)) word.replaceWith(word.textContent);
    kept.add(word.look);
  }}
  document.querySelectorAll('.code pre').forEach(each => each.normalize());
  const [words, looks] = ({LOOK})();
  return looks.every((look, place) => words[place].look.endsWith(look));
}}"""


@pytest.fixture
def read(chrome, course):
    """A function that opens a page of the book, and fails at the end if a page asked for anything
    that is no file."""
    asked = []
    contexts = []

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
    shown(board, "9 microbatches")
    assert slider.get_attribute("aria-valuetext") == "9"
    page.keyboard.press("End")
    shown(board, "32 microbatches")
    assert board.locator("output").text_content() == "32"
    board.get_by_label("schedule").select_option("1F1B")
    shown(board, "1F1B, 4 ranks, 32 microbatches")
    assert "Open the notebook to change ranks" in board.text_content()


def shown(board, title):
    """Waits until the board's picture has this in its title."""
    board.locator(f"svg title:has-text({title!r})").first.wait_for(state="attached")


@pytest.mark.a_few(1)
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_trace_zooms_with_the_network_cut(chrome, course, tmp_path, scheme):
    board = widgets.trace(simulation.simulate(schedules.gpipe(4, 8)))
    notebook = book.outputs(course, ("en", "02_boards"))
    notebook.cells[-1].outputs = [
        nbformat.v4.new_output("display_data", {mime.OFFLINE: export.offline(board)})
    ]
    page = pages.Page(name="02_boards", language="en", notebook=notebook, built=True)
    book.write(course, tmp_path, [[page]])
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


@pytest.mark.a_few(1)
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
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith('import labkit as lab\n\nlab.begin("en", chapter="01")\nprint(')


@pytest.mark.browser
def test_a_narrow_window_cuts_nothing_off(read):
    for name in ("index.html", "01_words.html", "zh/02_boards.html"):
        page = read(name)
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == 400
        assert page.locator("nav details").first.get_attribute("open") is None


@pytest.mark.browser
def test_what_was_closed_is_scrolled_by_keyboard_once_it_is_open(read):
    page = read("01_words.html")
    page.evaluate(
        """() => {
          const fold = document.createElement('details');
          fold.innerHTML = '<summary>More</summary><div class="scroll"><p style="width: 99em">Wide';
          document.querySelector('main').append(fold);
        }"""
    )
    assert page.evaluate("document.querySelector('main > details .scroll').tabIndex") == -1
    page.get_by_text("More", exact=True).click()
    page.wait_for_function("document.querySelector('main > details .scroll').tabIndex === 0")


def merge_alike(page):
    """In code, of the words that look the same in both themes the first keeps its element: a page
    has thousands, and axe measures the contrast of each."""
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(NOTE)
    assert page.evaluate(MERGE), "how a word looks depends on its place among the others"


@pytest.mark.a_few(1)
@pytest.mark.browser
@pytest.mark.parametrize(
    ("theme", "pale"),
    [
        ("light", "{color: #ddd !important}"),
        ("dark", "{color: light-dark(black, #333) !important}"),
    ],
)
def test_one_pale_word_is_found_among_all_that_look_alike(read, theme, pale):
    page = read("02_boards.html")
    last = page.locator(".code").last.get_attribute("data-cell")
    page.add_style_tag(content=f".code[data-cell='{last}'] pre span.n {pale}")
    num_words = page.locator(".code pre span").count()
    merge_alike(page)
    assert page.locator(".code pre span").count() < num_words / 2
    page.emulate_media(color_scheme=theme)
    (found,) = violations(page)
    assert found[0] == "color-contrast" and '<span class="n">' in found[1][0]


@pytest.mark.again
@pytest.mark.browser
def test_words_that_look_otherwise_by_their_place_are_not_merged_unseen(read):
    page = read("02_boards.html")
    page.add_style_tag(content=".code pre span:nth-of-type(7) {color: #ddd !important}")
    with pytest.raises(AssertionError, match="depends on its place"):
        merge_alike(page)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.again), "dark"])
def test_axe_finds_nothing(read, scheme):
    for name in ("index.html", "01_words.html", "02_boards.html", "zh/02_boards.html"):
        page = read(name, color_scheme=scheme)
        assert violations(page) == [], name
    page.evaluate("document.querySelector('input').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('input').removeAttribute('placeholder')")
    assert [rule for rule, _ in violations(page)] == ["label"]


@pytest.mark.browser
@pytest.mark.parametrize("language", ["en", pytest.param("zh", marks=pytest.mark.again)])
def test_the_cheat_sheet_prints_on_two_pages(chrome, tmp_path, language):
    book.write(ROOT, tmp_path, [book.pages(ROOT, language, [], [])])
    context = chrome.new_context()
    page = context.new_page()
    below = tmp_path / "zh" if language == "zh" else tmp_path
    page.goto((below / "cheat_sheet.html").as_uri())
    printed = page.pdf(format="A4", prefer_css_page_size=True)
    context.close()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 2


@pytest.mark.notebooks
@pytest.mark.browser
@pytest.mark.timeout(3600)
@pytest.mark.again
@pytest.mark.parametrize("which", ["light", "dark", "others"])
def test_every_page_of_the_whole_book_can_be_read(copies, chrome, tmp_path, which):
    """With the outputs of the copies that this session has: every English chapter and one Chinese.
    The other Chinese pages have none, and so no colour that the English page lacks: their contrast
    is not measured a second time. `make book` executes those too. Each picture by itself is read
    in `browser/test_access.py`."""
    chinese = [name for language, name in checked.standard(ROOT) if language == "zh"]
    english_pages = book.pages(ROOT, "en", CHAPTERS, CHAPTERS)
    chinese_pages = book.pages(ROOT, "zh", CHAPTERS, chinese)
    book.write(ROOT, tmp_path, [english_pages, chinese_pages])
    written = sorted(tmp_path.rglob("*.html"))
    leaves = ["index", "glossary", "cheat_sheet", "errata"]
    assert len(written) == 2 * (len(CHAPTERS) + len(leaves))
    scheme = "dark" if which == "dark" else "light"
    context = chrome.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    context.set_offline(True)
    without = {tmp_path / "zh" / f"{name}.html" for name in {*CHAPTERS} - {*chinese}}
    kind = [path for path in written if (path in without) == (which == "others")]
    for path in kind:
        has_none = path in without
        assert all((path.parent / each).exists() for each in loaded(text_of(path))), path
        page = context.new_page()
        wrong = []
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.goto(path.as_uri())
        if not has_none:
            merge_alike(page)
            turn_every_board(page, ("ArrowDown", "ArrowRight"))
        rules = {"dark": CONTRAST, "others": NO_CONTRAST}.get(which, {})
        assert violations(page, **rules) == wrong == [], path
        page.close()
    context.close()


def turn_every_board(page, keys):
    """Each board's first control, a list or a slider, moved by its key, turns its page."""
    for board in page.locator(".labkit-board:has(.labkit-slider)").all():
        before = board.locator(".labkit-page").inner_html()
        first = board.locator("[data-place='0']")
        is_list = first.evaluate("each => each.tagName === 'SELECT'")
        is_last = first.evaluate("each => each.value === each.max")
        onward = "ArrowLeft" if is_last else keys[1]
        first.press(keys[0] if is_list else onward)
        turned = "([page, before]) => page.innerHTML !== before"
        given = [board.locator(".labkit-page").element_handle(), before]
        page.wait_for_function(turned, arg=given, timeout=10_000)
