"""Widgets in a real JupyterLab and Chromium: pictures move, real ranks run and stop, every theme
can be read."""

import io
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from browser import gallery
from browser.contrast import COLOURS, contrast
from browser.fixtures import BUSY_COMMS

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420)]
CHAPTER = Path(__file__).resolve().parents[2] / "notebooks" / "08_pipeline_parallel.ipynb"
BOARD = ".jp-OutputArea-output:has(button:has-text('Run it on real ranks'))"
BOARD_CELL = "from labkit import widgets\nboard = widgets.pipeline_parallelism()\nboard"
FEW_CELL = BOARD_CELL.replace("()", "(num_microbatches=4)")
LAUNCH_CELL = """import time
import labkit as lab
from labkit import widgets
from labkit.launching import rank

def endless():
    for step in range(3000):
        rank.current().progress(step=step)
        time.sleep(0.1)

lab.launch(endless, ranks=2)"""


@pytest.fixture(scope="module", params=["cell", pytest.param("08", marks=pytest.mark.again)])
def chapter(opened, tmp_path_factory, request):
    """A notebook with the board of pipelines; or chapter 08, run from top to bottom."""
    cell = gallery.notebook(tmp_path_factory.mktemp("board"), FEW_CELL)
    path = CHAPTER if request.param == "08" else cell
    with opened(path) as lab:
        lab.run_all(timeout_s=240)
        lab.page.wait_for_selector(f"{BOARD} svg", timeout=60_000)
        yield lab


def title(board):
    return board.locator("svg title").first.text_content()


def slider(board, name):
    return board.locator(f".widget-hslider:has-text('{name}') .noUi-handle")


def comes(lab, board, words, timeout_s=60):
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


def test_the_picture_moves_with_the_keyboard(chapter):
    board = first_board(chapter)
    before = title(board)
    drawn = pixels(board)
    handle = slider(board, "microbatches")
    count = before.split(" microbatches")[0].split()[-1]
    handle.focus()
    chapter.page.keyboard.press("ArrowRight")
    after = comes(chapter, board, f"{int(count) + 1} microbatches")
    assert after != before
    moved = pixels(board)
    assert moved.shape != drawn.shape or np.abs(moved - drawn).mean() > 0.002
    chapter.page.keyboard.press("ArrowLeft")
    assert comes(chapter, board, f"{count} microbatches") == before


def test_another_schedule_is_drawn_and_every_microbatch_count_follows_it(chapter):
    board = first_board(chapter)
    board.locator("select").first.select_option("Interleaved zero bubble")
    comes(chapter, board, "Interleaved zero bubble, 4 ranks, 4 microbatches")
    slider(board, "microbatches").focus()
    for _ in range(4):
        chapter.page.keyboard.press("ArrowRight")
    comes(chapter, board, "Interleaved zero bubble, 4 ranks, 8 microbatches")
    for _ in range(4):
        chapter.page.keyboard.press("ArrowLeft")
    board.locator("select").first.select_option("GPipe")
    comes(chapter, board, "GPipe, 4 ranks, 4 microbatches")


def test_where_torch_refuses_the_button_is_off_and_says_why(chapter):
    board = first_board(chapter)
    slider(board, "microbatches").focus()
    board.locator("select").first.select_option("1F1B")
    comes(chapter, board, "1F1B, 4 ranks, 4 microbatches")
    for _ in range(2):
        chapter.page.keyboard.press("ArrowLeft")
    comes(chapter, board, "1F1B, 4 ranks, 2 microbatches")
    board.locator("text=fewer than 4 stages").wait_for(timeout=60_000)
    assert board.locator("button:has-text('Run it')").is_disabled()
    for _ in range(2):
        chapter.page.keyboard.press("ArrowRight")
    board.locator("select").first.select_option("GPipe")
    comes(chapter, board, "GPipe, 4 ranks, 4 microbatches")


def test_the_button_runs_real_ranks_and_lays_the_measured_timeline_under_the_predicted_one(chapter):
    board = first_board(chapter)
    board.locator("button:has-text('Run it'):enabled").click()
    board.locator("button:has-text('Stop')").wait_for(timeout=60_000)
    comes(chapter, board, "measured", timeout_s=120)
    words = board.locator("svg").first.text_content()
    assert "measured" in words and "paced" in words and "gloo" in words
    assert board.locator("text=Idle time of all ranks together").count() >= 1
    board.locator("button:has-text('Stop')").wait_for(state="detached", timeout=60_000)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_theme_can_be_read(chapter, dark):
    chapter.dark(dark)
    board = first_board(chapter)
    colour, background = board.locator("svg").first.evaluate(COLOURS)
    assert contrast(colour, background) > 7
    assert (sum(background) < 200) == dark
    chapter.dark(False)


@pytest.mark.again
def test_collectives_and_buckets_step_play_and_run(opened, tmp_path):
    path = gallery.notebook(
        tmp_path,
        "from labkit import widgets\nwidgets.collectives()",
        "widgets.ddp_communication('zh')",
    )
    with opened(path) as lab:
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


@pytest.mark.again
def test_a_busy_kernel_freezes_no_picture_and_says_that_it_is_busy(opened, tmp_path):
    with opened(gallery.notebook(tmp_path, BOARD_CELL), BUSY_COMMS) as lab:
        lab.run_all()
        board = first_board(lab)
        comes(lab, board, "8 microbatches")
        sign = board.locator("text=kernel busy")
        with lab.occupied():
            slider(board, "microbatches").focus()
            for _ in range(3):
                lab.page.keyboard.press("ArrowRight")
            comes(lab, board, "11 microbatches")
            assert sign.count() == 0
            board.locator("select").first.select_option("1F1B")
            sign.first.wait_for()
            assert title(board).startswith("GPipe")
        comes(lab, board, "1F1B, 4 ranks, 11 microbatches")
        sign.first.wait_for(state="detached")


def test_a_running_launch_shows_a_line_per_rank_and_its_stop_button_stops_it(opened, tmp_path):
    with opened(gallery.notebook(tmp_path, LAUNCH_CELL)) as lab:
        lab.command("notebook:run-all-cells")
        stop = lab.page.locator("button:has-text('Stop')")
        stop.wait_for(timeout=60_000)
        lab.page.locator("pre:has-text('rank 1   running   step')").wait_for(timeout=60_000)
        stop.click()
        lab.wait_idle(timeout_s=60)
        words = lab.page.locator(".jp-OutputArea").text_content()
        assert "Stopped" in words and "2 ranks" in words
        assert lab.page.locator("button:has-text('Stop')").count() == 0
