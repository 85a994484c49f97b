"""From a key on a slider to the painted picture, in JupyterLab in Chromium: ``python benchmarks/widget.py [--json]``.

Three pictures of the same 4-rank GPipe timeline, each with an idle and with a busy kernel (a cell that computes):
labkit's pages that the browser flips, labkit's picture that the kernel draws, and ``interact`` with pyplot. A time runs
from the key's event in the page to the second animation frame after the picture in the page has changed.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browser.lab import Page, browse, browser, serve

BOARD = "from labkit import widgets\nwidgets.pipeline_parallelism()"
INTERACT = """%matplotlib inline
import matplotlib.pyplot as plt
from ipywidgets import interact
from labkit import schedule, simulate

def draw(microbatches=8):
    timeline = simulate.simulate(schedule.gpipe(4, microbatches))
    plt.figure(figsize=(9, 2.5))
    colours = ["tab:blue" if kind == "F" else "tab:orange" for kind in timeline.kind]
    times_us = timeline.end_us - timeline.start_us
    plt.barh(timeline.rank, times_us, left=timeline.start_us, color=colours, edgecolor="black")
    plt.show()

interact(draw, microbatches=(1, 16));"""
CASES = {  # picture -> cell, and the slider that moves it
    "flipped by the browser": (BOARD, "microbatches"),
    "drawn by the kernel": (BOARD, "backward/forward"),
    "interact with pyplot": (INTERACT, "microbatches"),
}
BUSY = "import time\nend = time.time() + {}\nwhile time.time() < end: sum(range(1000))"
WATCH = """output => {
  const seen = () => (output.querySelector('svg title')?.textContent || '') + (output.querySelector('img')?.src || '');
  let last = seen(), began = 0;
  window.painted = [];
  document.addEventListener('keydown', () => { began = performance.now() }, true);
  new MutationObserver(() => {
    if (!began || seen() === last || !seen()) return;
    last = seen();
    const start = began;
    began = 0;
    requestAnimationFrame(() => requestAnimationFrame(() => window.painted.push(performance.now() - start)));
  }).observe(output, {subtree: true, childList: true, attributes: true, characterData: true});
}"""


def press(lab: Page, num_presses: int, pause_ms: int, patience_s: float) -> list[float]:
    """Presses right and left in turn; the time of each until it is painted, in milliseconds, up to one that is not."""
    times_ms: list[float] = []
    before = lab.page.evaluate("window.painted.length")
    for turn in range(num_presses):
        lab.page.keyboard.press("ArrowLeft" if turn % 2 else "ArrowRight")
        try:
            painted = before + len(times_ms)
            lab.page.wait_for_function("n => window.painted.length > n", arg=painted, timeout=1000 * patience_s)
        except Exception as error:
            if "Timeout" not in str(error):
                raise
            return times_ms
        times_ms.append(lab.page.evaluate("window.painted.at(-1)"))
        lab.page.wait_for_timeout(pause_ms)
    return times_ms


def measure(running: object, name: str, *, busy: bool, num_presses: int, pause_ms: int) -> dict:
    """One row: opens the picture in a fresh server and presses its slider's keys."""
    cell, slider = CASES[name]
    with tempfile.TemporaryDirectory(prefix="labkit-widget-") as folder:
        path = Path(folder) / "picture.ipynb"
        about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)], metadata=about), path)
        with serve(path) as server, browse(running, server, path.name) as lab:
            lab.run_all()
            output = lab.page.wait_for_selector(".jp-OutputArea-output:has(svg, img)")
            lab.page.evaluate(WATCH, output)
            lab.page.locator(f".widget-hslider:has-text('{slider}') .noUi-handle").first.focus()
            warm = press(lab, 4, pause_ms, patience_s=20)
            if len(warm) < 4:
                raise RuntimeError(f"{name}: the picture did not move with an idle kernel")
            if busy:
                lab.execute(BUSY.format(5 + 1.5 * num_presses))
                lab.page.wait_for_timeout(500)
            times_ms = press(lab, num_presses, pause_ms, patience_s=5)
    row = {"picture": name, "kernel": "busy" if busy else "idle", "num_presses": len(times_ms)}
    if len(times_ms) < num_presses:
        return row | {"median_ms": None, "p95_ms": None, "frozen": True}
    p95_ms = statistics.quantiles(times_ms, n=20)[-1]
    return row | {"median_ms": round(statistics.median(times_ms), 1), "p95_ms": round(p95_ms, 1), "frozen": False}


def main() -> None:
    """Measures every picture, idle and busy in turn, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print an array of rows")
    parser.add_argument("--presses", type=int, default=40, help="keys per row (default: %(default)s)")
    parser.add_argument("--pause-ms", type=int, default=400, help="rest between keys (default: %(default)s)")
    chosen = parser.parse_args()
    with browser() as running:
        rows = [measure(running, name, busy=busy, num_presses=chosen.presses, pause_ms=chosen.pause_ms)
                for name in CASES for busy in (False, True)]
    if chosen.json:
        print(json.dumps(rows, indent=1))
        return
    print("| picture | kernel | keys | median, ms | p95, ms |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        times = "| frozen | frozen |" if row["frozen"] else f"| {row['median_ms']} | {row['p95_ms']} |"
        print(f"| {row['picture']} | {row['kernel']} | {row['num_presses']} {times}")


if __name__ == "__main__":
    main()
