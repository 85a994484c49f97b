"""Every widget wherever it is seen: an untrusted clone, a trusted notebook that nobody has run, a
busy kernel."""

import nbformat
import pytest
from browser import gallery
from ipywidgets import Dropdown
from playwright.sync_api import TimeoutError as TooLate

from labkit.widgets.trial import Trial

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
STATUS = "() => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.status"
BEFORE = """board => {
  const before = each => getComputedStyle(each, '::before').content;
  const lost = [...board.querySelectorAll('.jupyter-widgets-disconnected')];
  return [before(board), [...new Set(lost.map(before))]];
}"""
FAULTS = ("model not found", "Error displaying widget", "Error creating widget", "Loading widget")
FLIPBOOKS = gallery.made_of(Trial)
SEEN = "svg:visible, canvas:visible"


@pytest.fixture(scope="module")
def clone(galleries, opened, tmp_path_factory):
    """The gallery, run and saved, as a fresh clone of somebody else opens it: not trusted."""
    notebook = nbformat.reads(galleries("en").saved, as_version=4)
    notebook.metadata["copy"] = "other bytes than those that this machine has signed"
    path = tmp_path_factory.mktemp("clone") / "clone.ipynb"
    nbformat.write(notebook, path)
    with opened(path) as lab:
        yield lab


@pytest.fixture(scope="module")
def reopened(galleries, opened, tmp_path_factory):
    """It, trusted; no cell has been run.

    ipywidgets reads the notebook's widgets while the kernel connects. Where that takes long, it may
    call them read too early, and an output that asks just then stays without its model for good.
    Then the notebook is opened once more, as a reader would do: twice at most.
    """
    path = tmp_path_factory.mktemp("reopened") / "reopened.ipynb"
    path.write_text(galleries("en").saved, encoding="utf-8")
    for attempts_left in (2, 1, 0):
        with opened(path, trusted=True) as lab:
            if attempts_left == 0 or _all_stand(lab):
                yield lab
                return


def _is_whole(output):
    """Whether no widget of an output says that it lacks something."""
    return not any(words in output.text_content() for words in FAULTS)


def _all_stand(lab):
    """Whether every widget of the notebook comes within half a minute."""
    notebook = lab.page.locator(".jp-Notebook")
    try:
        for name in gallery.CELLS:
            gallery.output(lab.page, name).locator(SEEN).first.wait_for()
        lab.until(lambda: _is_whole(notebook))
    except (AssertionError, TooLate):
        return False
    return True


@pytest.fixture(scope="module")
def busy(galleries):
    """It, its kernel alive but busy, in a JupyterLab that sends widgets' messages to the one thread
    that runs cells."""
    lab = galleries("en").lab
    with lab.occupied():
        yield lab


def drawn(output):
    """The picture that is seen first."""
    return output.locator("svg:visible").first.inner_html()


def flips(lab, name):
    """The slider turns the pages back and forth, and says where it stands."""
    output = gallery.output(lab.page, name)
    before = drawn(output)
    if isinstance(gallery.boards("en")[name].book.slider, Dropdown):
        turns_a_list(lab, output, before)
        return
    slider = output.locator("[role=slider]").nth(where(name))
    value = slider.get_attribute("aria-valuetext")
    last = slider.evaluate("each => each.ariaValueNow === each.ariaValueMax")
    there, back = ("ArrowLeft", "ArrowRight") if last else ("ArrowRight", "ArrowLeft")
    slider.focus()
    for key, moved in ((there, True), (back, False)):
        lab.page.keyboard.press(key)
        lab.until(lambda moved=moved: (drawn(output) != before) == moved)
        assert (slider.get_attribute("aria-valuetext") != value) == moved


def turns_a_list(lab, output, before):
    """The first control is a list, not a slider: another of its options turns the page, and the
    first one turns it back."""
    chooser = output.locator(".labkit-first select")
    first = chooser.evaluate("each => each.selectedIndex")
    for index, moved in ((first + 1, True), (first, False)):
        chooser.select_option(index=index)
        lab.until(lambda moved=moved: (drawn(output) != before) == moved)


def where(name):
    """The place of the flipbook's slider among the handles of its board."""
    board = gallery.boards("en")[name]
    controls = [
        child for child in board.children[0].children if type(child).__name__ == "SelectionSlider"
    ]
    return controls.index(board.book.slider)


def zooms(lab):
    """A key of the trace viewer changes what its canvas shows, and another brings it back."""
    canvas = gallery.output(lab.page, "trace").locator("canvas")
    pixels = "each => each.toDataURL()"
    whole = canvas.evaluate(pixels)
    canvas.focus()
    for key, near in (("+", True), ("0", False)):
        lab.page.keyboard.press(key)
        lab.until(lambda near=near: (canvas.evaluate(pixels) != whole) == near)


@pytest.mark.parametrize("name", gallery.CELLS)
def test_an_untrusted_clone_shows_a_picture_and_no_error(clone, name):
    output = gallery.output(clone.page, name)
    image = output.locator("img[src^='data:image/png']:visible").first
    image.wait_for()
    assert image.bounding_box()["width"] > 300
    assert output.locator(".jp-OutputArea-output :is(svg, canvas, script)").count() == 0
    assert _is_whole(output)


@pytest.mark.a_few(5)
@pytest.mark.parametrize("name", gallery.CELLS)
def test_a_trusted_one_shows_the_picture_without_having_been_run(reopened, name):
    output = gallery.output(reopened.page, name)
    output.locator("canvas:visible" if name == "trace" else "svg:visible").first.wait_for()
    assert output.locator(".jp-OutputArea-output img:visible").count() == 0
    reopened.until(lambda: _is_whole(output))
    if name in gallery.boards("en"):
        expected = list(gallery.handles(gallery.boards("en")[name]))
        reopened.until(lambda: gallery.said(reopened.page, name) == expected)
        before, inside = output.locator(".labkit-board").evaluate(BEFORE)
        assert "run the cell again" in before and inside == ["none"], (
            "one line in place of an icon at every widget"
        )


@pytest.mark.a_few(4)
@pytest.mark.parametrize("name", FLIPBOOKS)
def test_a_trusted_one_flips_without_having_been_run(reopened, name):
    flips(reopened, name)


@pytest.mark.a_few(4)
@pytest.mark.parametrize("name", FLIPBOOKS)
def test_a_busy_kernel_stops_no_slider(busy, name):
    flips(busy, name)
    assert busy.page.evaluate(STATUS) == "busy"


def test_the_trace_zooms_without_having_been_run_and_with_a_busy_kernel(reopened, busy):
    zooms(reopened)
    zooms(busy)
    assert busy.page.evaluate(STATUS) == "busy"
