"""Every widget wherever it is seen: an untrusted clone, a trusted notebook that nobody has run, a
busy kernel."""

import pytest
from browser import gallery
from browser.lab import browse, serve
from test_access import boards, handles, said
from test_browser import chrome  # noqa: F401  (a fixture)

from labkit import widgets
from labkit.widgets.trial import Trial

STATUS = "() => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.status"
BEFORE = """board => [getComputedStyle(board, '::before').content, [...new Set(
    [...board.querySelectorAll('.jupyter-widgets-disconnected')].map(x => getComputedStyle(x, '::before').content))]]"""
pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
FAULTS = ("model not found", "Error displaying widget", "Error creating widget", "Loading widget")
FLIPBOOKS = [name for name, board in boards("en").items() if isinstance(board, Trial)]


@pytest.fixture(scope="module")
def saved(chrome, tmp_path_factory):  # noqa: F811
    """The gallery, run and saved, as bytes are that somebody else gets."""
    path = gallery.write(tmp_path_factory.mktemp("saved"))
    with serve(path) as server, browse(chrome, server, path.name) as lab:
        lab.run_all()
        gallery.output(lab.page, "zero_stages").locator("svg").first.wait_for()
        lab.save()
        path.write_text((server.root / path.name).read_text())
    return path


@pytest.fixture(scope="module")
def clone(chrome, saved):  # noqa: F811
    """It, as a fresh clone opens it: not trusted."""
    with serve(saved) as server, browse(chrome, server, saved.name) as lab:
        yield lab


@pytest.fixture(scope="module")
def reopened(chrome, saved):  # noqa: F811
    """It, trusted; no cell has been run."""
    with serve(saved) as server:
        server.trust(saved.name)
        with browse(chrome, server, saved.name) as lab:
            gallery.output(lab.page, "zero_stages").locator("svg").first.wait_for()
            yield lab


@pytest.fixture(scope="module")
def busy(chrome, tmp_path_factory):  # noqa: F811
    """The gallery, run, in a JupyterLab that sends widgets' messages to the one thread that runs
    cells."""
    settings = {
        "@jupyterlab/apputils-extension/kernels-settings": {"commsOverSubshells": "disabled"}
    }
    path = gallery.write(tmp_path_factory.mktemp("busy"))
    with serve(path, settings=settings) as server, browse(chrome, server, path.name) as lab:
        lab.run_all()
        gallery.output(lab.page, "zero_stages").locator("svg").first.wait_for()
        lab.execute("import time; time.sleep(60)")
        yield lab


def drawn(output):
    """The picture that is seen first."""
    return output.locator("svg:visible").first.inner_html()


def flips(lab, name):
    """The slider turns the pages back and forth, and says where it stands."""
    output = gallery.output(lab.page, name)
    slider = output.locator("[role=slider]").nth(where(name))
    before, value = drawn(output), slider.get_attribute("aria-valuetext")
    last = slider.evaluate("each => each.ariaValueNow === each.ariaValueMax")
    there, back = ("ArrowLeft", "ArrowRight") if last else ("ArrowRight", "ArrowLeft")
    slider.focus()
    for key, moved in ((there, True), (back, False)):
        lab.page.keyboard.press(key)
        until(lab, lambda moved=moved: (drawn(output) != before) == moved)
        assert (slider.get_attribute("aria-valuetext") != value) == moved


def where(name):
    """The place of the flipbook's slider among the handles of its board."""
    board = boards("en")[name]
    controls = [
        child for child in board.children[0].children if type(child).__name__ == "SelectionSlider"
    ]
    return controls.index(board.book.slider)


def until(lab, holds, timeout_s=5):
    """Waits until something holds."""
    for _ in range(int(20 * timeout_s)):
        if holds():
            return
        lab.page.wait_for_timeout(50)
    raise AssertionError("it did not come")


def zooms(lab):
    """A key of the trace viewer changes what its canvas shows, and another brings it back."""
    canvas = gallery.output(lab.page, "trace").locator("canvas")
    pixels = "each => each.toDataURL()"
    whole = canvas.evaluate(pixels)
    canvas.focus()
    for key, near in (("+", True), ("0", False)):
        lab.page.keyboard.press(key)
        until(lab, lambda near=near: (canvas.evaluate(pixels) != whole) == near)


@pytest.mark.parametrize("name", widgets.__all__)
def test_an_untrusted_clone_shows_a_picture_and_no_error(clone, name):
    output = gallery.output(clone.page, name)
    image = output.locator("img[src^='data:image/png']:visible").first
    image.wait_for()
    assert image.bounding_box()["width"] > 300
    assert output.locator(".jp-OutputArea-output :is(svg, canvas, script)").count() == 0
    assert not any(words in output.text_content() for words in FAULTS)


@pytest.mark.parametrize("name", widgets.__all__)
def test_a_trusted_one_shows_the_picture_without_having_been_run(reopened, name):
    output = gallery.output(reopened.page, name)
    output.locator("canvas:visible" if name == "trace" else "svg:visible").first.wait_for()
    assert output.locator(".jp-OutputArea-output img:visible").count() == 0
    until(reopened, lambda: not any(words in output.text_content() for words in FAULTS))
    if name in boards("en"):
        until(reopened, lambda: said(reopened, name) == list(handles(boards("en")[name])))
        before, inside = output.locator(".labkit-board").evaluate(BEFORE)
        assert "run the cell again" in before and inside == ["none"], (
            "one line in place of an icon at every widget"
        )


@pytest.mark.parametrize("name", FLIPBOOKS)
def test_a_trusted_one_flips_without_having_been_run(reopened, name):
    flips(reopened, name)


@pytest.mark.parametrize("name", FLIPBOOKS)
def test_a_busy_kernel_stops_no_slider(busy, name):
    flips(busy, name)
    assert busy.page.evaluate(STATUS) == "busy"


def test_the_trace_zooms_without_having_been_run_and_with_a_busy_kernel(reopened, busy):
    zooms(reopened)
    zooms(busy)
    assert busy.page.evaluate(STATUS) == "busy"
