"""The book's pages that are no chapters: the glossary, the cheat sheet and the errata, in one
language each."""

import re
from dataclasses import dataclass
from pathlib import Path

import errata
import glossary
from build import SHEETS
from chapter import Chapter, read, sources
from pages import prose


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One page."""

    name: str
    """its file's name without .html, and the key of its title"""
    body: str
    """its HTML"""


def leaves(root: Path, language: str) -> list[Leaf]:
    """The pages there are: a course without a glossary or a sheet has none."""
    found = []
    known = glossary.terms(root)
    if known:
        found.append(_leaf("glossary", glossary.page_in(known, language)))
    if (root / SHEETS[language]).exists():
        sheet = (root / SHEETS[language]).read_text(encoding="utf-8")
        found.append(_leaf("cheat_sheet", sheet))
    chapters = [read(path) for path in sources(root)]
    if rows := errata_rows(chapters, language):
        found.append(_leaf("errata", rows))
    return found


def errata_rows(chapters: list[Chapter], language: str) -> str:
    """The errata in one language as Markdown; "" where there is none."""
    text = errata.table(chapters, language)
    return text if any(list(errata.boxes(each, language)) for each in chapters) else ""


def _leaf(name: str, markdown: str) -> Leaf:
    body, _ = prose(re.sub(r"\A# .*\n", "", markdown))
    return Leaf(name=name, body=body)
