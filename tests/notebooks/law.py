"""What holds for the four notebooks of every chapter, small or real."""

import ast
import re

import comments
import nbformat
from chapter import heading, read, sections
from small import BUILDS, code_of, load

# The largest of today, as ruff formats them. The pages will be rewritten: then half of all cells
# have 4 lines at most, most are under 12, and a function that is launched has up to 25.
CELL_LINES = 39
LANGUAGE_LINE = re.compile(r'^(lab\.begin\()"(en|zh)"(, chapter="\d\d")?(?=[,)]|$)', re.MULTILINE)
RANK_CELL_LINES = 46


def neutral(sources, chinese):
    """Code cells without what may differ: the line that names the language, comments, docstrings
    and the words shown that have Chinese."""
    return [comments.bare(LANGUAGE_LINE.sub(r'\1""', source), chinese) for source in sources]


def check_builds(root, chapter):
    """The four builds of a chapter are valid, know what they are, and differ only where they
    may."""
    for language, kind in BUILDS:
        notebook = load(root, chapter, language, kind)
        nbformat.validate(notebook)
        about = notebook.metadata.labkit
        assert set(about) == {
            "chapter",
            "title",
            "title_zh",
            "sections",
            "needs",
            "minutes",
            "language",
            "build",
        }
        assert (about.chapter, about.language, about.build) == (chapter[:2], language, kind)
        assert about.title and about.title_zh and about.sections and about.minutes > 0
        assert notebook.metadata.kernelspec.name == "python3" and notebook.nbformat_minor == 5
        for cell in notebook.cells:
            if "outputs" in cell:
                assert cell.outputs == [] and cell.execution_count is None
        assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
        named = LANGUAGE_LINE.findall(code_of(notebook)[0])
        assert [(found[1], found[2]) for found in named] == [
            (language, f', chapter="{chapter[:2]}"')
        ]
        assert "### " not in "\n".join(code_of(notebook))
        assert "BEGIN SOLUTION" not in str(notebook.cells)
    for kind in ("learner", "solution"):
        english = load(root, chapter, "en", kind)
        chinese = load(root, chapter, "zh", kind)
        told = read(root / "notebooks" / "src" / f"{chapter}.py").remarks
        assert neutral(code_of(english), told) == neutral(code_of(chinese), told)
        english_kinds = [cell.cell_type for cell in english.cells]
        assert english_kinds == [cell.cell_type for cell in chinese.cells]


def oversized(sources):
    """Code cells of more lines than they may have: more where the cell defines a function that is
    launched."""
    launched = set(re.findall(r"\b(?:launch|start|check\.\w+)\(\s*(\w+)", "\n".join(sources)))
    faults = []
    for source in sources:
        defined = {
            node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
        }
        lines = len([line for line in source.splitlines() if line.strip()])
        if lines > (RANK_CELL_LINES if defined & launched else CELL_LINES):
            faults.append(f"{lines} lines: {source.splitlines()[0]}")
    return faults


def unmarked(chapter):
    """Prose cells that name a section of their chapter and are not marked with it, nor is another
    cell under the same heading: the table of sections would miss them."""
    faults = []
    above = ""
    marked = {}
    named = []
    for cell in chapter.cells[1:]:
        if cell.kind != "markdown":
            continue
        above = heading(cell.source) or above
        marked.setdefault(above, set()).update(sections(cell))
        named += [(above, each) for each in chapter.header["sections"] if _names(cell, each)]
    for place, section in named:
        if section not in marked[place]:
            faults.append(f"{place}: {section}")
    return faults


def _names(cell, section):
    return re.search(rf"(?<![\d.]){re.escape(section)}(?!\.?\d)", cell.source)
