"""Widgets in a real JupyterLab and Chromium: pictures move, real ranks run and stop, every theme
can be read."""

import io
import os
from pathlib import Path

import matplotlib.image
import nbformat
import numpy as np
import pytest
from browser.lab import browse, browser, chromium, serve

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
CHAPTER = Path(__file__).resolve().parents[2] / "notebooks" / "08_pipeline_parallel.ipynb"
BOARD = ".jp-OutputArea-output:has(button:has-text('Run it on real ranks'))"
BOARD_CELL = "from labkit import widgets\nboard = widgets.pipeline_parallelism()\nboard"
LAUNCH_CELL = """import time
import labkit as lab
from labkit import widgets
from labkit.launching import rank

def endless():
    for step in range(300):
        rank.current().progress(step=step)
        time.sleep(0.1)

lab.launch(endless, ranks=2)"""
COLOURS = """svg => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  let back = svg, shade = [0, 0, 0, 0];
  while (back && !shade[3]) {
    const found = parse(getComputedStyle(back).backgroundColor);
    shade = found.length === 3 ? [...found, 1] : found;
    back = back.parentElement;
  }
  return [parse(getComputedStyle(svg).fill).slice(0, 3), shade.slice(0, 3)];
}"""


@pytest.fixture(scope="module")
def chrome():
    """A running Chromium: without one these tests are skipped, but on CI they fail."""
    if chromium() is None:
        words = "no chromium, chromium-browser or google-chrome on the PATH"
        pytest.fail(words) if os.environ.get("CI") else pytest.skip(words)
    with browser() as running:
        yield running


def notebook(folder, *cells, name="board.ipynb"):
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    written = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=metadata
    )
    nbformat.write(written, folder / name)
    return folder / name


@pytest.fixture(scope="module")
def opened(chrome, tmp_path_factory):
    """Chapter 08, run from top to bottom."""
    path = CHAPTER if CHAPTER.exists() else notebook(tmp_path_factory.mktemp("board"), BOARD_CELL)
    with serve(path) as server, browse(chrome, server, path.name) as lab:
        lab.run_all(timeout_s=240)
        lab.page.wait_for_selector(f"{BOARD} svg", timeout=60_000)
        yield lab


def title(board):
    return board.locator("svg title").first.text_content()


def slider(board, name):
    return board.locator(f".widget-hslider:has-text('{name}') .noUi-handle")


def comes(lab, board, words, timeout_s=20):
    """Waits until the picture's title holds the words."""
    board.locator(f"svg title:has-text('{words}')").first.wait_for(
        state="attached", timeout=1000 * timeout_s
    )
    return title(board)


def first_board(lab):
    board = lab.page.locator(BOARD).first
    board.scroll_into_view_if_needed()
    return board


def pixels(board):
    return matplotlib.image.imread(io.BytesIO(board.locator("svg").first.screenshot()))


