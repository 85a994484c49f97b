"""From a key on a control to the painted picture, for every widget, in JupyterLab in Chromium.

    python benchmarks/widget.py [--json] [--presses 40] [--only collectives ...]

Each with an idle and with a busy kernel (a cell that computes). "flipped": the pages are in the
browser already; "drawn": the kernel draws, and a busy one shares its interpreter with the cell,
which misses the aim; the trace has 40,000 boxes. Keys come 0.3 s apart: what is drawn half a second
after a key is not in these times. Beside them a 4-rank GPipe timeline by ``interact`` and pyplot,
by ipympl and by plotly (``pip install '.[peers]'``; without them their rows are left out). A time
runs from the key's event to the second animation frame after the picture has changed, so it holds
up to two frames (33 ms) of waiting.
"""

import argparse
import importlib.util
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browser.lab import Page, browse, browser, serve
from report import tell

HERE = os.path.dirname(os.path.abspath(__file__))
BARS = """from labkit import pipeline
from ipywidgets import interact
def bars(microbatches):
    timeline = pipeline.simulate(pipeline.gpipe(4, microbatches))
    colours = ["#4f9fe3" if kind == "F" else "#f4954c" for kind in timeline.kind]
    return timeline.rank, timeline.end_us - timeline.start_us, timeline.start_us, colours
"""
PYPLOT = """%matplotlib inline
import matplotlib.pyplot as plt
def draw(microbatches=8):
    rank, times_us, start_us, colours = bars(microbatches)
    plt.figure(figsize=(9, 2.5))
    plt.barh(rank, times_us, left=start_us, color=colours, edgecolor="black")
    plt.show()
interact(draw, microbatches=(1, 16));"""
IPYMPL = """%matplotlib widget
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(9, 2.5))
def draw(microbatches=8):
    rank, times_us, start_us, colours = bars(microbatches)
    axes.clear()
    axes.barh(rank, times_us, left=start_us, color=colours, edgecolor="black")
    figure.canvas.draw_idle()
interact(draw, microbatches=(1, 16));"""
PLOTLY = """from plotly.graph_objects import Bar, FigureWidget
figure = FigureWidget(Bar(orientation="h"))
display(figure)
def draw(microbatches=8):
    rank, times_us, start_us, colours = bars(microbatches)
    with figure.batch_update():
        figure.data[0].update(y=rank, x=times_us, base=start_us, marker={"color": colours})
interact(draw, microbatches=(1, 16));"""
TRACE = f"import sys\nsys.path.insert(0, {HERE!r})\nimport viewer\nwidgets.trace(viewer.made(5000))"
CASES = [  # widget, how its picture comes, cell, label of the control (None: the picture itself)
    ("accelerate_workflow", "flipped", "widgets.accelerate_workflow()", "accumulation"),
    ("accelerate_workflow", "drawn", "widgets.accelerate_workflow()", "ranks"),
    ("collectives", "flipped", "widgets.collectives()", "step"),
    ("collectives", "drawn", "widgets.collectives()", "ranks (N)"),
    ("ddp_communication", "flipped", "widgets.ddp_communication()", "bucket (MiB)"),
    ("ddp_communication", "drawn", "widgets.ddp_communication()", "link (GB/s)"),
    ("fsdp_sharding", "flipped", "widgets.fsdp_sharding()", "moment"),
    ("fsdp_sharding", "drawn", "widgets.fsdp_sharding()", "blocks"),
    ("offload_flow", "flipped", "widgets.offload_flow()", "tokens per microbatch"),
    ("offload_flow", "drawn", "widgets.offload_flow()", "ranks"),
    ("pipeline_parallelism", "flipped", "widgets.pipeline_parallelism()", "microbatches (m)"),
    ("pipeline_parallelism", "drawn", "widgets.pipeline_parallelism()", "backward/forward"),
    ("strategies", "flipped", "widgets.strategies()", "strategy"),
    ("strategies", "drawn", "widgets.strategies()", "sequences per step"),
    ("training_need", "flipped", "widgets.training_need()", "model"),
    ("training_need", "drawn", "widgets.training_need()", "batch"),
    ("zero_stages", "flipped", "widgets.zero_stages()", "ranks"),
    ("zero_stages", "drawn", "widgets.zero_stages()", "stage"),
    ("batching", "flipped", "widgets.batching()", "requests a second"),
    ("batching", "drawn", "widgets.batching()", "slots"),
    ("bottlenecks", "flipped", "widgets.bottlenecks()", "how bad it is"),
    ("bottlenecks", "drawn", "widgets.bottlenecks()", "what is wrong"),
    ("moments", "flipped", "widgets.moments()", "moment"),
    ("experts", "flipped", "widgets.experts()", "how uneven the router is"),
    ("experts", "drawn", "widgets.experts()", "experts"),
    ("how_often", "flipped", "widgets.how_often()", "number of GPUs"),
    ("how_often", "drawn", "widgets.how_often()", "a save stops training for"),
    ("kv_cache", "flipped", "widgets.kv_cache()", "ranks"),
    ("kv_cache", "drawn", "widgets.kv_cache()", "cut"),
    ("large_batch", "flipped", "widgets.large_batch()", "batch (samples)"),
    ("ring_attention", "flipped", "widgets.ring_attention()", "round"),
    ("ring_attention", "drawn", "widgets.ring_attention()", "ranks"),
    ("scaling", "flipped", "widgets.scaling()", "a sample takes (ms)"),
    ("scaling", "drawn", "widgets.scaling()", "link (GB/s)"),
    ("tensor_parallelism", "flipped", "widgets.tensor_parallelism()", "moment"),
    ("tensor_parallelism", "drawn", "widgets.tensor_parallelism()", "ranks"),
    ("three_d_parallelism", "flipped", "widgets.three_d_parallelism()", "lit"),
    ("three_d_parallelism", "drawn", "widgets.three_d_parallelism()", "pipeline stages (pp)"),
    ("training_plan", "drawn", "widgets.training_plan()", "pipeline stages (pp)"),
    ("unequal_machines", "flipped", "widgets.unequal_machines()", "speeds of the ranks"),
    ("unequal_machines", "drawn", "widgets.unequal_machines()", "batch (samples)"),
    (
        "timeline",
        "drawn",
        "from labkit import pipeline\nwidgets.timeline(pipeline.simulate(pipeline.gpipe(4, 8)))",
        "window",
    ),
    ("trace", "trace", TRACE, None),
    ("interact with pyplot", "peer", BARS + PYPLOT, "microbatches"),
    ("ipympl", "peer", BARS + IPYMPL, "microbatches"),
    ("plotly", "peer", BARS + PLOTLY, "microbatches"),
]
STILL = {"architectures", "report", "show"}  # pictures without controls
AIM_MS = {"flipped": 40, "drawn": 80, "trace": 60}
BUSY = "import time\nend = time.time() + {}\nwhile time.time() < end: sum(range(1000))"
WATCH = """output => {
  let began = 0, last = '';
  window.painted = [];
  const numbers = new WeakMap();
  let count = 0;
  const numbered = page => numbers.get(page) ?? (numbers.set(page, ++count), count);
  const all = () => [...output.querySelectorAll('.widget-html-content:has(svg), img')];
  const changed = () => {
    if (!began) return;
    const start = began;
    began = 0;
    const done = () => window.painted.push(performance.now() - start);
    requestAnimationFrame(() => requestAnimationFrame(done));
  };
  const look = () => {
    const shown = all().filter(page => page.checkVisibility());
    const seen = shown.map(page => numbered(page) + (page.src || page.textContent)).join();
    if (!seen || seen === last) return;
    last = seen;
    changed();
  };
  for (const name of ['clearRect', 'drawImage']) {
    const own = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...given) {
      changed();
      return own.apply(this, given);
    };
  }
  output.querySelector('.js-plotly-plot')?.on('plotly_afterplot', changed);
  look();
  document.addEventListener('keydown', () => { began = performance.now() }, true);
  const everything = {subtree: true, childList: true, attributes: true, characterData: true};
  new MutationObserver(look).observe(output, everything);
}"""


