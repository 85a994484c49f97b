"""A chapter's comments, docstrings and shown words in Chinese: the last part of
``notebooks/src/zh/NN_name.md``, a list with the English of each, and its Chinese below it::

    <!-- comments -->
    - a number
      一个数
    - "One step, by bucket size"
      "一步的时间与桶的大小"

They are known by their English, so one that stands in several cells is written once. What stands in
quotes is a word that a picture, a table or a question shows: a string of the code, exactly. What
has no Chinese yet stays English, and the build counts it; Chinese of what is gone is a fault.
Nothing else of a cell can change: ``bare`` is what is left of code without all these.
"""

import ast
import functools
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

MARKER = "<!-- comments -->"
COLUMNS = 88
WORD = re.compile("[a-z]{4}")
"""what is no unit and no name: not ms, MiB, ZeRO 3"""


SHOWING = {"guess", "show", "table", "curves", "bars", "score", "sweep"}
"""the verbs of lab that show a reader the strings they are given"""


class Remark(NamedTuple):
    """A comment, a docstring or a shown word of a code cell."""

    english: str
    """its words, in one line; in quotes where they are shown"""
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


@functools.lru_cache(maxsize=4096)
def remarks(source: str) -> tuple[Remark, ...]:
    """The comments and docstrings of a code cell; the markers of solutions are none."""
    return tuple(_remarks(source))


def _remarks(source: str) -> Iterator[Remark]:
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
    return _spoken("\n".join(lines), chinese)


def _spoken(source: str, chinese: Mapping[str, str]) -> str:
    """Code with its shown words in Chinese: strings that stand in the list, in quotes."""
    lines = source.split("\n")
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        if token.type != tokenize.STRING or token.start[0] != token.end[0]:
            continue
        told = chinese.get(_quoted(token.string))
        if told:
            row = token.start[0] - 1
            line = lines[row]
            lines[row] = line[: token.start[1]] + told + line[token.end[1] :]
    return "\n".join(lines)


def _quoted(literal: str) -> str:
    """A plain string of the code in double quotes; "" for one with a prefix."""
    if literal[0] not in "\"'" or literal[:3] in ('"""', "'''"):
        return ""
    return f'"{ast.literal_eval(literal)}"'


def shown(source: str) -> list[str]:
    """The words of a code cell that its reader is shown, in quotes: strings with a space in what
    the showing verbs are given, and all that a title or an axis is called."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or _verb(call.func) not in SHOWING:
            continue
        for each in [*call.args, *call.keywords]:
            found += [text for text in _strings(each) if " " in text.strip()]
        for named in call.keywords:
            if named.arg in ("title", "x", "y") and isinstance(named.value, ast.Constant):
                found.append(named.value.value)
    spoken = [text for text in found if WORD.search(text) and text.isascii()]
    return [f'"{text}"' for text in dict.fromkeys(spoken)]


def _verb(called: ast.expr) -> str:
    """The last name of what is called."""
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def _strings(tree: ast.AST) -> Iterator[str]:
    """The plain strings of an expression. Those that index something are names, not words; a dict
    of languages has its Chinese, and a badge is told by the picture."""
    if isinstance(tree, ast.keyword) and tree.arg == "badge":
        return
    if isinstance(tree, ast.Dict) and any(getattr(key, "value", "") == "en" for key in tree.keys):
        return
    if isinstance(tree, ast.Constant):
        if isinstance(tree.value, str):
            yield tree.value
        return
    for child in ast.iter_child_nodes(tree):
        if not isinstance(tree, ast.JoinedStr | ast.Subscript | ast.Compare):
            yield from _strings(child)


def _docstring(told: str, column: int) -> list[str]:
    """The lines of a docstring; a Chinese character is two columns wide."""
    margin = " " * column
    wide = sum(ord(character) > 0x2E80 for character in told) / len(told)
    room = int((COLUMNS - column - 6) / (1 + wide))
    lines = textwrap.wrap(told, room, break_on_hyphens=False)
    lines[0] = f'"""{lines[0]}'
    lines[-1] += '"""'
    return [margin + line for line in lines]


def bare(source: str, chinese: Mapping[str, str] | None = None) -> str:
    """What is left of code without comments, docstrings and the words shown that stand in the
    list: the same for the same program. A word and its Chinese become one and the same."""
    tree = ast.parse(source)
    for node in list(_docstrings(tree)):
        node.value = ast.Constant("")
    pairs = (chinese or {}).items()
    english = {told[1:-1]: word[1:-1] for word, told in pairs if word.startswith('"')}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in english:
            node.value = english[node.value]
    return ast.dump(tree)


def faults(sources: Iterable[str], chinese: Mapping[str, str]) -> list[str]:
    """Chinese of comments that no code cell has, and shown words that are no pair of strings."""
    cells = list(sources)
    there = {remark.english for source in cells for remark in remarks(source)}
    there |= {word for source in cells for word in _literals(source)}
    pairs = [(word, told) for word, told in chinese.items() if word.startswith('"')]
    unlike = [word for word, told in pairs if told[0] + told[-1] != '""' or '"' in told[1:-1]]
    told = [told for _, told in pairs]
    twice = sorted({each for each in told if told.count(each) > 1})
    return [
        *(f"comments: {word} is shown, so its Chinese stands in quotes too" for word in unlike),
        *(f"comments: two words have the same Chinese, {each}. Tell them apart" for each in twice),
    ] + [
        f"comments: no code cell says {english!r}. Remove it, or bring it up to date"
        for english in chinese
        if english not in there
    ]


def _literals(source: str) -> Iterator[str]:
    """Every plain string of a code cell, in quotes. One in two pieces is none: it can't be told."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING and token.start[0] == token.end[0]:
            yield _quoted(token.string)


def missing(sources: Iterable[str], chinese: Mapping[str, str]) -> list[str]:
    """Comments, docstrings and shown words without Chinese, in the order of the chapter."""
    found = []
    for source in sources:
        found += [each.english for each in sorted(remarks(source), key=lambda each: each.first)]
        found += shown(source)
    return [english for english in dict.fromkeys(found) if english not in chinese]
