"""The trace viewer in JupyterLab in Chromium: 40,000 boxes zoomed, asked and measured without the
kernel."""

import io

import matplotlib.image
import numpy as np
import pytest
from browser import gallery

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
CELL = """import numpy as np
from labkit import widgets
from labkit.timeline import from_columns
rng, ranks, per = np.random.default_rng(0), 8, {per}
rank, lasts = np.repeat(np.arange(ranks), per), rng.lognormal(3, 1.2, ranks * per)
ends = np.concatenate([np.cumsum((lasts + 8)[rank == r]) for r in range(ranks)])
comm = np.arange(ranks * per) % 4 == 3
lanes, kinds = np.where(comm, "comm", "compute"), np.where(comm, "all_reduce", "compute")
names = [f"op{{i % 200}}" for i in range(ranks * per)]
columns = rank, lanes, kinds, names, ends - lasts, ends, np.where(comm, 4096, 0)
board = widgets.trace(from_columns(columns, num_ranks=ranks, origin="simulated"))
board"""
COMPUTING = "sum(range(1000))"
HEADS = slice(0, 60), slice(20, 60), slice(0, 3)
"""Where the names of ranks stand in a picture of the canvas."""


@pytest.fixture(scope="module")
def viewed(opened, tmp_path_factory):
    """A notebook with 40,000 boxes, run."""
    cell = CELL.format(per=5000)
    with opened(gallery.notebook(tmp_path_factory.mktemp("viewer"), cell)) as lab:
        lab.run_all()
        lab.page.wait_for_selector(".labkit-viewer canvas[data-ms]", timeout=60_000)
        yield lab


def drawn_ms(lab):
    lab.page.wait_for_timeout(150)
    return float(lab.page.locator(".labkit-viewer canvas").get_attribute("data-ms"))


def shot(lab):
    pixels = lab.page.locator(".labkit-viewer canvas").screenshot()
    return matplotlib.image.imread(io.BytesIO(pixels))


@pytest.mark.again
def test_forty_thousand_boxes_are_zoomed_asked_and_measured_without_the_kernel(viewed):
    assert drawn_ms(viewed) < 600, "ten times the bound; the exact figure is a benchmark's"
    with viewed.occupied(COMPUTING):
        zooms(viewed)
        walks(viewed)
        measures(viewed)
        searches(viewed)


def zooms(lab):
    whole = shot(lab)
    lab.page.locator(".labkit-viewer canvas").focus()
    for _ in range(9):
        lab.page.keyboard.press("+")
    assert drawn_ms(lab) < 250
    lab.until(lambda: np.abs(shot(lab) - whole).mean() > 0.01)


def walks(lab):
    """n goes to the next box, p to the one before, and each says what it is."""
    said = lab.page.locator(".labkit-viewer .said")
    lab.page.keyboard.press("n")
    lab.until(lambda: "rank" in said.text_content() and "us" in said.text_content())
    first = said.text_content()
    lab.page.keyboard.press("n")
    lab.until(lambda: said.text_content() != first)
    lab.page.keyboard.press("p")
    lab.until(lambda: said.text_content() == first)


def measures(lab):
    """A window that is brushed shows each rank's shares of it."""
    box = lab.page.locator(".labkit-viewer canvas").bounding_box()
    lab.page.mouse.move(box["x"] + 300, box["y"] + 20)
    lab.page.mouse.down()
    lab.page.mouse.move(box["x"] + 500, box["y"] + 60, steps=5)
    lab.page.mouse.up()
    cells = lab.page.locator(".labkit-viewer table td")
    cells.first.wait_for()
    shares = [float(words.split()[0]) for words in cells.all_text_contents()]
    assert len(shares) == 16 and 0 < max(shares) <= 100


def searches(lab):
    said = lab.page.locator(".labkit-viewer .said")
    lab.page.locator(".labkit-viewer input").fill("op17")
    lab.until(lambda: said.text_content().split()[0].isdigit())
    lab.page.keyboard.press("Escape")


@pytest.mark.again
def test_it_follows_the_theme_while_it_is_open(viewed):
    light = shot(viewed)[HEADS]
    with viewed.theme(dark=True):
        viewed.until(lambda: np.median(shot(viewed)[HEADS]) < 0.3)
        dark = shot(viewed)[HEADS]
    assert np.median(light) > 0.9
    assert light.min() < 0.4 and dark.max() > 0.6, (
        "names of ranks are dark on light and light on dark"
    )


@pytest.mark.again
def test_every_control_has_a_name_for_a_screen_reader(viewed):
    controls = ".labkit-viewer button, .labkit-viewer input, .labkit-viewer canvas"
    read = "all => all.map(each => each.getAttribute('aria-label'))"
    names = viewed.page.locator(controls).evaluate_all(read)
    assert len(names) == 11 and all(names) and len(set(names)) == 11
