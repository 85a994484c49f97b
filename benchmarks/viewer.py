"""How quick is the trace viewer? 40,000 and 400,000 boxes in JupyterLab in Chromium, with an idle
and a busy kernel.

    python benchmarks/viewer.py [--json] [--presses 40]

redraw_ms is one drawing of the whole trace; zoom_ms one of a window that a key has halved, moved or
doubled, by the page's own clock, 95th percentile. painted_ms runs from the key's event to the
second animation frame after it, so it holds up to two frames (33 ms) of waiting; share_error is the
largest difference between the share of a kind that the pixels show and the share in the data, over
all rows.
"""

import argparse
import io
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import matplotlib.image
import nbformat
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browser.lab import Page, browse, browser, serve
from report import tell

from labkit.pictures import scene
from labkit.timeline import COMPUTE, Timeline, from_columns
from labkit.widgets import viewer

HERE = os.path.dirname(os.path.abspath(__file__))
CELL = f"import sys\nsys.path.insert(0, {HERE!r})\nimport viewer\nfrom labkit import widgets\n"
BUSY = "import time\nend = time.time() + {}\nwhile time.time() < end: sum(range(1000))"
CANVAS = ".labkit-viewer canvas"
KEYS = ["+"] * 6 + ["ArrowRight", "ArrowLeft", "n", "p"] * 2 + ["-"] * 6
TIMED = """async ([key, selector]) => {
  const canvas = document.querySelector(selector), began = performance.now();
  canvas.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  return [performance.now() - began, Number(canvas.dataset.ms)];
}"""
COLOURS = {"compute": (0x4F, 0x9F, 0xE3), "optimizer": (0x43, 0xB0, 0x8A)}


def made(per: int) -> Timeline:
    """A trace of 8 ranks, each with ``per`` spans of random length and some rest between them."""
    rng = np.random.default_rng(0)
    num = 8 * per
    rank = np.repeat(np.arange(8), per)
    lasts = rng.lognormal(3, 1.2, num)
    gaps = rng.exponential(8, num)
    ends = np.concatenate([np.cumsum((lasts + gaps)[rank == r]) for r in range(8)])
    kinds = np.where(np.arange(num) % 3 == 2, "optimizer", "compute")
    names = [f"op{i % 200}" for i in range(num)]
    return from_columns(
        (rank, [COMPUTE] * num, kinds, names, ends - lasts, ends, [0] * num),
        num_ranks=8,
        origin="simulated",
    )


def measure(lab: Page, num_presses: int) -> dict:
    """Keys pressed one after the other; the times of each, in milliseconds."""
    whole: list[float] = []
    near: list[float] = []
    painted: list[float] = []
    for number in range(num_presses):
        if number % len(KEYS) == 0:
            painted_ms, drawn_ms = lab.page.evaluate(TIMED, ["0", CANVAS])
            whole.append(drawn_ms)
            painted.append(painted_ms)
        painted_ms, drawn_ms = lab.page.evaluate(TIMED, [KEYS[number % len(KEYS)], CANVAS])
        near.append(drawn_ms)
        painted.append(painted_ms)
    for _ in range(20):
        whole.append(lab.page.evaluate(TIMED, ["0", CANVAS])[1])
    return {"redraw_ms": p95(whole), "zoom_ms": p95(near), "painted_ms": p95(painted)}


def p95(times: list[float]) -> float:
    """The 95th percentile."""
    return round(statistics.quantiles(times, n=20)[-1], 1)


def share_error(lab: Page, per: int) -> float:
    """The largest difference of a kind's share on a rank, between pixels and data."""
    trace = made(per)
    lab.page.evaluate(TIMED, ["0", CANVAS])
    image = (
        matplotlib.image.imread(io.BytesIO(lab.page.locator(CANVAS).screenshot()))[..., :3] * 255
    )
    shown = scene.timeline(trace)
    worst = 0.0
    whole_us = shown.end_us - shown.start_us
    for rank, row in enumerate(viewer.about(shown)["rows"]):
        top = round(6 + row["top_px"])
        band = image[top : top + round(row["height_px"]), 64:-8]
        for kind in COLOURS:
            seen = float((nearest(band) == list(COLOURS).index(kind)).mean())
            mine = (trace.rank == rank) & (trace.kind == kind)
            true = float((trace.end_us - trace.start_us)[mine].sum()) / whole_us
            worst = max(worst, abs(seen - true))
    return round(worst, 4)


def nearest(band: np.ndarray) -> np.ndarray:
    """Which kind each pixel shows: its index in COLOURS, also where a box's right edge is darker;
    others for paper."""
    plain = np.array(list(COLOURS.values()), dtype=float)
    palette = np.concatenate(
        [plain, 0.65 * plain + 0.35 * np.array([16, 22, 31]), [[255, 255, 255]]]
    )
    found = np.abs(band[:, :, None, :] - palette).sum(axis=3).argmin(axis=2)
    return np.where(found < 2 * len(plain), found % len(plain), len(plain))


def rows(num_presses: int) -> Iterator[dict]:
    """One row per size and state of the kernel."""
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    with tempfile.TemporaryDirectory() as folder, browser() as chrome:
        for per in (5000, 50000):
            book = Path(folder, f"viewer{per}.ipynb")
            cells = [nbformat.v4.new_code_cell(f"{CELL}widgets.trace(viewer.made({per}))")]
            nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), book)
            with serve(book) as server, browse(chrome, server, book.name) as lab:
                lab.run_all()
                lab.page.wait_for_selector(f"{CANVAS}[data-ms]", timeout=120_000)
                error = share_error(lab, per)
                for kernel in ("idle", "busy"):
                    if kernel == "busy":
                        lab.execute(BUSY.format(60))
                        lab.page.wait_for_timeout(500)
                    yield {
                        "boxes": 8 * per,
                        "kernel": kernel,
                        **measure(lab, num_presses),
                        "share_error": error,
                    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--presses", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tell(rows(given.presses), given.json)


if __name__ == "__main__":
    main()
