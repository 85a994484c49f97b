"""A chapter as a notebook: for learners, solved, or checked (both at once, to be run by nbmake)."""

import re
from collections.abc import Iterator
from pathlib import Path

import comments
import nbformat
from chapter import LANGUAGE_LINE, SOLUTION, Cell, Chapter, heading, optional
from chinese import fingerprint
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FOLDERS = {
    ("en", "learner"): "",
    ("zh", "learner"): "zh",
    ("en", "solution"): "solutions",
    ("zh", "solution"): "solutions/zh",
}
STUB = 'raise NotImplementedError("your turn: replace this line")'
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
CELL_TIMEOUT_S = 120
PAGE_LINK = re.compile(r"\]\((?=[A-Z_]+\.md)")
"""a link to GLOSSARY.md or another page of this folder"""
CHECKED_ONLY = "checked-only"
COLLAPSED = "jp-MarkdownHeadingCollapsed"
"""JupyterLab shows a heading with this, and hides what is below it until it is clicked"""
BOOK = 'import os\n\nos.environ["LABKIT_BOOK"] = "1"'


def code(source: str, language: str, number: str, *, solved: bool) -> str:
    """A code cell's text: the one line that names the language (and the chapter, by its number),
    and each solution block as a stub or as its body."""
    lines = [_opening(line, language, number) for line in source.splitlines()]
    return SOLUTION.sub(r"\2" if solved else r"\1" + STUB, "\n".join(lines))


def _opening(line: str, language: str, number: str) -> str:
    found = LANGUAGE_LINE.fullmatch(line)
    if not found:
        return line
    return f'lab.begin("{language}", chapter="{number}"{found[1]})'


def notebook(chapter: Chapter, language: str, build: str) -> NotebookNode:
    """One build (learner, solution or checked) of a chapter: no outputs, and the same bytes for the
    same source."""
    if build == "checked":
        rows = _checked(chapter, language)
    else:
        solved = build == "solution"
        rows = []
        for cell, options in _with_options(chapter):
            rows.append((cell.kind, _text(chapter, cell, language, solved), options))
    cells = []
    for position, (kind, text, options) in enumerate(rows):
        make = new_markdown_cell if kind == "markdown" else new_code_cell
        cells.append(make(text, id=fingerprint(f"{position} {text}"), metadata=dict(options)))
    title = chapter.cells[0]
    about = {
        "chapter": chapter.name[:2],
        "title": heading(title.source),
        "title_zh": heading(title.chinese),
        **chapter.header,
        "language": language,
        "build": build,
    }
    metadata = {
        "kernelspec": KERNEL,
        "language_info": {"name": "python"},
        "labkit": about,
        "execution": {"timeout": CELL_TIMEOUT_S},
    }
    return new_notebook(cells=cells, metadata=metadata)


def _with_options(chapter: Chapter) -> Iterator[tuple[Cell, dict]]:
    """The cells, each with its metadata: an optional section is closed at first."""
    for cell, closed in zip(chapter.cells, optional(chapter.cells), strict=True):
        yield cell, {**cell.options, COLLAPSED: True} if closed else cell.options


def text(notebook: NotebookNode) -> str:
    """A notebook as the text of its file."""
    return nbformat.writes(notebook, version=4) + "\n"


def _text(chapter: Chapter, cell: Cell, language: str, solved: bool) -> str:
    if cell.kind == "markdown":
        text = cell.chinese if language == "zh" else cell.source
        folder = FOLDERS[language, "solution" if solved else "learner"]
        return PAGE_LINK.sub("](" + "../" * len(Path(folder).parts), text)
    text = code(cell.source, language, chapter.name[:2], solved=solved)
    return comments.rendered(text, chapter.remarks) if language == "zh" else text


def marked(chapter: Chapter, cell: Cell, language: str) -> str:
    """A code cell as its source has it, its solution between the marks: for who takes it out."""
    lines = [_opening(line, language, chapter.name[:2]) for line in cell.source.splitlines()]
    text = "\n".join(lines)
    return comments.rendered(text, chapter.remarks) if language == "zh" else text


def _checked(chapter: Chapter, language: str) -> list[tuple[str, str, dict]]:
    """The cells of a checked build as (kind, text, options): the learner's, in which each stub and
    its check are followed by the solution and its check. The first cell asks for the book's
    outputs. What learners do not have is tagged."""
    only = {"tags": [CHECKED_ONLY]}
    rows = [("code", BOOK, only)]
    solution = []
    for cell, options in _with_options(chapter):
        rows.append((cell.kind, _text(chapter, cell, language, solved=False), options))
        if solution:
            solution.append(("code", _text(chapter, cell, language, solved=True), only))
            rows += solution
            solution = []
        elif SOLUTION.search(cell.source):
            solution = [("code", _text(chapter, cell, language, solved=True), only)]
    return rows + solution


def of_learners(notebook: NotebookNode) -> NotebookNode:
    """A checked build, executed, as the learner sees it. The standing after all solutions is not
    the learner's, so that output is left out."""
    cells = []
    for cell in notebook.cells:
        if CHECKED_ONLY in cell.metadata.get("tags", []):
            continue
        if "check.status(" in cell.source:
            cell = NotebookNode(cell, outputs=[])
        cells.append(cell)
    return NotebookNode(notebook, cells=cells)
