"""Writes every notebook from its one source, ``notebooks/src/NN_name.py``; ``notebooks/README.md``
has the format.

python notebooks/build.py               write the notebooks, COVERAGE.md and the chapter table of
README.md python notebooks/build.py --check       write nothing; list the stale files and exit 1 if
there are any python notebooks/build.py --stamp 08    declare that the Chinese cells of chapter 08
render the English as it is now
"""

import argparse
import hashlib
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import jupytext
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    ("en", "learner"): "",
    ("zh", "learner"): "zh",
    ("en", "solution"): "solutions",
    ("zh", "solution"): "solutions/zh",
}
SOLUTION = re.compile(
    r"^( *)### BEGIN SOLUTION\n(.*?)\n *### END SOLUTION$", re.MULTILINE | re.DOTALL
)
STUB = 'raise NotImplementedError("your turn: replace this line")'
LANGUAGE_LINE = 'LANGUAGE = "en"'
NAME = re.compile(r"\d\d_[a-z0-9_]+")
OPTIONS = {"tags", "name", "sections", "lang", "of"}
HEADER = {"sections": list, "needs": list, "minutes": int}
KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
CELL_TIMEOUT_S = 60


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a source: code, or a piece of prose in both languages."""

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
    """A source file, read and found in order."""

    name: str
    """the file's name without .py"""
    header: dict
    """sections, needs, minutes"""
    cells: tuple[Cell, ...]
    """in order; the first is the title"""


def fingerprint(text: str) -> str:
    """The eight hex digits by which a Chinese cell names the English text that it renders."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


def heading(markdown: str) -> str:
    """The first heading's words, or "" where there is none."""
    found = re.search(r"^#+ +(.+)$", markdown, re.MULTILINE)
    return found[1].strip() if found else ""


def sections(cell: Cell) -> list[str]:
    """The sections of the source material that a cell is marked with."""
    return [
        section.strip()
        for section in cell.options.get("sections", "").split(",")
        if section.strip()
    ]


def read(path: Path, *, stamping: bool = False) -> Chapter:
    """A chapter from its source. Raises ValueError that lists all faults; ``stamping`` lets stale
    hashes pass."""
    raw = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    header = raw.metadata.get("labkit", {})
    cells, faults = _pair(raw.cells, path.stem[:2], stamping)
    faults += _header_faults(path, header, cells) + [
        fault for cell in cells for fault in _code_faults(cell)
    ]
    if faults:
        raise ValueError("\n".join(f"{path.name}: {fault}" for fault in faults))
    return Chapter(name=path.stem, header=dict(header), cells=tuple(cells))


def _pair(raw_cells: list, chapter: str, stamping: bool) -> tuple[list[Cell], list[str]]:
    """Joins each Chinese cell to the English one above it. Returns the cells and what is wrong with
    them."""
    cells, faults, waiting = [], [], None
    for raw in raw_cells:
        options = {
            key: value for key, value in raw.metadata.items() if not key.startswith("lines_to")
        }
        if unknown := set(options) - OPTIONS:
            faults.append(
                f"{_called(raw.source)} has the options {sorted(unknown)}; there are only "
                f"{sorted(OPTIONS)}"
            )
        if raw.metadata.get("lang") != "zh":
            faults += _untranslated(waiting)
            cells.append(Cell(kind=raw.cell_type, source=raw.source, options=options))
            waiting = raw.source if raw.cell_type == "markdown" else None
        elif waiting is None:
            faults.append(
                f"{_called(raw.source)} is Chinese, but no English cell stands right above it"
            )
        else:
            old, new = raw.metadata.get("of", "nothing"), fingerprint(waiting)
            if old != new and not stamping:
                faults.append(
                    f"the Chinese of {_called(waiting)} is stale: it renders {old}, the English "
                    f"is {new}. "
                    f"Bring it up to date, then run: python notebooks/build.py --stamp {chapter}"
                )
            cells[-1], waiting = replace(cells[-1], chinese=raw.source), None
    return cells, faults + _untranslated(waiting)


def _untranslated(english: str | None) -> list[str]:
    return (
        []
        if english is None
        else [
            f"{_called(english)} has no Chinese cell. Write one under it: "
            f'# %% [markdown] lang="zh" of="{fingerprint(english)}"'
        ]
    )


def _called(source: str) -> str:
    """How a message names a cell: by its first words."""
    return f"cell {source.strip().partition(chr(10))[0][:60]!r}"


def _header_faults(path: Path, header: dict, cells: list[Cell]) -> list[str]:
    faults = [
        f"the header's labkit.{key} is a {kind.__name__}; got {header.get(key)!r}"
        for key, kind in HEADER.items()
        if not isinstance(header.get(key), kind)
    ]
    if not NAME.fullmatch(path.stem) or set(header) - set(HEADER):
        faults.append(
            f"a source is called NN_name.py, and its header's labkit holds {', '.join(HEADER)}, "
            "nothing else"
        )
    if not cells or not cells[0].source.startswith("# ") or not cells[0].chinese.startswith("# "):
        faults.append("the first cell is the title: markdown, '# ' and words, in both languages")
    if (
        next((cell.source for cell in cells if cell.kind == "code"), "")
        .splitlines()
        .count(LANGUAGE_LINE)
        != 1
    ):
        faults.append(f"the first code cell has one line that reads {LANGUAGE_LINE}")
    stated, marked = (
        header.get("sections"),
        sorted({section for cell in cells for section in sections(cell)}),
    )
    if isinstance(stated, list) and sorted(map(repr, stated)) != sorted(map(repr, marked)):
        faults.append(
            f"the header's sections (quoted) are those that cells are marked with: {stated}, "
            f"{marked}"
        )
    return faults


