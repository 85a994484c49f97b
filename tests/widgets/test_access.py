"""Every widget for everyone, in JupyterLab: names and values in the accessibility tree, keyboard,
tables, contrast."""

import functools
import io
import re
from pathlib import Path

import ipywidgets as w
import matplotlib.image
import numpy as np
import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from browser import gallery
from browser.lab import browse, serve
from test_browser import chrome, contrast, notebook  # noqa: F401  (a fixture)

from labkit import widgets
from labkit.pipeline import schedules, simulation

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
OPERABLE = ".noUi-handle, select, button:not(:disabled), input, summary, canvas[tabindex], [contenteditable=true]"
STEP = """() => {
  const at = document.activeElement, look = getComputedStyle(at), area = at.closest('.jp-Cell-outputArea');
  const seen = () => [look.outlineStyle, look.boxShadow, look.borderColor, look.backgroundColor].join();
  const focused = seen();
  at.blur();
  const blurred = seen();
  at.focus({preventScroll: true});
  const order = [...(area?.querySelectorAll(operable) ?? [])].filter(each => each.checkVisibility());
  return [area ? order.indexOf(at) : -1, focused !== blurred, at.outerHTML.slice(0, 120)];
}"""
MOVES = "([node, text, moves]) => (node.getAttribute('aria-valuetext') !== text) === moves"
PICTURES = ", ".join(f".jp-OutputArea-output {tag}:visible" for tag in ("svg", "canvas", "img"))
AXE = """async () => {
  const outputs = [...document.querySelectorAll('.jp-OutputArea-output')];
  const found = await axe.run(outputs, {resultTypes: ['violations']});
  return found.violations.filter(rule => ['serious', 'critical'].includes(rule.impact)).map(
    rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 200))]);
}"""
WORDS = """svg => {
  const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width, found = [];
  const walk = document.createTreeWalker(svg, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement, range = document.createRange(), look = getComputedStyle(parent);
    if (!parent.closest('text') || !node.data.trim()) continue;
    range.selectNodeContents(node);
    const at = range.getBoundingClientRect();
    let opacity = Number(look.fillOpacity);
    for (let each = parent; each !== svg; each = each.parentElement) opacity *= Number(getComputedStyle(each).opacity);
    found.push([node.data, at.x - box.x, at.y - box.y, at.width, at.height, look.fill, opacity,
                scale * parseFloat(look.fontSize), Number(look.fontWeight)]);
  }
  return found;
}"""
pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]


@pytest.fixture(scope="module", params=["en", "zh"])
def seen(request, chrome, tmp_path_factory):  # noqa: F811
    """The gallery in one language, run."""
    path = gallery.write(tmp_path_factory.mktemp("gallery"), request.param)
    with serve(path) as server, browse(chrome, server, path.name) as lab:
        lab.run_all()
        lab.language = request.param
        gallery.output(lab.page, "zero_stages").locator("svg").first.wait_for()
        yield lab


@pytest.fixture
def tree(seen):
    """A function: the nodes of the accessibility tree in a widget's output, as (role, name, value,
    description)."""
    session = seen.page.context.new_cdp_session(seen.page)

    def read(name):
        place = 1 + list(gallery.CELLS).index(name)
        found = session.send(
            "Runtime.evaluate",
            {
                "expression": f"document.querySelectorAll('.jp-CodeCell')[{place}]"
                ".querySelector('.jp-Cell-outputArea')"
            },
        )
        nodes = session.send(
            "Accessibility.queryAXTree", {"objectId": found["result"]["objectId"]}
        )["nodes"]
        return [
            tuple(
                str(node.get(key, {}).get("value", ""))
                for key in ("role", "name", "value", "description")
            )
            for node in nodes
            if not node["ignored"]
        ]

    yield read
    session.detach()


@functools.cache
def boards(language):
    """Every board of the gallery, made here: what the browser should say."""
    predicted = simulation.simulate(schedules.SCHEDULES["1f1b"](3, 4))
    made = {name: getattr(widgets, name) for name in gallery.CELLS}
    for name in ("architectures", "report", "show"):
        del made[name]
    return {
        name: build(predicted, language=language)
        if name in ("timeline", "trace")
        else build(language)
        for name, build in made.items()
    }


