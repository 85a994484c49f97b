"""How a chapter paces: what a reader meets, counted in its English source; the table of all
chapters for ``notebooks/README.md``, and the bounds that a test holds.

The aims are those of the best teaching material, measured on their own files: a picture within 150
words, cells of 4 lines, a question every 250 words.
"""

import ast
import re
import statistics
from dataclasses import astuple, dataclass, fields

from chapter import Chapter
from errata import BOX

NO_PICTURE = {"print", "guess", "score", "status", "begin", "warm", "launch_script", "append"}
"""calls at a cell's end that draw nothing"""
PLUMBING = {"backend", "timeout_s", "hang_s", "language", "deadline_s"}
"""arguments that teach nothing; begin may have a deadline"""
TABLE = re.compile(r"^\|.*$", re.MULTILINE)
BREAK = "*Here the first half ends."
CHECK = re.compile(r"(check)\.\w+$")
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]+\$", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What was counted of one chapter."""

    chapter: str
    """its number"""
    words: int
    """of prose, errata apart"""
    words_before_picture: int
    """before the first cell that shows something"""
    words_per_picture: int
    """of prose for each cell that shows something"""
    cell_median: float
    """lines of code of a cell"""
    cell_p90: float
    """nine of ten cells have no more"""
    wide_lines: int
    """of code, over 88 columns"""
    plumbing: int
    """arguments in cells that teach nothing"""
    labkit_names: int
    """different names of labkit that the cells use, of a chapter in two halves the larger half's; a
    chapter's checks are one, ``check``: a reader calls each as it stands, once"""
    guesses: int
    """that the reader is asked for and that are scored"""
    words_per_question: int
    """of prose for each question mark"""
    words_per_heading: int
    """of prose for each heading"""


AIMS = {
    "words_before_picture": 150,
    "words_per_picture": 300,
    "cell_median": 4,
    "cell_p90": 12,
    "wide_lines": 0,
    "plumbing": 1,
    "labkit_names": 15,
    "guesses": 5,
    "words_per_question": 250,
    "words_per_heading": 150,
}


def pace(chapter: Chapter) -> Pace:
    """Counts a chapter."""
    prose = [_words(cell.source) for cell in chapter.cells if cell.kind == "markdown"]
    code = chapter.code
    showing = [cell for cell in chapter.cells if cell.kind == "code" and shows(cell.source)]
    lines = [sum(map(bool, map(str.strip, cell.splitlines()))) for cell in code]
    num_words = sum(map(len, prose))
    text = "\n".join(cell.source for cell in chapter.cells if cell.kind == "markdown")
    return Pace(
        chapter=chapter.name[:2],
        words=num_words,
        words_before_picture=_before_picture(chapter),
        words_per_picture=num_words // max(1, len(showing)),
        cell_median=statistics.median(lines),
        cell_p90=sorted(lines)[int(0.9 * (len(lines) - 1))],
        wide_lines=sum(len(line) > 88 for cell in code for line in cell.splitlines()),
        plumbing=sum(_plumbing(cell) for cell in code),
        labkit_names=max(len(_labkit_names(half, code)) for half in _halves(chapter)),
        guesses=sum(cell.count(".score(") for cell in code),
        words_per_question=num_words // max(1, text.count("?")),
        words_per_heading=num_words // max(1, len(re.findall(r"^#+ ", text, re.MULTILINE))),
    )


def _words(markdown: str) -> list[str]:
    """The words of a prose cell: no tables, formulas and errata."""
    return TABLE.sub("", FORMULA.sub(" ", BOX.sub("", markdown))).split()


def _before_picture(chapter: Chapter) -> int:
    num_words = 0
    for cell in chapter.cells:
        if cell.kind == "markdown":
            num_words += len(_words(cell.source))
            if "![" in cell.source:
                return num_words
        elif shows(cell.source):
            return num_words
    return num_words


def shows(source: str) -> bool:
    """Whether a code cell ends in something to look at: an expression that is no plain call."""
    body = ast.parse(source).body
    if not body or not isinstance(body[-1], ast.Expr):
        return False
    last = body[-1].value
    if not isinstance(last, ast.Call):
        return not isinstance(last, ast.Constant)
    called = ast.unparse(last.func)
    return called.split(".")[-1] not in NO_PICTURE and not re.match(r"(\w+_)?check\.", called)


def _plumbing(source: str) -> int:
    """Arguments of calls that teach nothing."""
    found = 0
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and ast.unparse(call.func) != "lab.begin":
            found += sum(each.arg in PLUMBING for each in call.keywords)
    return found


def _halves(chapter: Chapter) -> list[list[str]]:
    """The code cells, of a chapter that says where its first half ends those of each half."""
    halves: list[list[str]] = [[]]
    for cell in chapter.cells:
        if cell.kind == "markdown" and cell.source.startswith(BREAK):
            halves.append([])
        if cell.kind == "code":
            halves[-1].append(cell.source)
    return halves


def _labkit_names(cells: list[str], code: list[str]) -> set[str]:
    """What some cells use of labkit, as ``module.name``: imported names, and attributes of modules
    that any cell of the code imports. Each once."""
    trees = [ast.parse(source) for source in cells]
    modules = {}
    for tree in map(ast.parse, code):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                taken = [each for each in node.names if each.name.split(".")[0] == "labkit"]
                modules.update({each.asname or each.name: each.name for each in taken})
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labkit"):
                for each in node.names:
                    modules[each.asname or each.name] = f"{node.module}.{each.name}"
    found = set()
    dotted = set()
    named = set()
    for tree in trees:
        for node in ast.walk(tree):
            named.add(getattr(node, "id", None))
            owner = getattr(getattr(node, "value", None), "id", None)
            if isinstance(node, ast.Attribute) and owner in modules:
                found.add(f"{modules[owner]}.{node.attr}")
                dotted.add(owner)
    found |= {name for alias, name in modules.items() if alias in named - dotted}
    return {CHECK.sub(r"\1", name) for name in found}


def table(chapters: list[Chapter]) -> str:
    """All chapters as a table, the aims in its last row."""
    heads = [field.name.replace("_", " ") for field in fields(Pace)]
    lines = [f"| {' | '.join(heads)} |", "| " + " | ".join(["---"] * len(heads)) + " |"]
    for chapter in chapters:
        cells = [
            value if isinstance(value, str) else f"{value:g}" for value in astuple(pace(chapter))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    aims = [str(AIMS.get(field.name, "")) for field in fields(Pace)[1:]]
    lines.append(f"| *aim* | {' | '.join(aims)} |")
    return "\n".join(lines)