def press(
    lab: Page, keys: tuple[str, str], num_presses: int, pause_ms: int, patience_s: float
) -> list[float]:
    """Presses two keys in turn; the time of each until it is painted, in milliseconds, up to one
    that is not."""
    times_ms: list[float] = []
    before = lab.page.evaluate("window.painted.length")
    for turn in range(num_presses):
        lab.page.keyboard.press(keys[turn % 2])
        try:
            painted = before + len(times_ms)
            lab.page.wait_for_function(
                "n => window.painted.length > n", arg=painted, timeout=1000 * patience_s
            )
        except Exception as error:
            if "Timeout" not in str(error):
                raise
            return times_ms
        times_ms.append(lab.page.evaluate("window.painted.at(-1)"))
        lab.page.wait_for_timeout(pause_ms)
    return times_ms


def focus(lab: Page, output: object, label: str | None) -> tuple[str, str]:
    """Gives the control of that label the keyboard; the two keys that move it there and back."""
    if label is None:
        output.locator("canvas").focus()
        return "+", "-"
    name = lab.page.locator(".widget-label", has_text=re.compile(f"^{re.escape(label)}$"))
    control = output.locator(".widget-inline-hbox").filter(has=name).last
    handle = control.locator(".noUi-handle, select").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    if control.locator("select").count():
        return (
            ("ArrowUp", "ArrowDown")
            if handle.evaluate("list => list.selectedIndex")
            else ("ArrowDown", "ArrowUp")
        )
    low, now, high = (
        float(handle.get_attribute(f"aria-value{name}")) for name in ("min", "now", "max")
    )
    return ("ArrowLeft", "ArrowRight") if now >= high > low else ("ArrowRight", "ArrowLeft")