def handles(board, words=("from", "to")):
    """(name, value text) of each slider handle of a board, in the order of the page."""

    def all_of(widget):
        yield widget
        for child in getattr(widget, "children", ()):
            yield from all_of(child)

    for widget in all_of(board):
        if isinstance(widget, w.SelectionSlider):
            yield widget.description, widget.options[widget.index][0]
        elif isinstance(widget, w.SelectionRangeSlider):
            for word, index in zip(words, widget.index, strict=True):
                yield f"{widget.description}: {word}", widget.options[index][0]


def said(lab, name):
    """(name, value text) of each slider handle in the page."""
    return [
        tuple(pair)
        for pair in gallery.output(lab.page, name)
        .locator("[role=slider]")
        .evaluate_all(
            "all => all.map(each => [each.getAttribute('aria-label'), "
            "each.getAttribute('aria-valuetext')])"
        )
    ]


def test_the_gallery_holds_every_widget():
    assert set(gallery.CELLS) == set(widgets.__all__)


def test_every_slider_says_its_name_and_the_option_it_stands_at(seen):
    words = ("from", "to") if seen.language == "en" else ("从", "到")
    for name, board in boards(seen.language).items():
        expected = list(handles(board, words))
        seen.page.wait_for_timeout(50)
        assert said(seen, name) == expected, name


def test_the_value_text_follows_the_keyboard_and_the_kernel(seen):
    slider = gallery.output(seen.page, "pipeline_parallelism").locator("[role=slider]").nth(1)
    words = "all => all.map(each => each.getAttribute('aria-valuetext'))"
    slider.focus()
    for key, expected in (("ArrowRight", "9"), ("End", "32"), ("ArrowLeft", "28"), ("Home", "1")):
        seen.page.keyboard.press(key)
        seen.page.wait_for_function(
            "([node, text]) => node.getAttribute('aria-valuetext') === text",
            arg=[slider.element_handle(), expected],
            timeout=5000,
        )
    choice = gallery.output(seen.page, "collectives").locator("select").first
    step = gallery.output(seen.page, "collectives").locator("[role=slider]").nth(1)
    step.focus()
    seen.page.keyboard.press("ArrowRight")
    choice.select_option(index=0)  # another plan: the kernel sets the step back
    seen.page.wait_for_function(
        "node => node.getAttribute('aria-valuetext') === '0'", arg=step.element_handle()
    )
    assert step.evaluate_all(words) == ["0"]


@pytest.mark.parametrize("name", widgets.__all__)
def test_every_control_has_a_name_and_every_picture_a_name_a_sentence_and_a_table(seen, tree, name):
    nodes, output = tree(name), gallery.output(seen.page, name)
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
    summaries = output.locator("summary:visible")
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
    page, step = seen.page, STEP.replace("operable", repr(OPERABLE))
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


def test_every_slider_and_choice_moves_by_keyboard(seen):
    page = seen.page
    for name in gallery.CELLS:
        for slider in gallery.output(page, name).locator("[role=slider]").all():
            before = slider.get_attribute("aria-valuetext")
            slider.focus()
            ends = slider.evaluate("each => each.ariaValueNow === each.ariaValueMax")
            keys = ("ArrowLeft", "ArrowRight") if ends else ("ArrowRight", "ArrowLeft")
            for key, moves in zip(keys, (True, False), strict=True):
                page.keyboard.press(key)
                page.wait_for_function(
                    MOVES, arg=[slider.element_handle(), before, moves], timeout=5000
                )
        for choice in gallery.output(page, name).locator("select").all():
            before = choice.evaluate("each => each.selectedIndex")
            choice.focus()
            keys = ("ArrowUp", "ArrowDown") if before else ("ArrowDown", "ArrowUp")
            for key, after in zip(keys, (before - 1 if before else 1, before), strict=True):
                page.keyboard.press(key)
                at = choice.evaluate(
                    "each => [each.selectedIndex, document.activeElement === each]"
                )
                assert at == [after, True], f"{name}: {key}"


LAUNCH = """import time
import labkit as lab
from labkit import widgets

LANGUAGE = {language!r}

def slow():
    time.sleep(6)
    raise RuntimeError("out of luck")"""


