"""Plain code, as functions: each takes the nodes of one file and gives (line, what is wrong) pairs.

ruff format breaks lines and statements; these rules hold what it leaves: several things said at
once. They hold for the package, the tests, the benchmarks and the scripts of the notebooks.
"""

import ast
import itertools
from collections.abc import Iterator

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
PLAIN = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.UnaryOp)
Fault = tuple[int, str]
TWO_LOOPS = "a comprehension with two loops: write them"


def plain_faults(text: str, *, strict: bool = True) -> list[Fault]:
    """Everything that this file says of a text, by line; where it is not strict, a comprehension
    may have two loops."""
    nodes = list(ast.walk(ast.parse(text)))
    rules = (tuple_faults, comprehension_faults, choice_faults, walrus_faults, index_faults)
    found = []
    for rule in rules:
        found += rule(nodes)
    found += line_faults(nodes)
    if not strict:
        found = [(line, what) for line, what in found if what != TWO_LOOPS]
    return sorted(found)


def tuple_faults(nodes: list[ast.AST]) -> Iterator[Fault]:
    """A tuple as a statement, and a tuple-packed assignment of more than names and constants."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
            yield node.lineno, "a tuple is no statement: a line for each"
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
            continue
        packed = isinstance(node.targets[0], ast.Tuple)
        if packed and any(not isinstance(value, PLAIN) for value in node.value.elts):
            yield node.lineno, "a packed assignment: a line for each"


def comprehension_faults(nodes: list[ast.AST]) -> Iterator[Fault]:
    """A comprehension inside another, or with two loops."""
    for node in nodes:
        if not isinstance(node, COMPREHENSIONS):
            continue
        inner = [each for each in ast.walk(node) if isinstance(each, COMPREHENSIONS)]
        if len(inner) > 1:
            yield node.lineno, "a comprehension inside a comprehension: name the inner one"
        if len(node.generators) > 1:
            yield node.lineno, TWO_LOOPS


def choice_faults(nodes: list[ast.AST]) -> Iterator[Fault]:
    """A conditional expression inside another."""
    for node in nodes:
        if not isinstance(node, ast.IfExp):
            continue
        inner = [each for each in ast.walk(node) if isinstance(each, ast.IfExp)]
        if len(inner) > 1:
            yield node.lineno, "a choice inside a choice: if, elif, else"


def walrus_faults(nodes: list[ast.AST]) -> Iterator[Fault]:
    """A name given inside a comprehension, an f-string or a call; ``if`` and ``while`` may."""
    for node in nodes:
        if not isinstance(node, (*COMPREHENSIONS, ast.JoinedStr)):
            continue
        if any(isinstance(each, ast.NamedExpr) for each in ast.walk(node)):
            yield node.lineno, "a name given inside an expression: a line before it"


def index_faults(nodes: list[ast.AST]) -> Iterator[Fault]:
    """Truth used as a number: a slice from bool(...), a product with a comparison."""
    for node in nodes:
        bounds = (node.lower, node.upper) if isinstance(node, ast.Slice) else ()
        for bound in bounds:
            if isinstance(bound, ast.Call) and ast.unparse(bound.func) == "bool":
                yield node.lineno, "a truth value is no index: say it with if"
        product = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        if product and ast.Compare in (type(node.left), type(node.right)):
            yield node.lineno, "a truth value is no factor: say it with if"


def line_faults(nodes: list[ast.AST]) -> list[Fault]:
    """Two statements on a line, or a statement on its header's line."""
    faults = []
    for node in nodes:
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body:
            continue
        lines = [each.lineno for each in body]
        if isinstance(node, ast.stmt) and lines[0] == node.lineno:
            faults.append((node.lineno, "a statement on its header's line"))
        for line, after in itertools.pairwise(lines):
            if line == after:
                faults.append((line, "two statements on a line"))
    return faults
