"""Does a picture show what its data say? Shares read back from the pixels of every picture, beside
the data.

    python benchmarks/truth.py [--json] [--only WORD]

Every function that makes a picture, and every board, is painted at several settings: its SVG by
Chromium on a light and a dark page, its PNG by matplotlib, the trace viewer on its canvas.
num_shares counts the lengths that were read off the pixels: of time, bytes, values, each as a share
of an axis, of a whole, or of the largest; largest_error is the largest difference from the data, in
percentage points. What claims no quantity stands in EXCUSED, with the reason.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from browser.boards import BOARDS
from browser.bucket_pictures import BUCKETS
from browser.exhibits import PICTURES, Case, Page
from browser.mesh_pictures import MESHES
from browser.painted import THEMES, Painted, by_chromium, by_matplotlib, chromium
from browser.plan_pictures import PLANS
from browser.queue_pictures import QUEUES
from browser.ring_pictures import RINGS
from report import tell

MEASURED = PICTURES | BOARDS | BUCKETS | MESHES | PLANS | QUEUES | RINGS
EXCUSED = {
    "case_studies.drawn": "drawn by planner.memory_bars, where it is measured",
    "cluster.matrix": "each box's number stands in it in digits, and no test reads the fills off a "
    "painting yet",
    "collectives.network": "thick, thin and broken lines put links in an order; the numbers stand "
    "there in words",
    "collectives.topology": "boxes of one size are counted; nothing is as long as a number",
    "debugging.all_reduced": "numbers stand in boxes of one size, in digits",
    "debugging.calls": "boxes of one size are counted: which call met which; no quantity",
    "overview.six": "boxes of one size, coloured by whose numbers they hold; no quantity",
    "pictures.diagnosis": "who waits for whom: states and arrows, no quantity",
    "pictures.renamed": "the same picture under another heading",
    "your_own.operators": "boxes of one size, one for each operator; which are kept has a colour, "
    "and what was counted by hand stands in boxes as wide as its bytes, in digits",
    "widgets.report": "shows pictures.diagnosis",
    "widgets.show": "shows any picture as it is",
    "widgets.accelerate_workflow": "calls are words in boxes of one size; what was counted stands "
    "there in digits",
    "accelerate.update": "the picture of widgets.accelerate_workflow",
    "accelerate.draw_deal": "numbered samples in boxes of one size; no quantity",
    "data_parallel.scheme": "who holds what, in boxes of one size; no quantity",
    "case_studies.net_on": "who has which part, in boxes of one size, filled by its share",
    "planner.ways": "who holds what, in the boxes of planner.holders, and what travels",
    "planner.holders": "one of the two pictures of widgets.strategies, where it is measured",
    "tensor_parallel.layer": "the upper picture of widgets.tensor_parallelism, where it is "
    "measured",
    "mesh_3d.grid": "boxes of one size in their places, coloured by group, and lines between them; "
    "no quantity",
    "mesh_3d.beside": "panels of scene.compare, measured as pictures.compare",
    "zero.drawn": "the order of a step: an action on one layer is one unit wide, no quantity",
    "mesh_3d.memory": "drawn by pictures.bars, where it is measured",
    "widgets.three_d_parallelism": "drawn by mesh_3d.grid, and by pictures.timeline and "
    "pictures.bars, where they are measured",
    "zero.whole_layers": "drawn by pictures.curves, where it is measured",
    "zero.times": "the second picture of widgets.offload_flow; each bar's time stands on it in "
    "digits, and no test reads the lengths off a painting yet",
    "plan.layouts": "drawn by pictures.curves, where it is measured",
    "widgets.ring_attention": "drawn by long_context.table and pictures.timeline, where they are "
    "measured",
    "widgets.experts": "drawn by pictures.bars and pictures.timeline, where they are measured",
    "widgets.how_often": "drawn by pictures.curves, where it is measured",
    "widgets.batching": "drawn by serving.slots, where it is measured",
    "widgets.kv_cache": "drawn by pictures.shards, where it is measured",
    "widgets.large_batch": "drawn by pictures.curves, where it is measured",
    "widgets.scaling": "drawn by pictures.curves and pictures.bars, where they are measured",
    "widgets.moments": "a page for each moment, drawn by sharding.layers",
    "precision.step": "each box's bytes stand beside it in digits, and no test reads heights off a "
    "painting yet",
    "scaling.efficiency": "drawn by pictures.curves, where it is measured",
    "scaling.lost": "drawn by pictures.bars, where it is measured",
    "widgets.bottlenecks": "drawn by pictures.compare, where it is measured",
    "profiling.advice": "the picture of pictures.compare, where it is measured",
    "profiling.pair": "the picture of pictures.compare, where it is measured",
    "painters.merged": "a painter's level of detail: pictures.timeline is measured with 8,000 "
    "boxes",
}
"""Pictures that claim no quantity, and what makes no picture of its own. ``browser.makers`` finds
all pictures and boards by walking the package: a new one is measured, or stands here by name."""


PAINTERS = (
    *itertools.product(("SVG",), THEMES),
    ("matplotlib", "light"),
    *itertools.product(("HTML",), THEMES),
)
"""(renderer, theme) of every column of paintings"""


def errors(case: Case, painted: Painted) -> list[float]:
    """How far each length of a painting is from the data, in percentage points."""
    return [100 * abs(shown - true) for shown, true in case.read(painted)]


def painted_by(
    shoot: object, cases: Sequence[Case], renderer: str, theme: str
) -> list[tuple[Case, Painted]]:
    """The cases that a renderer can paint, painted."""
    ours = [case for case in cases if not isinstance(case.drawn, Page)]
    if renderer == "matplotlib":
        return [(case, by_matplotlib(case.drawn)) for case in ours]
    if renderer == "SVG":
        paintings = by_chromium(shoot, [case.drawn for case in ours], theme)
        return list(zip(ours, paintings, strict=True))
    pages = [case for case in cases if isinstance(case.drawn, Page)]
    return [(case, _by_browser(shoot, case.drawn, theme)) for case in pages]


def _by_browser(shoot: object, page: Page, theme: str) -> Painted:
    """What a browser alone can show."""
    pixels = shoot(page.html, page.selector, theme)[page.index]
    return Painted(pixels=pixels, renderer="html", theme=theme)


def row(picture: str, renderer: str, theme: str, painted: Sequence[tuple[Case, Painted]]) -> dict:
    """One line of the table."""
    found: list[float] = []
    for case, each in painted:
        found += errors(case, each)
    return {
        "picture": picture,
        "renderer": renderer,
        "theme": theme,
        "num_shares": len(found),
        "largest_error": round(float(np.max(found)), 2),
    }


def rows(only: str = "") -> Iterator[dict]:
    """A row per picture, renderer and theme."""
    with chromium() as shoot:
        for picture in (each for each in MEASURED if only in each):
            cases = list(MEASURED[picture]())
            for renderer, theme in PAINTERS:
                painted = painted_by(shoot, cases, renderer, theme)
                if painted:
                    yield row(picture, renderer, theme, painted)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="pictures whose name holds this word")
    given = parser.parse_args()
    tell(rows(given.only), given.json)


if __name__ == "__main__":
    main()