def measure(running: object, case: tuple, num_presses: int, pause_ms: int) -> Iterator[dict]:
    """Two rows, idle and busy: opens the picture in a fresh server and presses its control's
    keys."""
    name, how, cell, label = case
    with tempfile.TemporaryDirectory(prefix="labkit-widget-") as folder:
        path = Path(folder) / "picture.ipynb"
        about = {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        }
        cells = [nbformat.v4.new_code_cell(f"from labkit import widgets\n{cell}")]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=about), path)
        with serve(path) as server, browse(running, server, path.name) as lab:
            lab.run_all()
            lab.page.wait_for_selector(
                ".jp-OutputArea-output :is(svg, img, canvas)", timeout=60_000
            )
            lab.page.wait_for_timeout(1000)
            output = lab.page.locator(".jp-Cell-outputArea").first
            lab.page.evaluate(WATCH, output.element_handle())
            keys = focus(lab, output, label)
            if len(press(lab, keys, 4, pause_ms, patience_s=20)) < 4:
                raise RuntimeError(f"{name}, {how}: the picture did not move with an idle kernel")
            for kernel in ("idle", "busy"):
                if kernel == "busy":
                    lab.execute(BUSY.format(5 + 1.5 * num_presses))
                    lab.page.wait_for_timeout(500)
                times_ms = press(lab, keys, num_presses, pause_ms, patience_s=5)
                yield {
                    "widget": name,
                    "picture": how,
                    "kernel": kernel,
                    **summary(times_ms, num_presses),
                    "aim_ms": AIM_MS.get(how),
                }


def summary(times_ms: list[float], num_presses: int) -> dict:
    """Median and 95th percentile; "frozen" where a key was not answered within five seconds."""
    if len(times_ms) < num_presses:
        return {"keys": len(times_ms), "median_ms": "frozen", "p95_ms": "frozen"}
    p95_ms = statistics.quantiles(times_ms, n=20)[-1]
    return {
        "keys": num_presses,
        "median_ms": round(statistics.median(times_ms), 1),
        "p95_ms": round(p95_ms, 1),
    }


def rows(only: list[str], num_presses: int, pause_ms: int) -> Iterator[dict]:
    """The rows of every case that is installed."""
    with browser() as running:
        for case in CASES:
            missing = case[0] in ("ipympl", "plotly") and not importlib.util.find_spec(case[0])
            if not missing and (not only or case[0] in only):
                yield from measure(running, case, num_presses, pause_ms)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print an array of rows")
    parser.add_argument(
        "--presses", type=int, default=40, help="keys per row (default: %(default)s)"
    )
    parser.add_argument(
        "--pause-ms", type=int, default=300, help="rest between keys (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="*", default=[], help="these widgets alone")
    chosen = parser.parse_args()
    tell(rows(chosen.only, chosen.presses, chosen.pause_ms), chosen.json)


if __name__ == "__main__":
    main()
