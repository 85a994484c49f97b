"""The book's pages that are no chapters: the glossary, the cheat sheet and the errata, in one
language each."""

import re
from dataclasses import dataclass
from pathlib import Path

import errata
import glossary
from build import SHEETS
from chapter import read, sources
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
    if any(next(errata.boxes(each, language), None) for each in chapters):
        found.append(_leaf("errata", errata.table(chapters, language)))
    return found


def _leaf(name: str, markdown: str) -> Leaf:
    body, _ = prose(re.sub(r"\A# .*\n", "", markdown))
    return Leaf(name=name, body=body)
