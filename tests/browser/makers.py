"""Who makes pictures: every public function of labkit that returns a picture or a board, found by
walking the package."""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import labkit
from labkit import widgets

PACKAGE = Path(labkit.__file__).parent
PICTURES = ("Scene", "Sketch")


def makers() -> set[str]:
    """Their names: a board's is that under which notebooks know it ("widgets.collectives"), a
    picture's begins with its folder ("pictures.timeline")."""
    found = {}
    for path, module in _modules():
        for name, made in _public_functions(module):
            returned = _returned(made)
            if returned.endswith("Board") and name == "board":
                continue  # of an experiment: the same that notebooks know by its own name
            if returned.endswith("Board"):
                found[f"widgets.{name}"] = made
            elif returned in PICTURES:
                found[f"{path.parent.name}.{name}"] = made
    known = set(found.values())
    others = {f"widgets.{name}" for name in widgets.__all__ if getattr(widgets, name) not in known}
    return {*found, *others}


def _modules() -> Iterator[tuple[Path, ModuleType]]:
    """The modules whose source speaks of pictures or boards."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(r"-> .*(Scene|Sketch|Board)", source) and path.name != "__init__.py":
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield path, importlib.import_module(".".join(parts))


def _public_functions(module: ModuleType) -> Iterator[tuple[str, Callable]]:
    for name, made in vars(module).items():
        own = inspect.isfunction(made) and made.__module__ == module.__name__
        if own and not name.startswith("_"):
            yield name, made


def _returned(made: Callable) -> str:
    """The name of the type that a function says it returns."""
    returned = inspect.signature(made).return_annotation
    return getattr(returned, "__name__", str(returned)).rpartition(".")[2]
