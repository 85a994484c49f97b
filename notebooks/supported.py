"""What stands behind the numbers of a chapter's prose in the chapter itself: its code and formulas,
its outputs, or one step of arithmetic with numbers of the same paragraph."""

import ast
import html
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numerals
from chapter import Chapter
from nbformat import NotebookNode
from numerals import Number

FORMULA = re.compile(r"(?ms)\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]*`|^ *```.*?^ *```")
SUM = re.compile(
    r"(?<![\w.^)}/*+x×−-])(?<![-+*/x×−] )"
    r"(\d[\d.,]*(?: [-+*/x×−] \d[\d.,]*)+) = (\d[\d,]*(?:\.\d+)?(?: ?%)?)(?! ?[-+*/x×−^\d%])"
)
"""A sum that a text writes out with numbers alone."""
KINDS = ("time", "bytes", "flops", "share", "")
DIGITS = r"\d[\d_]*(?:\.\d+)?(?:e-?\d+)?"
UNITED = re.compile(rf"(?i)_(us|ms|s|bytes|kb|mb|gb)(?:_per_s)?\s*[=:]\s*({DIGITS})")
"""A number of code whose name says its unit: ``latency_us=200``."""
NAMES = {"kb": "kB", "mb": "MB", "gb": "GB"}
ROUGHLY = 0.03
"""How far off a number may be that the prose calls "about" so much."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Numbers that may stand behind others."""

    values: dict[str, list[float]]
    """kind -> sorted values"""

    @classmethod
    def of(cls, code: Iterable[Number], outputs: Iterable[Number] = ()) -> "Evidence":
        """Of numbers as they are written. A bare number of code may count anything; what is shown
        has its unit beside it."""
        values: dict[str, set[float]] = {kind: set() for kind in KINDS}
        for each in code:
            for kind in (each.kind, "") if each.kind else KINDS:
                values[kind].update((each.plain, each.value))
        for each in outputs:
            for kind in (each.kind, ""):
                values[kind].update((each.plain, each.value))
        return cls(values={kind: sorted(each) for kind, each in values.items()})

    def has(self, number: Number) -> bool:
        """Whether one of them rounds to this number."""
        values = self.values[number.kind]
        for target in {number.value, number.plain}:
            off = tolerance(number) * (target / number.value if number.value else 1.0)
            place = bisect_left(values, target - off)
            if place < len(values) and values[place] <= target + off:
                return True
        return False


def tolerance(number: Number) -> float:
    """How far from a number lies what rounds to it; further where the prose says "about"."""
    if not number.rough:
        return number.half * (1 + 1e-6) + 1e-12
    return max(in_thousands(number), ROUGHLY * number.value)


def in_thousands(number: Number) -> float:
    """How far from a number lies what rounds to it if its last zeros are no digits: 33,000."""
    digits = re.match(r"[\d,.]+", number.text)[0].replace(",", "")
    zeros = 0 if "." in digits else len(digits) - len(digits.rstrip("0"))
    return number.half * 10.0**zeros * (1 + 1e-6) + 1e-12


# --- what a chapter itself has ---


def own(chapter: Chapter) -> Iterator[Number]:
    """The numbers of a chapter's code, and of the formulas and the code in its prose."""
    for cell in chapter.cells:
        if cell.kind == "code":
            yield from code_numbers(cell.source)
            continue
        for found in FORMULA.finditer(cell.source):
            yield from code_numbers(found[0].strip("$`"))


def code_numbers(code: str) -> Iterator[Number]:
    """Numbers of code: constants, what arithmetic with constants makes, and those in its words."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        nodes = []
    yield from (bare(value) for value in map(constant, nodes) if value is not None)
    for found in re.findall(rf"(?<![\w.]){DIGITS}", code):
        yield bare(float(found.rstrip("_").replace("_", "")))
    for unit, digits in UNITED.findall(code):
        written = f"{float(digits.rstrip('_').replace('_', '')):.10f}"
        yield from numerals.numbers(f"{written} {NAMES.get(unit.lower(), unit)}")
    yield from numerals.numbers(code)


def bare(value: float) -> Number:
    """A number without a unit, as Python has it."""
    return Number(text=f"{value:g}", value=value, half=0.0, kind="", start=0, plain=value)


def constant(node: ast.AST) -> float | None:
    """The value of arithmetic with constants alone, e.g. ``1 << 20``; None for anything else."""
    if not isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Constant)):
        return None
    inner = list(ast.walk(node))
    parts = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    values = [getattr(each, "value", 0) for each in inner]
    plain = all(isinstance(each, parts) for each in inner)
    if not plain or any(not isinstance(each, (int, float)) or each > 1e15 for each in values):
        return None
    if any(isinstance(each, (ast.Pow, ast.LShift)) for each in inner) and max(values) > 4096:
        return None
    try:
        return float(eval(compile(ast.Expression(node), "constant", "eval"), {}))
    except (ArithmeticError, TypeError):
        return None


def shown(notebook: NotebookNode) -> Iterator[Number]:
    """Every number that a reader sees in the outputs of a chapter."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            for text in texts(output):
                yield from numerals.numbers(text)


