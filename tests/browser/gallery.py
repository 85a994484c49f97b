"""Every widget of ``labkit.widgets`` in one notebook: a cell each, named after the function. A new
one needs a cell."""

from pathlib import Path

import nbformat

SETUP = """import labkit as lab
from labkit import collectives, pipeline, widgets
from labkit.launching import rank
from labkit.pictures import scene

LANGUAGE = {language!r}
predicted = pipeline.simulate(pipeline.SCHEDULES["1f1b"](3, 4))
halves = pipeline.simulate(pipeline.SCHEDULES["zbv"](3, 4))
plans = {{name: collectives.plan("all_reduce", name, 8) for name in ("ring", "tree")}}

def fail():
    if rank.current().rank == 1:
        raise RuntimeError("out of luck")"""
CELLS = {
    "accelerate_workflow": "widgets.accelerate_workflow(LANGUAGE)",
    "architectures": "widgets.show(widgets.architectures(plans, 4, language=LANGUAGE))",
    "collectives": "widgets.collectives(LANGUAGE)",
    "ddp_communication": "widgets.ddp_communication(LANGUAGE)",
    "fsdp_sharding": "widgets.fsdp_sharding(LANGUAGE)",
    "offload_flow": "widgets.offload_flow(LANGUAGE)",
    "pipeline_parallelism": "widgets.pipeline_parallelism(LANGUAGE)",
    "report": "try:\n    lab.launch(fail, ranks=2)\nexcept lab.RankFailed as error:\n"
    "    widgets.report(error, language=LANGUAGE)",
    "show": "widgets.show(scene.timeline(halves, language=LANGUAGE))",
    "strategies": "widgets.strategies(LANGUAGE)",
    "timeline": "widgets.timeline(predicted, language=LANGUAGE)",
    "trace": "widgets.trace(predicted, language=LANGUAGE)",
    "training_need": "widgets.training_need(LANGUAGE)",
    "zero_stages": "widgets.zero_stages(LANGUAGE)",
}


def write(folder: Path, language: str = "en") -> Path:
    """The notebook."""
    cells = [
        nbformat.v4.new_code_cell(cell)
        for cell in (SETUP.format(language=language), *CELLS.values())
    ]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = folder / f"gallery_{language}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def output(page: object, name: str) -> object:
    """Where a widget's output stands in an opened notebook: Playwright's locator."""
    return (
        page.locator(".jp-CodeCell").nth(1 + list(CELLS).index(name)).locator(".jp-Cell-outputArea")
    )
