"""Every widget of ``labkit.widgets`` in one notebook: a cell each, named after the function.

A board, found by walking the subjects, is called with nothing: the first cell names the language.
What asks for more than that has words of its own in CALLS.
"""

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import ipywidgets as w
import nbformat

from labkit import widgets
from labkit.pipeline import schedules, simulation
from labkit.widgets import gallery

SETUP = """import labkit as lab
from labkit import collectives, pipeline, widgets
from labkit.launching import rank
from labkit.pictures import scene

lab.begin({language!r})
predicted = pipeline.simulate(pipeline.SCHEDULES["1f1b"](3, 4))
halves = pipeline.simulate(pipeline.SCHEDULES["zbv"](3, 4))
plans = {{name: collectives.plan("all_reduce", name, 8) for name in ("ring", "tree")}}

def fail():
    if rank.current().rank == 1:
        raise RuntimeError("out of luck")"""
BOARDS = "LABKIT_TEST_BOARDS"
CALLS = {
    "architectures": "widgets.show(widgets.architectures(plans, 4))",
    "report": "try:\n    lab.launch(fail, ranks=2)\nexcept lab.RankFailed as error:\n"
    "    widgets.report(error)",
    "show": "widgets.show(scene.timeline(halves))",
    "timeline": "widgets.timeline(predicted)",
    "trace": "widgets.trace(predicted)",
}
FEW = {
    *("report", "show", "timeline", "trace", "collectives", "experts", "fsdp_sharding"),
    *("offload_flow", "pipeline_parallelism", "tensor_parallelism", "training_plan", "zero_stages"),
}
"""What ``make test`` shows of them: it says LABKIT_TEST_BOARDS=few; ``make test-all`` shows all."""
SHOWN = [name for name in widgets.__all__ if name in FEW or not os.environ.get(BOARDS)]
CELLS = {name: CALLS.get(name, f"widgets.{name}()") for name in SHOWN}
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
METADATA = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def notebook(folder: Path, *cells: str, name: str = "board.ipynb") -> Path:
    """A notebook of these code cells."""
    written = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=METADATA
    )
    nbformat.write(written, folder / name)
    return folder / name


def write(folder: Path, language: str = "en") -> Path:
    """The notebook of all widgets."""
    cells = (SETUP.format(language=language), *CELLS.values())
    return notebook(folder, *cells, name=f"gallery_{language}.ipynb")


def missing(saved: str) -> set[str]:
    """Widgets that a saved notebook shows, or that another of its widgets holds, and whose state it
    does not have."""
    written = json.loads(saved)
    widgets_kept = written["metadata"].get("widgets", {}).get(STATE, {"state": {}})["state"]
    held = re.findall(r'"IPY_MODEL_(\w+)"', json.dumps(widgets_kept))
    shown = [
        output["data"][VIEW]["model_id"]
        for cell in written["cells"]
        for output in cell.get("outputs", ())
        if VIEW in output.get("data", {})
    ]
    return {*held, *shown} - set(widgets_kept)


def place(name: str) -> int:
    """Which code cell of the notebook shows a widget."""
    return 1 + list(CELLS).index(name)


def output(page: object, name: str) -> object:
    """Where a widget's output stands in an opened notebook: Playwright's locator."""
    return page.locator(".jp-CodeCell").nth(place(name)).locator(".jp-Cell-outputArea")


@functools.cache
def boards(language: str) -> dict[str, w.Widget]:
    """Every board of the gallery, made here: what the browser should say."""
    predicted = simulation.simulate(schedules.SCHEDULES["1f1b"](3, 4))
    made = {name: make(language) for name, make in _makers().items()}
    made["timeline"] = widgets.timeline(predicted, language=language)
    made["trace"] = widgets.trace(predicted, language=language)
    return made


def is_board(make: Callable) -> bool:
    """Whether a public function of a board's file makes a board: it needs nothing but the
    language."""
    return next(iter(inspect.signature(make).parameters)) == "language"


def _makers() -> dict[str, Callable]:
    """What makes each board, by its name."""
    found = gallery.boards().items()
    return {name: make for name, make in found if name in CELLS and is_board(make)}


def made_of(kind: type) -> list[str]:
    """Names of the boards that are of a kind, told by what makes them; none is made."""
    return [
        name
        for name, make in _makers().items()
        if issubclass(inspect.signature(make).return_annotation, kind)
    ]


def handles(board: w.Widget, words: tuple[str, str] = ("from", "to")) -> Iterator[tuple[str, str]]:
    """(name, value text) of each slider handle of a board, in the order of the page."""
    for widget in _all_of(board):
        if isinstance(widget, w.SelectionSlider):
            yield widget.description, widget.options[widget.index][0]
        elif isinstance(widget, w.SelectionRangeSlider):
            for word, index in zip(words, widget.index, strict=True):
                yield f"{widget.description}: {word}", widget.options[index][0]


def _all_of(widget: w.Widget) -> Iterator[w.Widget]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from _all_of(child)


def said(page: object, name: str) -> list[tuple[str, str]]:
    """(name, value text) of each slider handle of a widget in the page."""
    read = """all => all.map(
        each => [each.getAttribute('aria-label'), each.getAttribute('aria-valuetext')])"""
    found = output(page, name).locator("[role=slider]").evaluate_all(read)
    return [tuple(pair) for pair in found]
