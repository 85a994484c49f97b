"""What the source material has wrong, as the chapters' folded boxes say it: the page ERRATA.md made
of them.

A box stands in a prose cell, the same in both languages::

    <details><summary>Erratum 8.6.1: "about 50 %" for four stages</summary>

    The chart has 3 of 7 slots idle. Run it: ...
    </details>
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from chapter import Chapter, heading

OPENING = {"en": "Erratum", "zh": "勘误"}
BOX = re.compile(
    r"<details><summary>(?:Erratum|勘误) (?P<where>[^:：]+)[:：]\s*(?P<says>.+?)</summary>\n"
    r"(?P<right>.*?)</details>",
    re.DOTALL,
)
CODE = re.compile(r"^```.*?^```\n?", re.MULTILINE | re.DOTALL)


class Erratum(NamedTuple):
    """One box, in one language."""

    chapter: str
    """its file's name without .ipynb"""
    above: str
    """the heading under which it stands"""
    where: str
    """the sections that it is about: "8.6.1" or "8.6.1, S7" """
    says: str
    """what the source says"""
    right: str
    """what is right, in one paragraph"""


def boxes(chapter: Chapter, language: str) -> Iterator[Erratum]:
    """The errata of a chapter, in its order."""
    above = ""
    for cell in chapter.cells:
        if cell.kind != "markdown":
            continue
        text = cell.source if language == "en" else cell.chinese
        above = heading(text) or above
        for found in BOX.finditer(text):
            right = " ".join(CODE.sub("", found["right"]).split())
            says = " ".join(found["says"].split())
            yield Erratum(chapter.name, above, found["where"].strip(), says, right)


def faults(chapter: Chapter) -> Iterator[str]:
    """Boxes that are not well: not in both languages, empty, or opened in another way."""
    english = [each.where for each in boxes(chapter, "en")]
    chinese = [each.where for each in boxes(chapter, "zh")]
    if english != chinese:
        yield (
            f"{chapter.name}: both languages have the same errata in the same order; the English "
            f"are {', '.join(english) or 'none'}, the Chinese {', '.join(chinese) or 'none'}"
        )
    for language, word in OPENING.items():
        texts = [cell.source if language == "en" else cell.chinese for cell in chapter.cells]
        opened = sum(text.count(f"<summary>{word}") for text in texts)
        found = list(boxes(chapter, language))
        if opened != len(found):
            yield (
                f"{chapter.name}: {opened} boxes begin with {word}, {len(found)} can be read. "
                f"They read <details><summary>{word} 8.6.1: what it says</summary>, an empty "
                "line, what is right, </details>"
            )
        for each in found:
            if not each.right:
                yield f"{chapter.name}: erratum {each.where} does not say what is right"


TITLES = {"en": "Errata of the source material", "zh": "源材料勘误"}
HEADS = {
    "en": ("section", "it says", "right is", "where"),
    "zh": ("小节", "原文说", "正确的是", "在哪里"),
}
FOLDERS = {"en": "", "zh": "zh/"}


def page(chapters: list[Chapter]) -> str:
    """ERRATA.md: a table in English, then one in Chinese."""
    lines = ["Written by `notebooks/build.py` from the folded boxes of the chapters.", ""]
    for language, title in TITLES.items():
        lines += [f"## {title}", "", table(chapters, language, FOLDERS[language]), ""]
    return "\n".join(lines)


def table(chapters: list[Chapter], language: str, folder: str = "") -> str:
    """The errata in one language as a table; ``folder`` is where the notebooks lie that it links
    to."""
    lines = [f"| {' | '.join(HEADS[language])} |", "| --- | --- | --- | --- |"]
    for chapter in chapters:
        for each in boxes(chapter, language):
            link = f"[{each.chapter[:2]}]({folder}{each.chapter}.ipynb)"
            row = (each.where, each.says, each.right, f"{link} {each.above}")
            lines.append(f"| {' | '.join(_celled(text) for text in row)} |")
    return "\n".join(lines)


def _celled(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("|", "\\|")
