"""The words of the course, ``notebooks/glossary.toml``: the page GLOSSARY.md made of them, and
where a source says a thing by another word. ``build.py`` uses both."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import chinese
from chapter import Chapter

CODE = re.compile(r"(?ms)^ *```.*?^ *```|(`+).*?\1|\]\([^)]*\)|^<!-- cell.*?-->")
"""What is code, a link's address or a cell's name: not words."""
LINK = re.compile(r"\]\(GLOSSARY\.md#([^)]+)\)")
HAN = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, kw_only=True)
class Term:
    """One thing, and what it is called."""

    en: str
    """in English"""
    zh: str
    """in Chinese"""
    means_en: str
    """one English sentence"""
    means_zh: str
    """one Chinese sentence"""
    symbol: str = ""
    """the letter that stands for it"""
    badge: bool = False
    """whether pictures and runs carry it"""
    not_en: tuple[str, ...] = ()
    """English words that are not said for it"""
    not_zh: tuple[str, ...] = ()
    """the same in Chinese"""


def terms(root: Path) -> list[Term]:
    """The terms of a course, none where it has no glossary. Raises ValueError for a faulty one."""
    file = root / "notebooks" / "glossary.toml"
    if not file.exists():
        return []
    rows = tomllib.loads(file.read_text(encoding="utf-8")).get("term", [])
    faults = [fault for row in rows for fault in _row_faults(row)]
    names = [row.get("en") for row in rows]
    faults += [f"{name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    if faults:
        raise ValueError("\n".join(f"glossary.toml: {fault}" for fault in faults))
    return [Term(**_frozen(row)) for row in rows]


def _row_faults(row: dict) -> Iterator[str]:
    fields = Term.__dataclass_fields__
    needed = ("en", "zh", "means_en", "means_zh")
    name = row.get("en", "a term")
    if unknown := sorted(set(row) - set(fields)):
        yield f"{name} has {', '.join(unknown)}; there are only {', '.join(fields)}"
    if missing := [field for field in needed if not row.get(field)]:
        yield f"{name} lacks {', '.join(missing)}"


def _frozen(row: dict) -> dict:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def page(known: list[Term]) -> str:
    """GLOSSARY.md: the symbols, the words of badges, and all other terms by the alphabet."""
    symbols = [
        f"| {term.symbol} | {term.en} | {term.zh} | {term.means_en} | {term.means_zh} |"
        for term in sorted(known, key=lambda term: (term.symbol.lower(), term.symbol))
        if term.symbol
    ]
    lines = [
        "# Glossary · 术语表",
        "",
        "Written by `notebooks/build.py` from `glossary.toml`.",
        "",
        "## Symbols · 符号",
        "",
        "| symbol | English | 中文 | meaning | 含义 |",
        "| --- | --- | --- | --- | --- |",
        *symbols,
        "",
        "## What pictures and runs say of their numbers · 图和运行所标的来源",
        "",
        *_table(term for term in known if term.badge),
        "",
        "## Terms · 术语",
        "",
        *_table(sorted(_others(known), key=lambda term: term.en.lower())),
        "",
    ]
    return "\n".join(lines)


def _others(known: list[Term]) -> list[Term]:
    return [term for term in known if not term.badge]


def anchor(term: Term) -> str:
    """What a link to a term names: ``GLOSSARY.md#ring-all-reduce``."""
    return re.sub(r"[^a-z0-9]+", "-", term.en.lower()).strip("-")


def _placed(term: Term, language: str) -> str:
    """A term's name, with the place where a link to it leads."""
    return f'<a id="{anchor(term)}"></a>{getattr(term, language)}'


def _table(shown: Iterator[Term] | list[Term]) -> list[str]:
    rows = []
    for term in shown:
        name = _placed(term, "en")
        rows.append(f"| {name} | {term.zh} | {term.means_en} | {term.means_zh} |")
    return ["| English | 中文 | meaning | 含义 |", "| --- | --- | --- | --- |", *rows]


def page_in(known: list[Term], language: str) -> str:
    """The terms in one language, by the alphabet, each with its anchor and its name in the other:
    the book's page."""
    other = "zh" if language == "en" else "en"
    heads = {"en": ("term", "中文", "symbol", "meaning"), "zh": ("术语", "English", "符号", "含义")}
    lines = [f"| {' | '.join(heads[language])} |", "| --- | --- | --- | --- |"]
    for term in sorted(known, key=lambda term: getattr(term, language).lower()):
        row = (
            _placed(term, language),
            getattr(term, other),
            term.symbol,
            getattr(term, f"means_{language}"),
        )
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def link_faults(known: list[Term], chapter: Chapter) -> Iterator[str]:
    """Links of a chapter to terms that are not there."""
    there = {anchor(term) for term in known}
    for cell in chapter.cells:
        for found in LINK.findall(f"{cell.source}\n{cell.chinese}"):
            if cell.kind == "markdown" and found not in there:
                yield f"{chapter.name}: GLOSSARY.md has no term #{found}"


def said_otherwise(known: list[Term], text: str, language: str) -> list[str]:
    """Where prose of a language says a term by a word that is not used for it, with the one that
    is. Code and addresses are no prose."""
    prose = CODE.sub(" ` ", text)
    faults = []
    for term in known:
        for form in term.not_en if language == "en" else term.not_zh:
            pattern = (
                rf"(?<![\w-]){re.escape(form)}(?![\w-])" if language == "en" else re.escape(form)
            )
            for found in re.finditer(pattern, prose, re.IGNORECASE):
                place = prose[max(0, found.start() - 15) : found.end() + 15].replace("\n", " ")
                right = term.en if language == "en" else term.zh
                faults.append(f"{form.strip()!r} in {place!r}: say {right!r} (glossary.toml)")
    return faults


def chapter_faults(known: list[Term], chapter: Chapter) -> list[str]:
    """What the sources of a chapter say otherwise: its prose in both languages, and the Chinese in
    its code."""
    keys = iter(chinese.keys([cell.source for cell in chapter.cells if cell.kind == "markdown"]))
    faults = []
    for cell in chapter.cells:
        if cell.kind == "code":
            lines = [line for line in cell.source.splitlines() if HAN.search(line)]
            found = said_otherwise(known, "\n".join(lines), "zh")
            faults += [f"{chapter.name}.py: {fault}" for fault in found]
            continue
        key = next(keys)
        for language, text in (("en", cell.source), ("zh", cell.chinese)):
            file = f"{chapter.name}.py" if language == "en" else f"zh/{chapter.name}.md"
            found = said_otherwise(known, text, language)
            faults += [f"{file}: cell {key}: {fault}" for fault in found]
    return faults
