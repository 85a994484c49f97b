"""Every widget for everyone, in JupyterLab: names and values in the accessibility tree, keyboard,
tables, contrast."""

import os
import re
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from browser import gallery
from browser.contrast import unreadable
from playwright.sync_api import TimeoutError as TooLate

from labkit import widgets

CONTROLS = {
    "slider",
    "combobox",
    "button",
    "textbox",
    "searchbox",
    "spinbutton",
    "checkbox",
    "switch",
}
CHINESE = re.compile("[\u4e00-\u9fff]")
GLYPH = re.compile("[\ue000-\uf8ff]")  # an icon font's own characters: read out, they are noise
OPERABLE = (
    ".noUi-handle, select, button:not(:disabled), input, summary, canvas[tabindex], "
    "[contenteditable=true]"
)
STEP = """() => {
  const at = document.activeElement, area = at.closest('.jp-Cell-outputArea');
  const look = getComputedStyle(at);
  const seen = () =>
    [look.outlineStyle, look.boxShadow, look.borderColor, look.backgroundColor].join();
  const focused = seen();
  at.blur();
  const blurred = seen();
  at.focus({preventScroll: true});
  const all = [...(area?.querySelectorAll(operable) ?? [])];
  const order = all.filter(each => each.checkVisibility());
  return [area ? order.indexOf(at) : -1, focused !== blurred, at.outerHTML.slice(0, 120)];
}"""
SAYS = "([node, text]) => node.getAttribute('aria-valuetext') === text"
MOVES = "([node, text, moves]) => (node.getAttribute('aria-valuetext') !== text) === moves"
PICTURES = ", ".join(f".jp-OutputArea-output {tag}:visible" for tag in ("svg", "canvas", "img"))
AXE = """async () => {
  const outputs = [...document.querySelectorAll('.jp-OutputArea-output')];
  const found = await axe.run(outputs, {resultTypes: ['violations']});
  return found.violations.filter(rule => ['serious', 'critical'].includes(rule.impact)).map(
    rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 200))]);
}"""
pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]


CHINESE_AGAIN = pytest.param("zh", marks=pytest.mark.again)
LIGHT_AGAIN = pytest.param(False, id="light", marks=pytest.mark.again)
EVERY_THIRD = pytest.mark.parametrize("each", [3, pytest.param(1, marks=pytest.mark.again)])


@pytest.fixture(params=["en", CHINESE_AGAIN])
def seen(request, galleries):
    """The gallery in one language, run; and the language."""
    lab = galleries(request.param).lab
    lab.language = request.param
    return lab


def told(node):
    """What a node of the accessibility tree says of itself."""
    keys = "role", "name", "value", "description"
    return tuple(str(node.get(key, {}).get("value", "")) for key in keys)


@pytest.fixture
def tree(seen):
    """A function: the nodes of the accessibility tree in a widget's output, as (role, name, value,
    description)."""
    session = seen.page.context.new_cdp_session(seen.page)

    def read(name):
        found = session.send(
            "Runtime.evaluate",
            {
                "expression": f"document.querySelectorAll('.jp-CodeCell')[{gallery.place(name)}]"
                ".querySelector('.jp-Cell-outputArea')"
            },
        )
        nodes = session.send(
            "Accessibility.queryAXTree", {"objectId": found["result"]["objectId"]}
        )["nodes"]
        return [told(node) for node in nodes if not node["ignored"]]

    yield read
    session.detach()


def test_the_gallery_holds_every_widget():
    every = set(widgets.__all__)
    assert set(gallery.CELLS) == (gallery.FEW if os.environ.get(gallery.BOARDS) else every)
    assert every > gallery.FEW


@EVERY_THIRD
def test_every_slider_says_its_name_and_the_option_it_stands_at(seen, each):
    words = ("from", "to") if seen.language == "en" else ("从", "到")
    for name, board in list(gallery.boards(seen.language).items())[::each]:
        expected = list(gallery.handles(board, words))
        seen.page.wait_for_timeout(50)
        assert gallery.said(seen.page, name) == expected, name


