"""A chapter's comments and docstrings in Chinese: the last part of ``notebooks/src/zh/NN_name.md``,
a list with the English of each, and its Chinese below it::

    <!-- comments -->
    - a number
      一个数

They are known by their English, so one that stands in several cells is written once. What has no
Chinese yet stays English, and the build counts it; Chinese of a comment that is gone is a fault.
Nothing else of a cell can change: ``bare`` is what is left of code without either.
"""

import ast
import io
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

MARKER = "<!-- comments -->"
COLUMNS = 88


class Remark(NamedTuple):
    """A comment or a docstring of a code cell."""

    english: str
    """its words, in one line"""
    first: int
    """its first line, from 0"""
    last: int
    """its last line"""
    column: int
    """where it begins"""
    is_comment: bool
    """False: a docstring, which has its lines for itself"""


def split(text: str) -> tuple[str, dict[str, str], list[str]]:
    """A chapter's Chinese without this part; English -> Chinese; and what is wrong with it."""
    prose, _, part = text.partition(f"{MARKER}\n")
    lines = [line for line in part.splitlines() if line.strip()]
    chinese: dict[str, str] = {}
    faults = []
    for english, other in zip(lines[::2], [*lines[1::2], ""][: len(lines[::2])], strict=True):
        if not english.startswith("- ") or not other.startswith("  "):
            faults.append(f"comments: {english!r} should read '- English', below it '  Chinese'")
            break
        if english[2:] in chinese:
            faults.append(f"comments: {english[2:]!r} stands here twice. Remove one of them")
        chinese[english[2:]] = other.strip()
    return prose, chinese, faults


def remarks(source: str) -> Iterator[Remark]:
    """The comments and docstrings of a code cell; the markers of solutions are none."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("###"):
            row, column = token.start
            yield Remark(token.string.lstrip("# "), row - 1, row - 1, column, True)
    for node in _docstrings(ast.parse(source)):
        words = " ".join(node.value.value.split())
        yield Remark(words, node.lineno - 1, node.end_lineno - 1, node.col_offset, False)


def _docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            yield node.body[0]


def rendered(source: str, chinese: Mapping[str, str]) -> str:
    """A code cell with its comments and docstrings in Chinese, as far as there is any."""
    lines = source.split("\n")
    for remark in sorted(remarks(source), key=lambda each: -each.first):
        told = chinese.get(remark.english)
        if told and remark.is_comment:
            lines[remark.first] = f"{lines[remark.first][: remark.column]}# {told}"
        elif told:
            lines[remark.first : remark.last + 1] = _docstring(told, remark.column)
    return "\n".join(lines)


def _docstring(told: str, column: int) -> list[str]:
    """The lines of a docstring; a Chinese character is two columns wide."""
    margin = " " * column
    wide = sum(ord(character) > 0x2E80 for character in told) / len(told)
    room = int((COLUMNS - column - 6) / (1 + wide))
    lines = textwrap.wrap(told, room, break_on_hyphens=False)
    lines[0] = f'"""{lines[0]}'
    lines[-1] += '"""'
    return [margin + line for line in lines]


def bare(source: str) -> str:
    """What is left of code without comments and docstrings: the same for the same program."""
    tree = ast.parse(source)
    for node in list(_docstrings(tree)):
        node.value = ast.Constant("")
    return ast.dump(tree)


def faults(sources: Iterable[str], chinese: Mapping[str, str]) -> list[str]:
    """Chinese of comments that no code cell has."""
    there = {remark.english for source in sources for remark in remarks(source)}
    return [
        f"comments: no code cell says {english!r}. Remove it, or bring it up to date"
        for english in chinese
        if english not in there
    ]


def missing(sources: Iterable[str], chinese: Mapping[str, str]) -> list[str]:
    """Comments and docstrings without Chinese, in the order of the chapter."""
    found = []
    for source in sources:
        found += [each.english for each in sorted(remarks(source), key=lambda each: each.first)]
    return [english for english in dict.fromkeys(found) if english not in chinese]
