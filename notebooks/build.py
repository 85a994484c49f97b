"""Writes every notebook from its source, ``notebooks/src/NN_name.py``, and its Chinese,
``notebooks/src/zh/NN_name.md``; ``notebooks/README.md`` has the formats.

    python notebooks/build.py                     write the notebooks, COVERAGE.md, ERRATA.md,
                                                  GLOSSARY.md, index.ipynb with its map, the
                                                  tables of both README.md, and the made parts of
                                                  both TEACHING.md
    python notebooks/build.py --check             write nothing; list the stale files, exit 1 if any
    python notebooks/build.py --stamp 08 KEY ...  declare that the Chinese of these cells of chapter
                                                  08 renders the English as it is now
    python notebooks/build.py --stamp 08 --all    the same of every cell
"""

import argparse
import re
import sys
from pathlib import Path

import builds
import chinese
import comments
import errata
import front
import glossary
import headlines
import pace
import teaching
from chapter import NAME, Chapter, chinese_of, heading, prose, read, sections, sources

SHEETS = {
    "en": Path("notebooks", "src", "cheat_sheet.md"),
    "zh": Path("notebooks", "src", "zh", "cheat_sheet.md"),
}
"""two pages of formulas to print"""
ROOT = Path(__file__).resolve().parent.parent