def contrast(colour, background):
    """The contrast ratio of WCAG 2.1."""

    def luminance(rgb):
        c = np.array(rgb) / 255
        return float(
            np.where(c <= 0.03928, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
            @ [0.2126, 0.7152, 0.0722]
        )

    light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_picture_moves_with_the_keyboard(opened):
    board = first_board(opened)
    before, drawn = title(board), pixels(board)
    handle = slider(board, "microbatches")
    count = before.split(" microbatches")[0].split()[-1]
    handle.focus()
    opened.page.keyboard.press("ArrowRight")
    after = comes(opened, board, f"{int(count) + 1} microbatches")
    assert after != before
    moved = pixels(board)
    assert moved.shape != drawn.shape or np.abs(moved - drawn).mean() > 0.01
    opened.page.keyboard.press("ArrowLeft")
    assert comes(opened, board, f"{count} microbatches") == before


def test_another_schedule_is_drawn_and_every_microbatch_count_follows_it(opened):
    board = first_board(opened)
    board.locator("select").first.select_option("Interleaved zero bubble")
    comes(opened, board, "Interleaved zero bubble, 4 ranks, 8 microbatches")
    slider(board, "microbatches").focus()
    for _ in range(4):
        opened.page.keyboard.press("ArrowRight")
    comes(opened, board, "Interleaved zero bubble, 4 ranks, 12 microbatches")
    for _ in range(4):
        opened.page.keyboard.press("ArrowLeft")
    board.locator("select").first.select_option("GPipe")
    comes(opened, board, "GPipe, 4 ranks, 8 microbatches")


def test_where_torch_refuses_the_button_is_off_and_says_why(opened):
    board = first_board(opened)
    slider(board, "microbatches").focus()
    board.locator("select").first.select_option("1F1B")
    comes(opened, board, "1F1B, 4 ranks, 8 microbatches")
    for _ in range(6):
        opened.page.keyboard.press("ArrowLeft")
    comes(opened, board, "1F1B, 4 ranks, 2 microbatches")
    board.locator("text=fewer than 4 stages").wait_for(timeout=20_000)
    assert board.locator("button:has-text('Run it')").is_disabled()
    for _ in range(6):
        opened.page.keyboard.press("ArrowRight")
    board.locator("select").first.select_option("GPipe")
    comes(opened, board, "GPipe, 4 ranks, 8 microbatches")


def test_the_button_runs_real_ranks_and_lays_the_measured_timeline_under_the_predicted_one(opened):
    board = first_board(opened)
    board.locator("button:has-text('Run it'):enabled").click()
    board.locator("button:has-text('Stop')").wait_for(timeout=60_000)
    comes(opened, board, "measured", timeout_s=120)
    words = board.locator("svg").first.text_content()
    assert "measured" in words and "paced" in words and "gloo" in words
    assert board.locator("text=All ranks together idle").count() == 1
    board.locator("button:has-text('Stop')").wait_for(state="detached", timeout=20_000)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_theme_can_be_read(opened, dark):
    opened.dark(dark)
    board = first_board(opened)
    colour, background = board.locator("svg").first.evaluate(COLOURS)
    assert contrast(colour, background) > 7
    assert (sum(background) < 200) == dark
    opened.dark(False)


def test_collectives_and_buckets_step_play_and_run(chrome, tmp_path):
    path = notebook(
        tmp_path,
        "from labkit import widgets\nwidgets.collectives()",
        "widgets.ddp_communication('zh')",
    )
    with serve(path) as server, browse(chrome, server, path.name) as lab:
        lab.run_all()
        board = first_board(lab)
        comes(lab, board, "All-reduce: Ring, 4 ranks: step 0 of 6")
        slider(board, "step").focus()
        lab.page.keyboard.press("ArrowRight")
        comes(lab, board, "step 1 of 6")
        board.locator(".widget-play button").first.click()
        comes(lab, board, "step 6 of 6")
        board.locator("select").first.select_option("All-reduce: Tree")
        comes(lab, board, "All-reduce: Tree, 4 ranks")
        board.locator("button:has-text('Run it'):enabled").click()
        board.locator("svg >> nth=1").wait_for(timeout=60_000)
        assert "paced links" in board.locator("svg").nth(1).text_content()
        assert "Measured:" in board.text_content()
        ddp = lab.page.locator(".jp-OutputArea-output:has(select:has-text('6 个等大的层'))").first
        ddp.scroll_into_view_if_needed()
        before = comes(lab, ddp, "个桶，4 个 rank")
        assert before.startswith("6 ")
        slider(ddp, "桶").focus()
        lab.page.keyboard.press("ArrowRight")
        comes(lab, ddp, "3 个桶")
        ddp.locator("button:enabled").last.click()
        comes(lab, ddp, "实测", timeout_s=60)


@pytest.fixture
def plain(chrome, tmp_path):
    """A board in a JupyterLab that sends widgets' messages to the one thread that runs cells, as
    older ones do."""
    settings = {
        "@jupyterlab/apputils-extension/kernels-settings": {"commsOverSubshells": "disabled"}
    }
    path = notebook(tmp_path, BOARD_CELL)
    with serve(path, settings=settings) as server, browse(chrome, server, path.name) as lab:
        lab.run_all()
        yield lab


def test_a_busy_kernel_freezes_no_picture_and_says_that_it_is_busy(plain):
    board = first_board(plain)
    comes(plain, board, "8 microbatches")
    plain.execute("import time; time.sleep(6)")
    plain.page.wait_for_timeout(300)
    slider(board, "microbatches").focus()
    for _ in range(3):
        plain.page.keyboard.press("ArrowRight")
    comes(plain, board, "11 microbatches", timeout_s=2)
    sign = board.locator("text=kernel busy")
    assert sign.count() == 0
    board.locator("select").first.select_option("1F1B")
    sign.first.wait_for(timeout=2000)
    assert title(board).startswith("GPipe")
    comes(plain, board, "1F1B, 4 ranks, 11 microbatches")
    sign.first.wait_for(state="detached", timeout=5000)


def test_a_running_launch_shows_a_line_per_rank_and_its_stop_button_stops_it(chrome, tmp_path):
    path = notebook(tmp_path, LAUNCH_CELL)
    with serve(path) as server, browse(chrome, server, path.name) as lab:
        lab.command("notebook:run-all-cells")
        stop = lab.page.locator("button:has-text('Stop')")
        stop.wait_for(timeout=60_000)
        lab.page.locator("pre:has-text('rank 1   running   step')").wait_for(timeout=20_000)
        stop.click()
        lab.wait_idle(timeout_s=15)
        words = lab.page.locator(".jp-OutputArea").text_content()
        assert "Stopped" in words and "2 ranks" in words
        assert lab.page.locator("button:has-text('Stop')").count() == 0