def test_the_value_text_follows_the_keyboard_and_the_kernel(seen):
    slider = gallery.output(seen.page, "pipeline_parallelism").locator("[role=slider]").nth(1)
    before = slider.get_attribute("aria-valuetext")
    slider.focus()
    for key, expected in (("ArrowRight", "9"), ("End", "32"), ("ArrowLeft", "28"), ("Home", "1")):
        seen.page.keyboard.press(key)
        comes(seen.page, slider, expected)
    for _ in range(int(before) - 1):
        seen.page.keyboard.press("ArrowRight")
    comes(seen.page, slider, before)
    choice = gallery.output(seen.page, "collectives").locator("select").first
    step = gallery.output(seen.page, "collectives").locator("[role=slider]").nth(1)
    chosen = choice.evaluate("each => each.selectedIndex")
    step.focus()
    seen.page.keyboard.press("ArrowRight")
    choice.select_option(index=0)  # another plan: the kernel sets the step back
    comes(seen.page, step, "0")
    texts = "all => all.map(each => each.getAttribute('aria-valuetext'))"
    assert step.evaluate_all(texts) == ["0"]
    choice.select_option(index=chosen)
    comes(seen.page, step, "0")


def comes(page, slider, text):
    """Waits until a slider says the text."""
    page.wait_for_function(SAYS, arg=[slider.element_handle(), text])


@pytest.mark.a_few(5)
@pytest.mark.parametrize("name", gallery.CELLS)
def test_every_control_has_a_name_and_every_picture_a_name_a_sentence_and_a_table(seen, tree, name):
    nodes = tree(name)
    output = gallery.output(seen.page, name)
    for role, label, value, _ in nodes:
        if role in CONTROLS:
            assert label.strip() and label != "null" and not GLYPH.search(label), (role, label)
            assert value != "null" and (value or role not in ("slider", "combobox")), (
                role,
                label,
                value,
            )
            assert bool(CHINESE.search(label)) == (seen.language == "zh"), (role, label)
    pictures = [
        node for node in nodes if node[0] in ("image", "img", "graphics-document", "Canvas")
    ]
    assert len(pictures) == output.locator(PICTURES).count() > 0
    for _, label, _, description in pictures:
        assert label.strip() and re.search(r"[.。]$", description.strip()), (label, description)
        assert {bool(CHINESE.search(words)) for words in (label, description)} == {
            seen.language == "zh"
        }
    said = output.locator("table").evaluate_all("all => all.map(each => each.textContent)")
    assert {bool(CHINESE.search(words)) for words in said} == {seen.language == "zh"}, said
    summaries = output.locator("details:has(table) > summary:visible")
    assert summaries.count() == len(pictures)
    for summary in summaries.all():
        summary.focus()
        seen.page.keyboard.press("Enter")
    rows = output.locator("details[open] table").evaluate_all(
        "all => all.map(each => each.rows.length)"
    )
    assert len(rows) == len(pictures) and min(rows) > 1
    assert sum(node[0] == "table" for node in tree(name)) >= len(pictures)
    for summary in summaries.all():
        summary.focus()
        seen.page.keyboard.press("Enter")


def test_everything_operable_is_reached_by_tab_in_order_and_shows_the_focus(seen):
    page = seen.page
    step = STEP.replace("operable", repr(OPERABLE))
    for name in gallery.CELLS:
        output = gallery.output(page, name)
        wanted = output.locator(OPERABLE).evaluate_all(
            "all => all.filter(each => each.checkVisibility()).length"
        )
        output.evaluate("area => { area.tabIndex = -1; area.focus() }")
        for number in range(wanted):
            page.keyboard.press("Tab")
            at, shown, markup = page.evaluate(step)
            assert at == number and shown, f"{name}: stop {number} of {wanted}: {markup}"
        output.evaluate("area => area.removeAttribute('tabindex')")


def moves_there_and_back(page, slider) -> bool:
    """Whether a slider's text changes with one arrow key, and comes back with the other.

    A kernel that is behind may still answer the slider before, and by that set this one anew
    (a control may change how many steps there are): then the move is lost, not the keyboard.
    """
    before = slider.get_attribute("aria-valuetext")
    slider.focus()
    ends = slider.evaluate("each => each.ariaValueNow === each.ariaValueMax")
    keys = ("ArrowLeft", "ArrowRight") if ends else ("ArrowRight", "ArrowLeft")
    try:
        for key, moves in zip(keys, (True, False), strict=True):
            page.keyboard.press(key)
            arguments = [slider.element_handle(), before, moves]
            page.wait_for_function(MOVES, arg=arguments, timeout=10_000)
    except TooLate:
        return False
    return True


