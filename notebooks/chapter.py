"""A chapter as its sources have it: the code and the English of ``notebooks/src/NN_name.py``
(jupytext's percent format), each prose cell joined to its Chinese (``chinese.py``)."""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import chinese
import comments
import jupytext

SOLUTION = re.compile(
    r"^( *)### BEGIN SOLUTION\n(.*?)\n *### END SOLUTION$", re.MULTILINE | re.DOTALL
)
LANGUAGE_LINE = re.compile(r'lab\.begin\("en"((?:, (?!.*chapter=)\w+=[^()]+)?)\)')
"""The line that names the language: the Chinese builds differ in it, and the build adds the
chapter."""
NAME = re.compile(r"\d\d_[a-z0-9_]+")
DIVIDER = "*Here ends what most people need."
"""The line after which all is optional."""
OPEN_TO_ALL = ("## Summary", "## Errata", "## Further reading")
"""headings behind that line that are no optional sections"""
OPTIONS = {"tags", "name", "sections"}
HEADER = {"sections": list, "needs": list, "minutes": int}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a chapter: code, or a piece of prose in both languages."""

    kind: str
    """code or markdown"""
    source: str
    """the code, or the English text"""
    options: dict
    """what stays in the cell's metadata: tags, name, sections"""
    chinese: str = ""
    """the Chinese text of a markdown cell"""


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A chapter, read and found in order."""

    name: str
    """the file's name without .py"""
    header: dict
    """sections, needs, minutes"""
    cells: tuple[Cell, ...]
    """in order; the first is the title"""
    remarks: dict[str, str]
    """the comments and docstrings of its code: English -> Chinese"""

    @property
    def code(self) -> list[str]:
        """The text of its code cells."""
        return [cell.source for cell in self.cells if cell.kind == "code"]


def heading(markdown: str) -> str:
    """The first heading's words, or "" where there is none."""
    found = re.search(r"^#+ +(.+)$", markdown, re.MULTILINE)
    return found[1].strip() if found else ""


def optional(cells: Iterable[Cell]) -> list[bool]:
    """For each cell, whether it begins an optional section: a heading behind the line that ends
    what most people need. Readers find these closed, and open those that they want."""
    found = []
    behind = False
    for cell in cells:
        title = cell.kind == "markdown" and cell.source.startswith("## ")
        found.append(behind and title and not cell.source.startswith(OPEN_TO_ALL))
        behind = behind or DIVIDER in cell.source
    return found


def sections(cell: Cell) -> list[str]:
    """The sections of the source material that a cell is marked with."""
    stated = [section.strip() for section in cell.options.get("sections", "").split(",")]
    return [section for section in stated if section]


def sources(root: Path) -> list[Path]:
    """The source of every chapter, in order."""
    return sorted((root / "notebooks" / "src").glob("*.py"))


def chinese_of(source: Path) -> Path:
    """Where the Chinese of a source lies."""
    return source.parent / "zh" / f"{source.stem}.md"


def prose(source: Path) -> list[str]:
    """The English prose cells of a source."""
    raw = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    return [cell.source for cell in raw.cells if cell.cell_type == "markdown"]


def read(source: Path) -> Chapter:
    """A chapter from its two sources. Raises ValueError that lists all faults."""
    file = chinese_of(source)
    chinese_text = file.read_text(encoding="utf-8") if file.exists() else ""
    return _joined(source, source.read_text(encoding="utf-8"), chinese_text)


@functools.lru_cache(maxsize=64)
def _joined(source: Path, english_text: str, chinese_text: str) -> Chapter:
    """The same texts are read once."""
    raw = jupytext.reads(english_text, fmt="py:percent")
    header = raw.metadata.get("labkit", {})
    cells = [_cell(each) for each in raw.cells]
    english = [cell.source for cell in cells if cell.kind == "markdown"]
    text, remarks, comment_faults = comments.split(chinese_text)
    translations, chinese_faults = chinese.pair(english, text, source.stem[:2])
    code = [cell.source for cell in cells if cell.kind == "code"]
    chinese_faults += comment_faults + comments.faults(code, remarks)
    rest = iter(translations)
    cells = [
        replace(cell, chinese=next(rest)) if cell.kind == "markdown" else cell for cell in cells
    ]
    faults = _header_faults(source, header) + _order_faults(header, cells)
    for cell in cells:
        faults += _option_faults(cell) + _solution_faults(cell)
    faults = [f"{source.name}: {fault}" for fault in faults]
    faults += [f"zh/{source.stem}.md: {fault}" for fault in chinese_faults]
    if faults:
        raise ValueError("\n".join(faults))
    return Chapter(name=source.stem, header=dict(header), cells=tuple(cells), remarks=remarks)


def _cell(raw: dict) -> Cell:
    """A cell as jupytext gives it; what it notes about blank lines is dropped."""
    options = {key: value for key, value in raw.metadata.items() if not key.startswith("lines_to")}
    return Cell(kind=raw.cell_type, source=raw.source, options=options)


def _called(source: str) -> str:
    """How a message names a cell: by its first words."""
    first_line = source.strip().partition("\n")[0]
    return f"cell {first_line[:60]!r}"


def _header_faults(source: Path, header: dict) -> list[str]:
    faults = [
        f"the header's labkit.{key} is a {kind.__name__}; got {header.get(key)!r}"
        for key, kind in HEADER.items()
        if not isinstance(header.get(key), kind)
    ]
    if not NAME.fullmatch(source.stem) or set(header) - set(HEADER):
        faults.append(
            f"a source is called NN_name.py, and its header's labkit holds {', '.join(HEADER)}, "
            "nothing else"
        )
    return faults


def _order_faults(header: dict, cells: list[Cell]) -> list[str]:
    """Faults of the chapter as a whole: its title, its language line, its sections."""
    faults = []
    if not cells or not cells[0].source.startswith("# ") or not cells[0].chinese.startswith("# "):
        faults.append("the first cell is the title: markdown, '# ' and words, in both languages")
    first_code = next((cell.source for cell in cells if cell.kind == "code"), "")
    if sum(map(bool, map(LANGUAGE_LINE.fullmatch, first_code.splitlines()))) != 1:
        faults.append('the first code cell has one line that reads lab.begin("en")')
    stated = header.get("sections")
    marked = set()
    for cell in cells:
        marked.update(sections(cell))
    if isinstance(stated, list) and sorted(map(repr, stated)) != sorted(map(repr, marked)):
        faults.append(
            f"the header's sections (quoted) are those that cells are marked with: {stated}, "
            f"{sorted(marked)}"
        )
    return faults


def _option_faults(cell: Cell) -> list[str]:
    unknown = set(cell.options) - OPTIONS
    if not unknown:
        return []
    return [
        f"{_called(cell.source)} has the options {sorted(unknown)}; there are only "
        f"{sorted(OPTIONS)}"
    ]


def _solution_faults(cell: Cell) -> list[str]:
    """A solution block is closed, and stands in a function: a stub in the open would stop Run
    All."""
    if "### BEGIN" not in cell.source and "### END" not in cell.source:
        return []
    if "###" in SOLUTION.sub("", cell.source):
        return [
            f"{_called(cell.source)}: ### BEGIN SOLUTION, lines, ### END SOLUTION; no other ### "
            "stands in the cell"
        ]
    return [
        f"{_called(cell.source)}: a solution block stands in no function, so its stub would stop "
        "Run All"
        for block in SOLUTION.finditer(cell.source)
        if not block[1]
    ]