def _code_faults(cell: Cell) -> list[str]:
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


def code(source: str, language: str, build: str) -> str:
    """A code cell's text: the one line that names the language, and each solution block as a stub
    or as its body."""
    lines = [
        f'LANGUAGE = "{language}"' if line == LANGUAGE_LINE else line
        for line in source.splitlines()
    ]
    return SOLUTION.sub(r"\1" + STUB if build == "learner" else r"\2", "\n".join(lines))


def notebook(chapter: Chapter, language: str, build: str) -> str:
    """The text of one .ipynb: no outputs, and the same bytes for the same source."""
    cells = []
    for position, cell in enumerate(chapter.cells):
        prose = cell.source if language == "en" else cell.chinese
        text = prose if cell.kind == "markdown" else code(cell.source, language, build)
        make = new_markdown_cell if cell.kind == "markdown" else new_code_cell
        cells.append(make(text, id=fingerprint(f"{position} {text}"), metadata=cell.options))
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
    return nbformat.writes(new_notebook(cells=cells, metadata=metadata), version=4) + "\n"


def coverage(chapters: list[Chapter]) -> str:
    """The table from a section of the source material to the chapter and the heading under which it
    is taught."""
    rows = []
    for chapter in chapters:
        above = ""
        for cell in chapter.cells:
            above = (heading(cell.source) if cell.kind == "markdown" else "") or above
            rows += [
                (section, f"[{chapter.name}]({chapter.name}.ipynb)", above)
                for section in sections(cell)
            ]
    rows.sort(
        key=lambda row: (
            not row[0][0].isdigit(),
            [int(part) for part in re.findall(r"\d+", row[0])],
        )
    )
    lines = [
        "Written by `notebooks/build.py`: where each section of the source material is taught.",
        "",
        "| section | chapter | heading |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def readme(text: str, chapters: list[Chapter]) -> str:
    """README.md with the chapter table between its two markers written anew."""
    rows = ["| chapter | 中文 | sections | minutes | solved |", "| --- | --- | --- | --- | --- |"]
    for chapter in chapters:
        title, file, header = chapter.cells[0], f"{chapter.name}.ipynb", chapter.header
        rows.append(
            f"| {file[:2]} [{heading(title.source)}](notebooks/{file}) | "
            f"[{heading(title.chinese)}](notebooks/zh/{file}) | {', '.join(header['sections'])} | "
            f"{header['minutes']} | [solved](notebooks/solutions/{file}) |"
        )
    parts = re.split(r"(<!-- /?chapters -->)", text)
    if parts[1::2] != ["<!-- chapters -->", "<!-- /chapters -->"]:
        raise ValueError(
            "README.md needs the lines <!-- chapters --> and <!-- /chapters -->, once each, in "
            "this order"
        )
    return "".join([*parts[:2], "\n", "\n".join(rows), "\n", *parts[3:]])


def expected(root: Path) -> dict[Path, str]:
    """Every generated file and the text that it must have."""
    chapters = [read(path) for path in sorted((root / "notebooks" / "src").glob("*.py"))]
    files = {
        root / "notebooks" / folder / f"{chapter.name}.ipynb": notebook(chapter, language, build)
        for chapter in chapters
        for (language, build), folder in FOLDERS.items()
    }
    files[root / "notebooks" / "COVERAGE.md"] = coverage(chapters)
    files[root / "README.md"] = readme((root / "README.md").read_text(encoding="utf-8"), chapters)
    return files


def refresh(files: dict[Path, str], *, check: bool) -> list[Path]:
    """Writes the files that differ and removes notebooks whose source is gone; with ``check`` it
    only lists them."""
    notebooks = next(path.parent for path in files if path.name == "COVERAGE.md")
    changed = [
        path
        for path, text in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    orphans = [
        path
        for folder in FOLDERS.values()
        for path in sorted((notebooks / folder).glob("*.ipynb"))
        if NAME.fullmatch(path.stem) and path not in files
    ]
    for path in [] if check else changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    for path in [] if check else orphans:
        path.unlink()
    return changed + orphans


def stamp(path: Path) -> list[str]:
    """Writes the hash of each English cell into its Chinese cell's header; returns the cells whose
    hash changed."""
    prose = iter(
        [cell.source for cell in read(path, stamping=True).cells if cell.kind == "markdown"]
    )
    lines, changed = path.read_text(encoding="utf-8").split("\n"), []
    for number, line in enumerate(lines):
        if re.match(r'# %% \[markdown\].*\blang="zh"', line):
            english = next(prose)
            lines[number] = (
                re.sub(r' of="[^"]*"', "", line).rstrip() + f' of="{fingerprint(english)}"'
            )
            changed += [_called(english)] if lines[number] != line else []
    path.write_text("\n".join(lines), encoding="utf-8")
    return changed


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    sources = {path.stem[:2]: path for path in sorted((root / "notebooks" / "src").glob("*.py"))}
    parser = argparse.ArgumentParser(description="Writes the notebooks from notebooks/src")
    parser.add_argument("--check", action="store_true", help="write nothing, list the stale files")
    parser.add_argument(
        "--stamp", choices=sources, help="accept a chapter's translations as they stand"
    )
    options = parser.parse_args(arguments)
    try:
        if options.stamp:
            print("stamped:", *stamp(sources[options.stamp]) or ["nothing"], sep="\n  ")
            return 0
        changed = refresh(expected(root), check=options.check)
    except ValueError as fault:
        print(fault, file=sys.stderr)
        return 1
    word = "stale:" if options.check else "wrote:"
    print(word, *[path.relative_to(root) for path in changed] or ["nothing"], sep="\n  ")
    return int(options.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