@pytest.mark.a_few(3)
@pytest.mark.parametrize("name", gallery.CELLS)
def test_every_slider_and_choice_moves_by_keyboard(seen, name):
    page = seen.page
    for number, slider in enumerate(gallery.output(page, name).locator("[role=slider]").all()):
        tried = any(moves_there_and_back(page, slider) for _ in range(3))
        assert tried, f"slider {number}: {slider.get_attribute('aria-label')}"
    for choice in gallery.output(page, name).locator("select").all():
        before = choice.evaluate("each => each.selectedIndex")
        choice.focus()
        keys = ("ArrowUp", "ArrowDown") if before else ("ArrowDown", "ArrowUp")
        for key, after in zip(keys, (before - 1 if before else 1, before), strict=True):
            page.keyboard.press(key)
            at = choice.evaluate("each => [each.selectedIndex, document.activeElement === each]")
            assert at == [after, True], key


LAUNCH = """import time
from pathlib import Path
import labkit as lab
from labkit import widgets

lab.begin({language!r})

def slow():
    while not Path({seen!r}).exists():
        time.sleep(0.05)
    raise RuntimeError("out of luck")"""


@pytest.mark.again
@pytest.mark.parametrize(
    ("language", "stop", "running", "left", "odd"),
    [
        ("en", "Stop", "running", "2 ranks, ", "raised an exception"),
        pytest.param(*("zh", "停止", "运行中", "2 个 rank，", "抛出异常"), marks=pytest.mark.again),
    ],
)
def test_panel_and_report_come_in_the_notebooks_language(
    opened, tmp_path, language, stop, running, left, odd
):
    panel_seen = tmp_path / "seen"
    setup = LAUNCH.format(language=language, seen=str(panel_seen))
    with opened(gallery.notebook(tmp_path, setup, "lab.launch(slow, ranks=2)")) as lab:
        lab.command("notebook:run-all-cells")
        output = lab.page.locator(".jp-CodeCell").nth(1).locator(".jp-Cell-outputArea")
        button = output.get_by_role("button", name=stop, exact=True)
        button.wait_for(timeout=60_000)
        button.focus()
        output.locator(f"pre:has-text('{running}')").wait_for()
        panel_seen.touch()
        lab.wait_idle()
        assert output.get_by_role("img").first.get_attribute("aria-labelledby")
        assert odd in output.locator("svg title").first.text_content()
        assert left in output.text_content()


def violations(page):
    """What axe-core calls serious or critical in the outputs: rule and elements."""
    page.evaluate(Path(AXE_FILE_PATH).read_text(encoding="utf-8"))
    return page.evaluate(AXE)


UNNAMED = """choice => {
  window.named = {choice, title: choice.title, label: choice.parentElement.querySelector('label')};
  window.named.label.remove();
  choice.removeAttribute('title');
}"""
NAMED = """() => {
  window.named.choice.before(window.named.label);
  window.named.choice.title = window.named.title;
}"""


@pytest.mark.parametrize("dark", [LIGHT_AGAIN, pytest.param(True, id="dark")])
def test_axe_finds_nothing_serious(seen, dark):
    with seen.theme(dark):
        assert violations(seen.page) == []


def test_axe_finds_a_choice_without_a_name(seen):
    gallery.output(seen.page, "zero_stages").locator("select").first.evaluate(UNNAMED)
    found = violations(seen.page)
    seen.page.evaluate(NAMED)
    assert [rule for rule, _ in found] == ["select-name"]


@EVERY_THIRD
@pytest.mark.parametrize("dark", [LIGHT_AGAIN, pytest.param(True, id="dark")])
def test_every_text_of_every_picture_stands_out_from_what_lies_behind_it(seen, dark, each):
    with seen.theme(dark):
        for name in list(gallery.CELLS)[::each]:
            pictures = gallery.output(seen.page, name).locator(".jp-OutputArea-output svg:visible")
            for picture in pictures.all():
                assert unreadable(seen.page, picture) == [], name
        text = picture.locator("text").first
        text.evaluate("each => each.setAttribute('fill-opacity', .3)")
        faint = unreadable(seen.page, picture)
        text.evaluate("each => each.removeAttribute('fill-opacity')")
        assert len(faint) == 1


def test_nothing_is_cut_in_a_narrow_window(seen):
    cut = """all => all.filter(each => each.scrollWidth > each.clientWidth + 1)
        .map(each => each.textContent)"""
    boxes = ".jp-OutputArea-output, .widget-readout, .widget-label"
    try:
        for wide in (1280, 600):
            seen.page.set_viewport_size({"width": wide, "height": 1000})
            seen.page.wait_for_timeout(500)
            for name in gallery.CELLS:
                assert gallery.output(seen.page, name).locator(boxes).evaluate_all(cut) == [], name
    finally:
        seen.page.set_viewport_size({"width": 1280, "height": 1000})