def coverage(chapters: list[Chapter]) -> str:
    """The table from a section of the source material to the chapter and the heading under which it
    is taught."""
    rows = []
    for chapter in chapters:
        above = ""
        for cell in chapter.cells:
            above = (heading(cell.source) if cell.kind == "markdown" else "") or above
            for section in sections(cell):
                rows.append((section, f"[{chapter.name}]({chapter.name}.ipynb)", above))
    rows = sorted(dict.fromkeys(rows), key=lambda row: _section_order(row[0]))
    lines = [
        "Written by `notebooks/build.py`: where each section of the source material is taught.",
        "",
        "| section | chapter | heading |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def _section_order(section: str) -> tuple[bool, list[int]]:
    """Sections that begin with a number come first; 8.10 comes after 8.9."""
    return not section[0].isdigit(), [int(part) for part in re.findall(r"\d+", section)]


HEADS = {
    "en": ["| chapter | 中文 | sections | minutes | solved |", "| --- | --- | --- | --- | --- |"],
    "zh": ["| 章 | English | 小节 | 分钟 | 附解答 |", "| --- | --- | --- | --- | --- |"],
}
READMES = {"en": "README.md", "zh": "README.zh.md"}
SOLVED = {"en": "solved", "zh": "解答"}


def readme(root: Path, text: str, chapters: list[Chapter], language: str = "en") -> str:
    """A README with the chapter table between its two markers written anew, and the measured lines
    where it has markers for them."""
    rows = [*HEADS[language]]
    for chapter in chapters:
        title = chapter.cells[0]
        file = f"{chapter.name}.ipynb"
        english = f"[{heading(title.source)}](notebooks/{file})"
        chinese_title = f"[{heading(title.chinese)}](notebooks/zh/{file})"
        titles = [english, chinese_title] if language == "en" else [chinese_title, english]
        below = f"notebooks/{builds.FOLDERS[language, 'solution']}/{file}"
        rows.append(
            f"| {file[:2]} {' | '.join(titles)} | {', '.join(chapter.header['sections'])} | "
            f"{chapter.header['minutes']} | [{SOLVED[language]}]({below}) |"
        )
    if "<!-- numbers -->" in text and (root / headlines.RESULTS).exists():
        text = between(text, "numbers", headlines.lines(root, language))
    return between(text, "chapters", "\n".join(rows))


def between(text: str, marker: str, table: str) -> str:
    """A README with the table between two markers written anew."""
    parts = re.split(rf"(<!-- /?{marker} -->)", text)
    if parts[1::2] != [f"<!-- {marker} -->", f"<!-- /{marker} -->"]:
        raise ValueError(
            f"the page needs the lines <!-- {marker} --> and <!-- /{marker} -->, once each, in "
            "this order"
        )
    return "".join([*parts[:2], "\n", table, "\n", *parts[3:]])


def expected(root: Path) -> dict[Path, str]:
    """Every generated file and the text that it must have. Raises ValueError for a fault in a
    source."""
    chapters = [read(path) for path in sources(root)]
    names = {chapter.name for chapter in chapters}
    for file in sorted((root / "notebooks" / "src" / "zh").glob("[0-9]*.md")):
        if file.stem not in names:
            raise ValueError(f"zh/{file.name}: there is no {file.stem}.py. Remove it or rename it")
    known = glossary.terms(root)
    if faults := [fault for each in chapters for fault in glossary.chapter_faults(known, each)]:
        raise ValueError("\n".join(faults))
    linked = chapters if known else []
    if faults := [fault for each in linked for fault in glossary.link_faults(known, each)]:
        raise ValueError("\n".join(faults))
    if faults := [fault for each in chapters for fault in errata.faults(each)]:
        raise ValueError("\n".join(faults))
    files = {}
    for chapter in chapters:
        for (language, build), folder in builds.FOLDERS.items():
            path = root / "notebooks" / folder / f"{chapter.name}.ipynb"
            files[path] = builds.text(builds.notebook(chapter, language, build))
    files[root / "notebooks" / "COVERAGE.md"] = coverage(chapters)
    files[root / "notebooks" / "ERRATA.md"] = errata.page(chapters)
    if sheets := [root / file for file in SHEETS.values() if (root / file).exists()]:
        texts = [file.read_text(encoding="utf-8") for file in sheets]
        files[root / "notebooks" / "CHEAT_SHEET.md"] = "\n".join(texts)
    paced = root / "notebooks" / "README.md"
    if paced.exists():
        text = paced.read_text(encoding="utf-8")
        files[paced] = between(text, "pace", pace.table(chapters))
    if known:
        files[root / "notebooks" / "GLOSSARY.md"] = glossary.page(known)
    files |= front.files(root, chapters)
    for language, name in READMES.items():
        if language == "en" or (root / name).exists():
            text = (root / name).read_text(encoding="utf-8")
            files[root / name] = readme(root, text, chapters, language)
    return files | _teaching(root, chapters)


def _teaching(root: Path, chapters: list[Chapter]) -> dict[Path, str]:
    """The pages for one who teaches, where a project has them."""
    files = {}
    for language, name in teaching.PAGES.items():
        if (root / name).exists():
            text = (root / name).read_text(encoding="utf-8")
            for marker, made in teaching.parts(root, chapters, language).items():
                text = between(text, marker, made)
            files[root / name] = text
    return files


def untranslated(root: Path) -> list[tuple[str, str]]:
    """(chapter, English) of each comment and docstring that has no Chinese yet."""
    found = []
    for chapter in map(read, sources(root)):
        lacking = comments.missing(chapter.code, chapter.remarks)
        found += [(chapter.name[:2], english) for english in lacking]
    return found


def refresh(files: dict[Path, str], *, check: bool) -> list[Path]:
    """Writes the files that differ and removes notebooks whose source is gone; with ``check`` it
    only lists them."""
    changed = [
        path
        for path, text in files.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    orphans = _orphans(files)
    if not check:
        for path in changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
        for path in orphans:
            path.unlink()
    return changed + orphans


def _orphans(files: dict[Path, str]) -> list[Path]:
    notebooks = next(path.parent for path in files if path.name == "COVERAGE.md")
    found = []
    for folder in builds.FOLDERS.values():
        for path in sorted((notebooks / folder).glob("*.ipynb")):
            if NAME.fullmatch(path.stem) and path not in files:
                found.append(path)
    return found


def stamp(source: Path, chosen: list[str] | None) -> list[str]:
    """Declares that the chosen cells' Chinese (None: every cell's) renders the English as it is
    now. Returns the keys whose hash changed."""
    file = chinese_of(source)
    if not file.exists():
        raise ValueError(f"there is no src/zh/{file.name} yet")
    text, changed = chinese.stamp(prose(source), file.read_text(encoding="utf-8"), chosen)
    file.write_text(text, encoding="utf-8")
    return changed


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    chapters = {path.stem[:2]: path for path in sources(root)}
    parser = argparse.ArgumentParser(description="Writes the notebooks from notebooks/src")
    parser.add_argument("--check", action="store_true", help="write nothing, list the stale files")
    parser.add_argument(
        "--stamp", choices=chapters, help="a chapter, of which cells' translations are accepted"
    )
    parser.add_argument("cells", nargs="*", help="with --stamp: the cells' keys")
    parser.add_argument("--all", action="store_true", help="with --stamp: every cell")
    options = parser.parse_args(arguments)
    named = bool(options.cells) or options.all
    if named and not options.stamp:
        parser.error("cells and --all go with --stamp")
    if options.stamp and not named:
        parser.error("--stamp takes the cells that you have read (their keys), or --all")
    try:
        if options.stamp:
            chosen = None if options.all else options.cells
            changed = stamp(chapters[options.stamp], chosen)
            print("stamped:", *changed or ["nothing"], sep="\n  ")
            return 0
        changed = refresh(expected(root), check=options.check)
    except ValueError as fault:
        print(fault, file=sys.stderr)
        return 1
    word = "stale:" if options.check else "wrote:"
    print(word, *[path.relative_to(root) for path in changed] or ["nothing"], sep="\n  ")
    for number, english in untranslated(root):
        print(f"{number}: no Chinese of the comment {english!r}", file=sys.stderr)
    return int(options.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
