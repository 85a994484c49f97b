"""Every number of the English prose has something behind it: the chapter itself (``supported.py``),
or a line of ``src/numbers.toml`` that says where it comes from.

    python notebooks/sourced.py         the numbers that have nothing, in every chapter; the outputs
                                        are those in out/checked, executed now if need be
    python notebooks/sourced.py 03 08   in these
    python notebooks/sourced.py --as-it-is 03   with the outputs that are there, current or not

Lines of ``src/numbers.toml`` stand under a chapter's two digits, or under ``all``::

    "counts 419 unexpected interruptions" = "Llama Team 2024, arXiv 2407.21783, section 3.3.4"
    "model needs 112 GB" = "= 7e9 * 16"
    "lists an A100 with 312 TFLOP/s" = "data/hardware.csv"

On the left words of the English prose, with the number in them; on the right where it comes from.
What begins with ``=`` is calculated, with ``math`` and the rooms of labkit at hand, and has to
round to the number. A file of ``data/`` has to hold it.
"""

import argparse
import ast
import importlib.util
import math
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import checked
import numerals
import supported
from chapter import Chapter, read, sources
from numerals import Number
from supported import Evidence

ROOT = Path(__file__).resolve().parent.parent
LIST = Path("notebooks", "src", "numbers.toml")
ALL = "all"
"""The table of what more than one chapter says."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the list."""

    chapter: str
    """two digits, or ``all``"""
    words: str
    """words of the prose, with a number in them"""
    source: str
    """where the number comes from"""

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the words stand in a cell, whatever blanks are between them."""
        words = r"\s+".join(map(re.escape, self.words.split()))
        for found in re.finditer(words, text):
            yield found.span()

    def numbers(self) -> list[Number]:
        """The numbers among its words."""
        return numerals.claims(self.words)


def lines(root: Path) -> list[Line]:
    """The list, chapter by chapter."""
    tables = tomllib.loads((root / LIST).read_text(encoding="utf-8"))
    return [
        Line(chapter=chapter, words=words, source=source)
        for chapter, table in tables.items()
        for words, source in table.items()
    ]


# --- what is wrong with a line ---


def line_faults(root: Path, line: Line, chapters: list[Chapter]) -> Iterator[str]:
    """What is wrong with a line itself."""
    where = f"{LIST.name} [{line.chapter}]: {line.words!r}"
    mine = [each for each in chapters if line.chapter in (ALL, each.name[:2])]
    if not any(_says(each, line) for each in mine):
        yield f"{where}: no prose says so any more. Remove the line, or bring its words up to date"
    if len(line.numbers()) != 1:
        yield f"{where}: the words have one number that needs a source, and no other"
    if len(line.source.split()) < 2 and not line.source.startswith("data/"):
        yield f"{where}: {line.source!r} names no source"
    for number in line.numbers():
        if line.source.startswith("="):
            yield from _false_value(where, line.source.removeprefix("="), number)
        if line.source.startswith("data/"):
            yield from _not_in_data(where, root / line.source.split()[0], number)


def _says(chapter: Chapter, line: Line) -> bool:
    return any(any(line.places(cell.source)) for cell in chapter.cells if cell.kind == "markdown")


def _false_value(where: str, expression: str, number: Number) -> Iterator[str]:
    value = calculated(expression)
    off = max(supported.tolerance(number), supported.in_thousands(number))
    plain = off * (number.plain / number.value if number.value else 1.0)
    if abs(value - number.value) > off and abs(value - number.plain) > plain:
        yield f"{where}: {expression.strip()} is {value:.6g}, the prose says {number.text}"


def calculated(expression: str) -> float:
    """Arithmetic as the list has it; a name in it is ``math``, a module of labkit, or Python's."""
    known = {"math": math}
    for node in ast.walk(ast.parse(expression.strip(), mode="eval")):
        if isinstance(node, ast.Name) and importlib.util.find_spec(f"labkit.{node.id}"):
            known[node.id] = importlib.import_module(f"labkit.{node.id}")
    return float(eval(expression.strip(), known))


def _not_in_data(where: str, file: Path, number: Number) -> Iterator[str]:
    if not file.exists():
        yield f"{where}: there is no {file.name}"
        return
    texts = re.findall(r"\d[\d.]*(?:e\d+)?", file.read_text(encoding="utf-8"))
    held = Evidence.of(
        supported.bare(float(each.rstrip("."))) for each in texts if _is_number(each)
    )
    if not held.has(number):
        yield f"{where}: {file.name} does not hold {number.text}"


def _is_number(text: str) -> bool:
    return text.count(".") <= 1 or text.rstrip(".").count(".") <= 1


# --- what is wrong with a chapter ---


def faults(chapter: Chapter, found: list[Number], known: list[Line]) -> Iterator[str]:
    """The numbers of a chapter's prose that have nothing behind them; ``found`` are those of its
    outputs."""
    here = [line for line in known if line.chapter in (ALL, chapter.name[:2])]
    evidence = Evidence.of(supported.own(chapter), found)
    for text, number in supported.unsupported(chapter, evidence, lambda *at: _listed(here, *at)):
        words = around(text, number)
        yield (
            f"{chapter.name[:2]}: nothing supports {number.text!r} in {words!r}. Mend it, or say "
            f'in src/numbers.toml under [{chapter.name[:2]}] where it comes from: "{words}" = '
            '"= 7 * 16", or a paper and its table, or a file of data/'
        )
    for cell in chapter.cells:
        if cell.kind == "markdown":
            for sum_ in supported.false_sums(cell.source):
                yield f"{chapter.name[:2]}: {sum_}"


def _listed(known: list[Line], text: str, number: Number) -> bool:
    """Whether a number of a cell stands among the words of a line."""
    return any(start <= number.start < end for line in known for start, end in line.places(text))


def around(text: str, number: Number) -> str:
    """A number with the words next to it, on one line."""
    before = re.search(r"(?:\S+\s+){0,3}\S*$", text[: number.start])[0]
    after = re.match(r"\S*(?:\s+\S+){0,2}", text[number.start + len(number.text) :])[0]
    return " ".join(f"{before}{number.text}{after}".split())


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    paths = {path.stem[:2]: path for path in sources(root)}
    parser = argparse.ArgumentParser(description="Numbers of the prose that nothing supports")
    parser.add_argument("chapters", nargs="*", help=f"of {' '.join(paths)}; all by default")
    parser.add_argument("--as-it-is", action="store_true", help="execute nothing")
    options = parser.parse_args(arguments)
    known = lines(root)
    chapters = {number: read(path) for number, path in paths.items()}
    found = []
    for number in options.chapters or chapters:
        copy = ("en", chapters[number].name)
        take = checked.load if options.as_it_is else checked.executed
        found += faults(chapters[number], [*supported.shown(take(root, copy))], known)
    for line in known:
        found += line_faults(root, line, [*chapters.values()])
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