@pytest.mark.parametrize(
    ("language", "stop", "running", "left", "odd"),
    [
        ("en", "Stop", "running", "2 ranks, ", "raised an exception"),
        ("zh", "停止", "运行中", "2 个 rank，", "抛出异常"),
    ],
)
def test_panel_and_report_come_in_the_notebooks_language(
    chrome, tmp_path, language, stop, running, left, odd
):
    path = notebook(tmp_path, LAUNCH.format(language=language), "lab.launch(slow, ranks=2)")
    with serve(path) as server, browse(chrome, server, path.name) as lab:
        lab.command("notebook:run-all-cells")
        output = lab.page.locator(".jp-CodeCell").nth(1).locator(".jp-Cell-outputArea")
        button = output.get_by_role("button", name=stop, exact=True)
        button.wait_for(timeout=60_000)
        button.focus()
        output.locator(f"pre:has-text('{running}')").wait_for(timeout=5000)
        lab.wait_idle(timeout_s=30)
        assert output.get_by_role("img").first.get_attribute("aria-labelledby")
        assert odd in output.locator("svg title").first.text_content()
        assert left in output.text_content()


def violations(page):
    """What axe-core calls serious or critical in the outputs: rule and elements."""
    page.evaluate(Path(AXE_FILE_PATH).read_text(encoding="utf-8"))
    return page.evaluate(AXE)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(seen, dark):
    seen.dark(dark)
    assert violations(seen.page) == []
    if dark:
        choice = gallery.output(seen.page, "zero_stages").locator("select").first
        choice.evaluate(
            "each => { each.parentElement.querySelector('label').remove(); "
            "each.removeAttribute('title') }"
        )
        assert [rule for rule, _ in violations(seen.page)] == ["select-name"]
    seen.dark(False)


def weakest(words, picture):
    """The least contrast of a text with any colour that lies behind it. ``picture``: the pixels
    without the text."""
    _, x, y, wide, high, fill, opacity, *_ = words
    behind = picture[
        max(0, round(y)) : round(y + high), max(0, round(x)) : round(x + wide)
    ].reshape(-1, 3)
    *colour, alpha = (*map(float, re.findall(r"[\d.]+", fill)), 1.0)[:4]
    alpha *= opacity
    return min(
        (
            contrast(alpha * np.array(colour) + (1 - alpha) * shade, shade)
            for shade in np.unique(behind.round(), axis=0)
        ),
        default=np.inf,
    )


def unreadable(page, picture):
    """Texts of an SVG whose contrast in Chromium's pixels is under 4.5, or 3 where they are
    large."""
    hidden = page.add_style_tag(content=".jp-OutputArea-output svg text { visibility: hidden }")
    pixels = 255 * matplotlib.image.imread(io.BytesIO(picture.screenshot()))[..., :3]
    hidden.evaluate("style => style.remove()")
    rows = [(words, weakest(words, pixels)) for words in picture.evaluate(WORDS)]
    assert rows
    return [
        (words[0], round(ratio, 2))
        for words, ratio in rows
        if ratio < (3 if words[7] >= 24 or (words[7] >= 18.66 and words[8] >= 700) else 4.5)
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_of_every_picture_stands_out_from_what_lies_behind_it(seen, dark):
    seen.dark(dark)
    for name in gallery.CELLS:
        for picture in (
            gallery.output(seen.page, name).locator(".jp-OutputArea-output svg:visible").all()
        ):
            assert unreadable(seen.page, picture) == [], name
    text = picture.locator("text").first
    text.evaluate("each => each.setAttribute('fill-opacity', .3)")
    assert len(unreadable(seen.page, picture)) == 1
    text.evaluate("each => each.removeAttribute('fill-opacity')")
    seen.dark(False)


def test_nothing_is_cut_in_a_narrow_window(seen):
    cut = "all => all.filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.textContent)"
    boxes = ".jp-OutputArea-output, .widget-readout, .widget-label"
    try:
        for wide in (1280, 600):
            seen.page.set_viewport_size({"width": wide, "height": 1000})
            seen.page.wait_for_timeout(500)
            for name in gallery.CELLS:
                assert gallery.output(seen.page, name).locator(boxes).evaluate_all(cut) == [], name
    finally:
        seen.page.set_viewport_size({"width": 1280, "height": 1000})
