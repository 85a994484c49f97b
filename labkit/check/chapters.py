"""Which chapter is being read, and which exercises belong to it."""

import ast
import json
import re
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_NOTEBOOKS = _PACKAGE.parent / "notebooks"
_chapter = ""


def current() -> str:
    """The chapter being read, "08"; "" where no ``lab.begin`` has named one."""
    return _chapter


def open_chapter(number: str) -> None:
    """From now on this chapter is read; "" for none. Raises ValueError for what is no number."""
    global _chapter
    if not isinstance(number, str) or not re.fullmatch(r"(\d\d)?", number):
        raise ValueError(f'a chapter is named by its two digits, "08"; got {number!r}')
    _chapter = number


@cache
def hints() -> dict[str, dict[str, list[str]]]:
    """Exercise -> language -> its hints, of all subjects: files beside their checks."""
    found: dict[str, dict[str, list[str]]] = {}
    for file in _hint_files():
        found |= json.loads(file.read_text(encoding="utf-8"))
    return found


@cache
def exercises() -> dict[str, tuple[str, ...]]:
    """Chapter and subject ("08 pipeline") -> its exercises, in the order of the chapters. A check
    names its chapter in its docstring, else its package does. Those whose hints stand in
    a file that begins with ``spare_`` are on no page: they can be tried, and no chapter counts
    them."""
    found: dict[str, tuple[str, ...]] = {}
    for file in _hint_files():
        if file.name.startswith("spare_"):
            continue
        names = tuple(json.loads(file.read_text(encoding="utf-8")))
        place = f"{_chapter_of(file)} {file.parent.name}"
        found[place] = (*found.get(place, ()), *names)
    return dict(sorted(found.items()))


@cache
def titles() -> dict[str, dict[str, str]]:
    """Chapter ("08") -> language -> its title, of the notebooks that lie beside the package."""
    found = {}
    for path in sorted(_NOTEBOOKS.glob("[0-9][0-9]_*.ipynb")):
        about = json.loads(path.read_text(encoding="utf-8"))["metadata"]["labkit"]
        found[about["chapter"]] = {"en": about["title"], "zh": about["title_zh"]}
    return found


def _hint_files() -> list[Path]:
    return sorted(_PACKAGE.glob("*/*hints.json"))


def _chapter_of(hint_file: Path) -> str:
    check = hint_file.with_name(hint_file.name.replace("hints.json", "check.py"))
    for source in (check, hint_file.parent / "__init__.py"):
        about = ast.get_docstring(ast.parse(source.read_bytes())) or ""
        if named := re.search(r"[Cc]hapter\s+(\d\d)\b", about):
            return named[1]
    return "--"
