"""What public things owe their readers: a docstring, a line of text under each field, types."""

import ast
import functools
from collections.abc import Iterator

Tree = dict[str, str]


@functools.cache
def parsed(text: str) -> ast.Module:
    """The tree of a module, made once for all rules."""
    return ast.parse(text)


def _public(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(
            node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ) and not node.name.startswith("_"):
            yield f"{owner}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body, f"{owner}.{node.name}")


def docstring_faults(tree: dict[str, str]) -> list[str]:
    """Public things without a docstring, and fields of data classes without a line of text under
    them."""
    faults = []
    for name, text in tree.items():
        module = parsed(text)
        for label, node in ((name, module), *_public(module.body, name)):
            if not ast.get_docstring(node):
                faults.append(f"{label} has no docstring")
            if isinstance(node, ast.ClassDef) and _dataclass(node) is not None:
                faults += [f"{label}.{field} has no line of text" for field in _silent_fields(node)]
                if not {"frozen", "kw_only"} <= {keyword.arg for keyword in _dataclass(node)}:
                    faults.append(f"{label} is data: frozen and keyword-only")
    return faults


def _dataclass(node: ast.ClassDef) -> list[ast.keyword] | None:
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(call).endswith("dataclass"):
            return decorator.keywords if isinstance(decorator, ast.Call) else []
    return None


def _silent_fields(node: ast.ClassDef) -> Iterator[str]:
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        spoken = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if (
            isinstance(field, ast.AnnAssign)
            and not spoken
            and not ast.unparse(field.target).startswith("_")
        ):
            yield ast.unparse(field.target)


def type_faults(tree: dict[str, str]) -> list[str]:
    """Public functions with an argument or a return value of no stated type."""
    faults = []
    for name, text in tree.items():
        for label, node in _public(parsed(text).body, name):
            if isinstance(node, ast.ClassDef):
                continue
            spec = node.args
            arguments = [
                *spec.posonlyargs,
                *spec.args,
                *spec.kwonlyargs,
                *(a for a in (spec.vararg, spec.kwarg) if a),
            ]
            faults += [
                f"{label}: {a.arg} has no type"
                for a in arguments
                if a.annotation is None and a.arg not in ("self", "cls")
            ]
            if node.returns is None:
                faults.append(f"{label}: no return type")
    return faults