def texts(output: NotebookNode) -> Iterator[str]:
    """The words of one output: printed, in a table, in a picture, on the pages of a board."""
    yield output.get("text", "")
    yield output.get("evalue", "")
    for kind, data in output.get("data", {}).items():
        if kind == "text/plain":
            yield data
        elif kind in ("text/html", "image/svg+xml", "text/markdown"):
            words = re.sub(r"(?s)<(style|script)\b.*?</\1>", " ", data)
            yield html.unescape(re.sub(r"<[^>]*>", "\n", words))


# --- what its paragraphs make of that ---


def paragraphs(cell: str) -> Iterator[tuple[int, int]]:
    """Where each paragraph of a cell begins and ends."""
    start = 0
    for found in re.finditer(r"\n\s*\n|\Z", cell):
        yield start, found.start()
        start = found.end()


def derived(number: Number, known: list[Number]) -> bool:
    """Whether one step of arithmetic with two known numbers makes this one."""
    return any(
        abs(made - target) <= off
        for a, b in itertools.permutations(known, 2)
        for made, target, off in _steps(number, a, b)
    )


def _steps(number: Number, a: Number, b: Number) -> Iterator[tuple[float, float, float]]:
    """(what a step makes, what it should make, how far off it may be)."""
    off = tolerance(number)
    for operation, kind in _kinds(a, b):
        if kind == number.kind:
            yield operation(a.value, b.value), number.value, off
    units = {each.unit for each in (number, a, b) if each.unit}
    if len(units) < 2 and number.value:
        plain = off * number.plain / number.value
        for operation in (_sum, _difference, _product, _quotient):
            yield operation(a.plain, b.plain), number.plain, plain


def _sum(a: float, b: float) -> float:
    return a + b


def _difference(a: float, b: float) -> float:
    return a - b


def _product(a: float, b: float) -> float:
    return a * b


def _quotient(a: float, b: float) -> float:
    return a / b if b else 0.0


def _kinds(a: Number, b: Number) -> Iterator[tuple]:
    """(a step, the kind of what it makes) for the steps that make sense."""
    if a.kind == b.kind:
        yield _sum, a.kind
        yield _difference, a.kind
        yield _quotient, ""
    if a.kind == b.kind in ("bytes", "flops"):
        yield _quotient, "time"  # by so many a second
    if not b.kind or b.kind == "share":
        yield _product, a.kind
        yield _quotient, a.kind


def unsupported(
    chapter: Chapter, evidence: Evidence, listed: Callable[[str, Number], bool]
) -> Iterator[tuple[str, Number]]:
    """(cell, number) of each number of the prose with nothing behind it; ``listed`` says of a cell
    and a number whether it has a source elsewhere."""
    for cell in chapter.cells:
        if cell.kind != "markdown":
            continue
        stated = numerals.claims(cell.source)
        for start, end in paragraphs(cell.source):
            here = [each for each in stated if start <= each.start < end]
            known = [each for each in here if evidence.has(each) or listed(cell.source, each)]
            left = [each for each in here if each not in known]
            known += formula_numbers(cell.source[start:end])
            while found := [each for each in left if derived(each, known)]:
                known += found
                left = [each for each in left if each not in found]
            yield from ((cell.source, each) for each in left)


def formula_numbers(paragraph: str) -> list[Number]:
    """The numbers of a paragraph's formulas and code."""
    found = [code_numbers(each[0].strip("$`")) for each in FORMULA.finditer(paragraph)]
    return list(itertools.chain.from_iterable(found))


def false_sums(text: str) -> Iterator[str]:
    """The sums that a cell writes out, 80.4 / 64 = 1.26, and that are none."""
    for found in SUM.finditer(text):
        terms = found[1].replace(",", "").replace("x", "*").replace("×", "*").replace("−", "-")
        made = constant(ast.parse(terms, mode="eval").body)
        (stated,) = numerals.numbers(found[2])
        if made is None or abs(made - stated.value) > in_thousands(stated):
            yield f"{found[0]} is not so: {terms} makes {made:.6g}"
