"""A chapter's Chinese, ``notebooks/src/zh/NN_name.md``: one section for each English prose cell, in
the same order.

A section begins with a line that names its cell and the hash of the English that it renders::

    <!-- cell: two-stages-by-hand · renders: 7190795c -->
    ## 手写两段流水线

A cell's key is the first six words of its first line; a second cell with the same key ends in -2.
"""

import hashlib
import re
from dataclasses import dataclass

MARKER = re.compile(r"<!-- cell: (\S+)(?: · renders: (\S*))? -->")
KEY_WORDS = 6


@dataclass(frozen=True, kw_only=True)
class Section:
    """The Chinese of one cell."""

    key: str
    """which cell it is of"""
    renders: str
    """the hash of the English that it renders, or "" where nobody has stamped it"""
    text: str
    """markdown"""


def fingerprint(text: str) -> str:
    """The eight hex digits by which a section names the English text that it renders."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]


def keys(english: list[str]) -> list[str]:
    """The key of each English prose cell of a chapter."""
    found = []
    for text in english:
        key = slug = _slug(text)
        number = 1
        while key in found:
            number += 1
            key = f"{slug}-{number}"
        found.append(key)
    return found


def _slug(text: str) -> str:
    first_line = text.strip().partition("\n")[0].lower()
    words = ["-".join(re.findall(r"[a-z0-9]+", word)) for word in first_line.split()]
    words = [word for word in words if word]
    return "-".join(words[:KEY_WORDS]) or "cell"


def marker(key: str, english: str) -> str:
    """The line with which the Chinese of a cell begins, once it renders this English."""
    return f"<!-- cell: {key} · renders: {fingerprint(english)} -->"


def parse(text: str) -> tuple[list[Section], list[str]]:
    """The sections of a file, and what is wrong with their first lines."""
    heads = [""]
    bodies = [[]]
    for line in text.splitlines():
        if line.startswith("<!-- cell"):
            heads.append(line)
            bodies.append([])
        else:
            bodies[-1].append(line)
    faults = []
    if any(bodies[0]):
        faults.append(f"{bodies[0][0]!r} stands before the first line <!-- cell: ... -->")
    sections = []
    for head, body in zip(heads[1:], bodies[1:], strict=True):
        found = MARKER.fullmatch(head.rstrip())
        if found is None:
            faults.append(f"{head!r} should read <!-- cell: KEY · renders: HASH -->")
        else:
            body_text = "\n".join(body).strip("\n")
            sections.append(Section(key=found[1], renders=found[2] or "", text=body_text))
    return sections, faults


def pair(english: list[str], text: str, chapter: str) -> tuple[list[str], list[str]]:
    """The Chinese of each English prose cell ("" where it has none), and all that is wrong with the
    file; ``chapter`` is its two digits."""
    cells = dict(zip(keys(english), english, strict=True))
    sections, faults = parse(text)
    found = {section.key: section for section in sections}
    faults += _missing(cells, found)
    faults += _orphaned(cells, sections)
    faults += _misplaced(cells, sections)
    faults += _stale(cells, sections, chapter)
    chinese = [found[key].text if key in found else "" for key in cells]
    return chinese, faults


def _missing(cells: dict[str, str], found: dict[str, Section]) -> list[str]:
    faults = []
    place = "at the top"
    for key, english in cells.items():
        if key not in found:
            faults.append(
                f"cell {key} has no Chinese. Write it {place}, under: {marker(key, english)}"
            )
        elif not found[key].text:
            faults.append(f"cell {key} has no Chinese but its first line. Write it there")
        place = f"after cell {key}"
    return faults


def _orphaned(cells: dict[str, str], sections: list[Section]) -> list[str]:
    faults = []
    seen = set()
    for section in sections:
        if section.key in seen:
            faults.append(f"cell {section.key} stands here twice. Remove one of them")
        elif section.key not in cells:
            faults.append(
                f"cell {section.key} is of no English cell. Remove it, or, where the English began "
                "with other words, give it the new key"
            )
        seen.add(section.key)
    return faults


def _misplaced(cells: dict[str, str], sections: list[Section]) -> list[str]:
    """The first section that does not follow the English order, where nothing else is wrong with
    the keys."""
    stated = [section.key for section in sections]
    if sorted(stated) != sorted(cells):
        return []
    for mine, wanted in zip(stated, cells, strict=True):
        if mine != wanted:
            return [f"cell {mine} stands where cell {wanted} belongs. Keep the English order"]
    return []


def _stale(cells: dict[str, str], sections: list[Section], chapter: str) -> list[str]:
    faults = []
    for section in sections:
        new = fingerprint(cells[section.key]) if section.key in cells else section.renders
        if section.renders != new:
            faults.append(
                f"cell {section.key} is stale: it renders {section.renders or 'nothing'}, the "
                f"English is {new}. Bring it up to date, then run: "
                f"python notebooks/build.py --stamp {chapter} {section.key}"
            )
    return faults


def stamp(english: list[str], text: str, chosen: list[str] | None) -> tuple[str, list[str]]:
    """The file with the hashes of the chosen cells (None: of all) as their English is now. Returns
    it and the keys whose hash changed; raises ValueError for a key that it does not have."""
    cells = dict(zip(keys(english), english, strict=True))
    stated = [section.key for section in parse(text)[0]]
    there = [key for key in stated if key in cells]
    if unknown := [key for key in chosen or [] if key not in there]:
        raise ValueError(f"there is no cell {', '.join(unknown)}; there are: {', '.join(there)}")
    lines = text.split("\n")
    changed = []
    for number, line in enumerate(lines):
        found = MARKER.fullmatch(line.rstrip())
        if found is None or found[1] not in (there if chosen is None else chosen):
            continue
        lines[number] = marker(found[1], cells[found[1]])
        if lines[number] != line:
            changed.append(found[1])
    return "\n".join(lines), changed
