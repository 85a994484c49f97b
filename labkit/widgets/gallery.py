"""Every board of the course by its name, found by walking the subjects: whoever adds a board
registers nothing.

A board lives in its subject, in ``board.py`` or ``<name>_board.py``, and names what it offers in
``__all__``.
"""

import functools
import importlib
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def boards() -> dict[str, Callable]:
    """Name -> the function that makes the board, of all subjects, in alphabetical order."""
    found = {}
    for path in PACKAGE.glob("*/*board.py"):
        module = importlib.import_module(f"{PACKAGE.name}.{path.parent.name}.{path.stem}")
        found.update({name: getattr(module, name) for name in module.__all__})
    return dict(sorted(found.items()))
