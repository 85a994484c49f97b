"""What labkit says, read off its code, held against the catalogue of its Chinese.

python tests/house/spoken.py     rewrites labkit/locale/zh.po in the order of the code: entries of
                                 no text go, texts without one get an empty one; lists those
"""

import ast
import json
import string
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEAKERS = {"both": 1, "say": 1, "to_say": 1, "wrong": 1, "over_budget": 1, "say_number": 2}
"""Functions that say something -> how many of their first arguments are texts."""
HEADER = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Language: zh\\n"
"""


def spoken(package: Path) -> dict[str, str]:
    """Every English text that is said and needs Chinese -> the file that says it first."""
    found: dict[str, str] = {}
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package.parent).as_posix()
        for text in of_code(path.read_text(encoding="utf-8")):
            found.setdefault(text, file)
    return found


def of_code(source: str) -> Iterator[str]:
    """The texts of one module: what its calls say, and the words of its tables."""
    for node in _in_order(source):
        for argument in _arguments(node):
            if isinstance(argument, ast.Constant):
                yield argument.value
        if isinstance(node, ast.Assign) and _is_table(node.targets[0]):
            yield from _words(node.value)


def _in_order(source: str) -> list[ast.AST]:
    """The calls and assignments of a module as they stand in its text."""
    kinds = (ast.Call, ast.Assign)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return sorted(nodes, key=lambda node: (node.lineno, node.col_offset))


def _arguments(node: ast.AST) -> list[ast.expr]:
    """The arguments of a call that are texts to be said."""
    if not isinstance(node, ast.Call):
        return []
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    return node.args[: SPEAKERS.get(name, 0)]


def _is_table(target: ast.expr) -> bool:
    """A module's table, or a board's own."""
    return isinstance(target, ast.Name) and target.id.endswith(("WORDS", "NAMES", "words"))


def _words(table: ast.expr) -> Iterator[str]:
    """The English of rows (key, English), as they stand or in a call of ``catalogue``."""
    rows = table.args[0] if isinstance(table, ast.Call) and table.args else table
    for row in getattr(rows, "elts", ()):
        parts = [getattr(each, "value", None) for each in getattr(row, "elts", ())]
        if len(parts) == 2 and all(isinstance(part, str) for part in parts):
            yield parts[1]


def made_up(source: str) -> list[int]:
    """Lines that say an f-string: nobody could look it up."""
    return [
        argument.lineno
        for node in _in_order(source)
        for argument in _arguments(node)
        if isinstance(argument, ast.JoinedStr)
    ]


def places(text: str) -> list[str]:
    """The places of a text that values fill, sorted: names, or numbers in their order."""
    named = [field for _, field, _, _ in string.Formatter().parse(text) if field is not None]
    return sorted(f"#{index}" if field == "" else field for index, field in enumerate(named))


def faults(texts: dict[str, str], chinese: dict[str, str]) -> list[str]:
    """Texts without Chinese, entries of no text, and places that only one language fills."""
    found = [f"{texts[text]}: no Chinese of {text!r}" for text in texts if not chinese.get(text)]
    found += [f"zh.po: nothing says {text!r}" for text in chinese if text not in texts]
    for text, other in chinese.items():
        if other and places(text) != places(other):
            found.append(f"zh.po: {text!r} has places {places(text)}, its Chinese {places(other)}")
    return found


def written(texts: dict[str, str], chinese: dict[str, str]) -> str:
    """The catalogue as a .po file, in the order of the code."""
    blocks = [HEADER]
    for text, file in texts.items():
        english = _quoted("msgid", text)
        blocks.append(f"#: {file}\n{english}\n{_quoted('msgstr', chinese.get(text, ''))}\n")
    return "\n".join(blocks)


def _quoted(word: str, text: str) -> str:
    """A text as a .po file has it: in one line, or a line for each of its own."""
    lines = [json.dumps(line, ensure_ascii=False) for line in text.splitlines(keepends=True)]
    if len(lines) > 1:
        lines.insert(0, '""')
    return f"{word} " + "\n".join(lines or ['""'])


def main() -> int:
    """Rewrites the catalogue. Returns 1 where it still lacks something."""
    sys.path.insert(0, str(ROOT))
    from labkit import words

    texts = spoken(ROOT / "labkit")
    chinese = dict(words.entries(words.CATALOGUE.read_text(encoding="utf-8")))
    words.CATALOGUE.write_text(written(texts, chinese), encoding="utf-8")
    lacking = faults(texts, {text: chinese.get(text, "") for text in texts})
    print(*lacking or ["every text has its Chinese"], sep="\n")
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
