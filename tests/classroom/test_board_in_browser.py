"""The board in a browser: two learners, one of whom passes while the instructor looks; both themes;
without a script too."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from browser.contrast import contrast
from classroom.seats import folder_in, put, seat, tried

from labkit.check.shared import content
from labkit.classroom.board_command import _site
from labkit.classroom.room_run import Folder

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
LEARNER = """
import sys
import labkit as lab
from labkit.check.shared import opting
from labkit.pipeline import check, schedules
opting.PATIENCE_S = 60.0
lab.progress(share=sys.argv[1])
def wrong(rank, num_ranks, num_microbatches):
    return ["0F0"]
def right(rank, num_ranks, num_microbatches):
    return [str(each) for each in schedules.one_f_one_b(num_ranks, num_microbatches).orders[rank]]
for name in sys.argv[2:]:
    print(check.better_order(globals()[name]).state)
"""
ENDED = "ERR_CONNECTION_REFUSED"
"""what a browser says of a site that has ended"""
COLOURS = """() => [...document.querySelectorAll('h1, h2, p, th, td, i, li, code, .soft, #stamp')]
.filter(each => each.innerText.trim()).map(each => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  let back = each, shade = [0, 0, 0, 0];
  while (back && !shade[3]) {
    const found = parse(getComputedStyle(back).backgroundColor);
    shade = found.length === 3 ? [...found, 1] : found;
    back = back.parentElement;
  }
  return [each.innerText, parse(getComputedStyle(each).color).slice(0, 3), shade.slice(0, 3)];
})"""


@pytest.fixture
def folder(tmp_path):
    """A board's folder."""
    return folder_in(tmp_path)


@pytest.fixture
def address(folder):
    """Where its page is served."""
    with _site(Folder(folder), 0) as site:
        worker = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05})
        worker.start()
        yield site.address
        site.shutdown()
        worker.join(10)


@pytest.fixture
def opened(chrome):
    """``opened(address, ...)``: a page; whatever it complains about fails the test."""
    contexts = []
    complaints = []

    def opened(address: str, **options: object) -> object:
        contexts.append(chrome.new_context(**options))
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda told: complaints.append(told.text))
        page.set_default_timeout(60_000)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [each for each in complaints if ENDED not in each] == []


def learn(tmp_path: Path, folder: Path, name: str, *answers: str) -> list[str]:
    """A learner in a kernel of their own: opts in and answers. The verdicts."""
    environment = os.environ | {
        "LABKIT_HOME": str(tmp_path / name),
        content.VARIABLE: str(folder),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", LEARNER, name, *answers]
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=100
    )
    return told.stdout.split()


def test_two_learners_are_seen_and_one_passes_before_the_instructors_eyes(
    tmp_path, folder, address, opened
):
    assert learn(tmp_path, folder, "Ada", "wrong", "wrong", "wrong") == ["wrong"] * 3
    assert learn(tmp_path, folder, "Bo", "right") == ["passed"]
    page = opened(address)
    page.evaluate("window.loadedOnce = true")
    rows = page.locator(".room tbody tr")
    assert rows.locator("th").all_inner_texts() == ["Ada", "Bo"]
    assert rows.nth(0).locator("i.passed").count() == 0
    assert rows.nth(1).locator("i.passed").count() == 1
    stuck = page.locator(".stuck li")
    assert "better_order" in stuck.inner_text() and "Ada 3 attempts" in stuck.inner_text()
    assert "the best order has" in stuck.inner_text()
    learn(tmp_path, folder, "Ada", "right")
    rows.nth(0).locator("i.passed").wait_for()
    stuck.wait_for(state="detached")
    assert "2 / 2" in page.locator("#exercises + .scroll").inner_text()
    assert page.evaluate("window.loadedOnce")
    put(folder, seat("Cy <script>window.harmed = true</script>"[:40]))
    rows.nth(2).wait_for()
    assert not page.evaluate("Boolean(window.harmed)")


@pytest.mark.again
def test_a_board_that_has_ended_says_so(folder, opened):
    put(folder, seat("Ada", better_order=tried()))
    with _site(Folder(folder), 0) as site:
        worker = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05})
        worker.start()
        page = opened(site.address)
        site.shutdown()
        worker.join(10)
    page.locator("#stamp.late").wait_for()
    assert "Not up to date" in page.locator("#stamp").inner_text()


@pytest.mark.again
def test_without_a_script_the_page_asks_for_itself_again(folder, address, opened):
    put(folder, seat("Ada", better_order=tried()))
    page = opened(address, java_script_enabled=False)
    put(folder, seat("Bo"))
    page.get_by_text("Bo", exact=True).wait_for()


@pytest.mark.a_few(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 480])
def test_all_words_can_be_read_and_only_tables_scroll_sideways(
    folder, address, opened, scheme, width
):
    kind = {"NameError": 2}
    put(folder, seat("Ada", {"08": {"far": 1}}, better_order=tried("over budget", 5)))
    put(folder, seat("Maximiliana-Featherstonehaugh-Cholmondeley"[:40], waits=tried("passed", 9)))
    put(folder, seat("محمد", better_order=tried("wrong", 4, mistakes=kind)))
    put(folder, b"junk")
    viewport = {"width": width, "height": 800}
    page = opened(address, color_scheme=scheme, viewport=viewport)
    rows = page.evaluate(COLOURS)
    assert len(rows) > 20
    weak = [row for row in rows if contrast(row[1], row[2]) < 4.5]
    assert weak == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
