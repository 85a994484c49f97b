"""Every board of the course by its name, found by walking the subjects: whoever adds a board
registers nothing.

A board lives in its subject or in a folder of it, in ``board.py`` or ``<name>_board.py``, and names
what it offers in ``__all__``, a plain list of words: it is read here without importing the board.
"""

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def homes() -> dict[str, str]:
    """Name of a board -> the module that makes it, of all subjects, in alphabetical order."""
    found = {}
    for path in PACKAGE.glob("*/**/*board.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for name in offered(path):
            found[name] = module
    return dict(sorted(found.items()))


def offered(path: Path) -> list[str]:
    """What a module's ``__all__`` lists. Raises ValueError where it has none."""
    for statement in ast.parse(path.read_bytes()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return ast.literal_eval(statement.value)
    raise ValueError(f"a board names what it offers in __all__; {path} has none")


def board(name: str) -> Callable:
    """The function that makes a board. Raises KeyError for a name that there is not."""
    return getattr(importlib.import_module(homes()[name]), name)


def boards() -> dict[str, Callable]:
    """Name -> the function that makes the board, in alphabetical order."""
    return {name: board(name) for name in homes()}
