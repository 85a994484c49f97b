"""Where there is no JupyterLab and no anywidget: ranks start, and what would move stands still."""

import nbclient
import pytest
from nbformat.v4 import new_code_cell, new_notebook

HIDDEN = """
import sys
for name in ("jupyterlab", "jupyter_server", "notebook", "anywidget"):
    sys.modules[name] = None  # an import of it fails, as where it is not installed
import labkit as lab
lab.begin("en")
from labkit import pipeline
step = pipeline.Step(schedule="1f1b", ranks=2, microbatches=4)
"""
CELLS = (
    HIDDEN,
    "step.board()",
    "step.predict()",
    "lab.launch(int, '7', ranks=2).results",
    "step.run()",
)
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(scope="module")
def outputs():
    """What each cell leaves at its end, by mime type."""
    notebook = new_notebook(cells=[new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
    return [cell.outputs[-1].data for cell in notebook.cells[1:]]


def test_a_board_is_also_a_picture_and_text(outputs):
    board = outputs[0]
    assert WIDGET in board
    assert len(board["image/png"]) > 1000
    assert "rank 0" in board["text/plain"] and "rank 1" in board["text/plain"]


def test_pictures_need_no_widgets(outputs):
    for data in (outputs[1], outputs[3]):
        assert WIDGET not in data
        assert len(data["image/png"]) > 1000 and "rank 1" in data["text/plain"]


def test_ranks_start_without_jupyterlab(outputs):
    assert outputs[2]["text/plain"] == "(7, 7)"
