"""How long does a learner wait who runs a chapter from top to bottom?

    python benchmarks/notebooks.py [--json] [CHAPTER ...]

Each learner's notebook, its exercises open, as ``notebooks/`` has it: from before its kernel starts
until its last cell has ended, one notebook after another, alone. ``slowest`` is the cell that took
longest. ``torch`` is how long a fresh interpreter takes for ``import torch``, just before:
machines, and hours of one machine, differ, and most of a launch is such work.

In turns with an earlier state of the course, on 2026-11-30, seconds (then: now), one run of each:

- 07, 37.8: 34.7; 21, 40.0: 38.3; 13, 36.3: 32.2. The first launch waits for what its function
  names, in place of ranks that import it each for itself: torch._dynamo and torch.distributed.fsdp,
  800 modules, behind the first optimizer, DDP or fully_shard.
- 04, 34.9: 31.0. Ranks load torch while the kernel does; the kernel makes no optimizer.
- 06, 37.1: 31.6. DeepSpeed's second step is counted, not its third.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from report import tell

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
LIMIT_S = 600


def rows(chapters: Sequence[str] = ()) -> Iterator[dict]:
    """One per chapter, or per those that are named by their numbers: seconds of the whole and of
    its slowest cell, how many cells ran, and seconds of ``import torch``."""
    for path in sorted(FOLDER.glob("[0-9][0-9]_*.ipynb")):
        if chapters and path.name[:2] not in chapters:
            continue
        torch_s = _import_s()
        cells_s, whole_s = _run(path)
        yield {
            "chapter": path.name[:2],
            "seconds": round(whole_s, 1),
            "slowest": round(max(cells_s), 1),
            "cells": len(cells_s),
            "torch": round(torch_s, 2),
        }


def _run(path: Path) -> tuple[list[float], float]:
    """Seconds of each cell of code, and of everything. Raises CellExecutionError where a cell fails
    that should not."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=LIMIT_S, resources=where)
    cells_s = []
    began_s = time.perf_counter()
    with client.setup_kernel():
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code":
                cell_began_s = time.perf_counter()
                client.execute_cell(cell, index)
                ended_s = time.perf_counter()
                cells_s.append(ended_s - cell_began_s)
    return cells_s, ended_s - began_s


def _import_s() -> float:
    """Seconds of ``import torch`` in a fresh interpreter, the faster of two."""
    program = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
    line = [sys.executable, "-c", program]
    asked = (subprocess.run(line, capture_output=True, text=True, check=True) for _ in range(2))
    return min(json.loads(done.stdout) for done in asked)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON at the end")
    parser.add_argument("chapters", nargs="*", help="their numbers (all)")
    given = parser.parse_args()
    tell(rows(given.chapters), given.json)


if __name__ == "__main__":
    main()
