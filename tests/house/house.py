"""The house rules as functions: each takes what it judges and returns a list of faults, empty when
all is well."""

import ast
import io
import json
import os
import re
import statistics
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

FLOORS = {
    0: ("units", "mesh", "timeline", "shards", "topology", "ending"),
    1: (
        "order",
        "schedule",
        "simulate",
        "residual",
        "collectives",
        "network",
        "buckets",
        "memory",
        "partition",
        "footprint",
        "plan",
        "diagnosis",
    ),
    2: (
        "ops",
        "machine",
        "hardware",
        "wire",
        "verdict",
        "witness",
        "rank",
        "zygote",
        "traffic",
        "labels",
        "trace",
        "payload",
        "server",
        "peer",
        "run",
        "job",
        "launcher",
        "script",
        "pace",
        "engines",
        "meter",
        "model",
        "pipeline",
        "pipedream",
        "exchange",
        "calibrate",
        "data_parallel",
        "sharded",
        "health",
        "faults",
        "checkpoint",
    ),
    3: (
        "style",
        "scene",
        "sketch",
        "chart",
        "diagram",
        "bill",
        "transfer",
        "report",
        "layout",
        "svg",
        "mpl",
        "text",
    ),
    4: ("export", "viewer", "accelerated", "widgets", "check", "demo", "__main__"),
}
"""Imports go down; on one floor, towards the left. A new module gets its place here."""

PLACE = {
    room: (floor, position)
    for floor, rooms in FLOORS.items()
    for position, room in enumerate(rooms)
}
FLOOR_NAMES = ("words", "theory", "machine", "pictures", "hands")
FILE_LINES, FUNCTION_LINES, MEDIAN_LINES, HOUSE_LINES = 300, 40, 12, 7400
CHAPTERS, CHAPTER_LINES = 19, 120
BAD_WORDS = {"manager", "helper", "helpers", "base", "util", "utils", "common", "core"}
ENGINES = {"torch", "accelerate", "deepspeed", "transformers"}
DEPRECATED = (
    "torch.cuda.amp",
    "torch.distributed.launch",
    "torch.distributed.pipeline.sync",
    "torch.distributed._tensor",
    "torch.distributed.reduce_op",
    "torch.distributed._all_gather_base",
    "torch.distributed._reduce_scatter_base",
    "torch.distributed.checkpoint.save_state_dict",
    "torch.distributed.checkpoint.load_state_dict",
    "torch.distributed.all_gather_multigpu",
    "torch.distributed.all_gather_into_tensor",
    "torch.distributed.reduce_scatter_tensor",
    "torch.nn.parallel.DataParallel",
    "torch.nn.DataParallel",
)
FOREIGN_PATH = re.compile(r"(?<![\w.:/~-])/(?:home|root|Users|work)/")
IGNORED = {
    ".git",
    ".venv",
    "out",
    "build",
    "__pycache__",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".hypothesis",
}
FREE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
LARGEST_BYTES = 600_000


def sources(package: Path) -> dict[str, str]:
    """Every module of a package: dotted name below the package -> its text."""
    tree = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).with_suffix("").as_posix().replace("/", ".")
        tree[name.removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return tree


def files(root: Path) -> Iterator[Path]:
    """What stands in the tree, without what git ignores."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(
            name for name in below if name not in IGNORED and not name.endswith(".egg-info")
        )
        yield from (Path(folder, name) for name in sorted(names))


def room_of(name: str) -> str:
    """The room of a module: widgets.panel stands in widgets."""
    return name.split(".")[0]


def edges(name: str, text: str, package: str = "labkit") -> Iterator[str]:
    """The rooms a module imports, inside functions too; "__init__" for the package itself."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = ".".join([package, *name.split(".")][: -node.level]) if node.level else ""
            stem = ".".join(part for part in (stem, node.module) if part)
            targets = (
                [f"{stem}.{alias.name}" for alias in node.names] if stem == package else [stem]
            )
        else:
            continue
        for target in targets:
            head, _, rest = target.partition(".")
            if head == package:
                yield room_of(rest) if room_of(rest) in PLACE else "__init__"


def floor_faults(tree: dict[str, str]) -> list[str]:
    """Imports that do not go down, or to the left; rooms without a floor. Such imports can form no
    cycle."""
    faults = []
    for name, text in tree.items():
        room = room_of(name)
        if room == "__init__":
            faults += [
                f"__init__ imports {other}; it loads rooms lazily" for other in edges(name, text)
            ]
        elif room not in PLACE:
            faults.append(f"{name} has no floor: give it a place in FLOORS")
        else:
            faults += [
                f"{name} imports {other}: {why}"
                for other in edges(name, text)
                if (why := _climbs(room, other))
            ]
    return faults


def _climbs(room: str, other: str) -> str:
    if other == "__init__":
        return "" if PLACE[room][0] == 4 else "name the room that has what you need"
    (floor, position), (below, left) = PLACE[room], PLACE[other]
    if room == other:
        return ""
    if floor == 3 and below == 2:
        return "pictures never reach into the machine floor"
    if below == 4:
        return "" if floor == 4 and left < position else "nobody imports the hands"
    if (below, left) < (floor, position):
        return ""
    where = "to the right" if below == floor else "above"
    return f"{other} is on floor {below} ({FLOOR_NAMES[below]}), {where}"


def engine_faults(tree: dict[str, str]) -> list[str]:
    """torch and the like on the floors that think or draw; accelerate or deepspeed imported at
    import time."""
    faults = []
    for name, text in tree.items():
        module = ast.parse(text)
        floor = PLACE.get(room_of(name), (4, 0))[0]
        if floor in (0, 1, 3):
            faults += [
                f"{name} imports {engine}"
                for engine in _heads(ast.walk(module))
                if engine in ENGINES
            ]
        faults += [
            f"{name} imports {engine} at import time"
            for engine in _heads(module.body)
            if engine in ENGINES - {"torch"}
        ]
    return faults


def _heads(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method in a module, nested ones included."""
    return [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from def to end."""
    return function.end_lineno - function.lineno + 1


def size_faults(tree: dict[str, str]) -> list[str]:
    """Files and functions over their budget."""
    faults = [
        f"{name} has {lines} lines of {FILE_LINES}"
        for name, text in tree.items()
        if (lines := len(text.splitlines())) > FILE_LINES
    ]
    for name, text in tree.items():
        faults += [
            f"{name}.{function.name} has {length(function)} lines of {FUNCTION_LINES}"
            for function in functions(text)
            if length(function) > FUNCTION_LINES
        ]
    return faults


def code_lines(text: str) -> int:
    """Lines that hold code: blank lines, comments and docstrings are free, so that nobody saves on
    explaining."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in FREE and not (
            token.type == tokenize.STRING and token.line.strip().startswith('"""')
        ):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def total_faults(tree: dict[str, str]) -> list[str]:
    """The house as a whole, the median function, and the hands per chapter (with what they alone
    run on ranks)."""
    house = [text for name, text in tree.items() if PLACE.get(room_of(name), (0,))[0] < 4]
    hands = [
        text for name, text in tree.items() if room_of(name) in ("accelerated", "widgets", "check")
    ]
    total, at_hand = (sum(code_lines(text) for text in texts) for texts in (house, hands))
    lengths = [length(function) for text in house for function in functions(text)]
    median, most = statistics.median(lengths or [0]), CHAPTERS * CHAPTER_LINES * 2
    checks = (
        (total > HOUSE_LINES, f"floors 0 to 3 have {total} lines of code, of {HOUSE_LINES}"),
        (median > MEDIAN_LINES, f"the median function has {median} lines of {MEDIAN_LINES}"),
        (at_hand > most, f"widgets and check have {at_hand} lines of {most}"),
    )
    return [fault for bad, fault in checks if bad]


def name_faults(tree: dict[str, str]) -> list[str]:
    """Modules, classes and functions whose name says nothing."""
    faults = []
    for name, text in tree.items():
        defined = [
            node.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        ]
        for each in (*name.split("."), *defined):
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", each)}
            faults += [f"{name}: {each} is called {word}" for word in sorted(words & BAD_WORDS)]
    return faults


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
        module = ast.parse(text)
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
        for label, node in _public(ast.parse(text).body, name):
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


def deprecated_faults(name: str, text: str) -> list[str]:
    """Names that torch has deprecated or removed, in code (prose may speak of them)."""
    code = "\n".join("pass" if re.match(r"\s*[%!]", line) else line for line in text.splitlines())
    module = ast.parse(code)
    imports = [a for node in ast.walk(module) if isinstance(node, ast.Import) for a in node.names]
    alias, used = {a.asname: a.name for a in imports if a.asname}, {a.name for a in imports}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            used |= {f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            used.add(f"{alias.get(head, head)}.{rest}")
    return [
        f"{name} uses {old}"
        for old in DEPRECATED
        if any(f"{each}.".startswith(f"{old}.") for each in used)
    ]


def notebook_faults(name: str, text: str) -> list[str]:
    """Outputs, execution counts or widget states in a committed notebook."""
    notebook = json.loads(text)
    cells = [
        f"{name}: cell {position} has been run"
        for position, cell in enumerate(notebook["cells"])
        if cell.get("outputs") or cell.get("execution_count")
    ]
    return cells + ([f"{name}: holds widget states"] if "widgets" in notebook["metadata"] else [])


def file_faults(root: Path) -> list[str]:
    """Paths of one person's machine, run notebooks, and files too large for a repository of
    text."""
    faults = []
    for path in files(root):
        name = path.relative_to(root).as_posix()
        if path.stat().st_size > LARGEST_BYTES:
            faults.append(f"{name} has {path.stat().st_size} bytes of {LARGEST_BYTES}")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        faults += [f"{name} names {found[0]}" for found in FOREIGN_PATH.finditer(text)]
        faults += notebook_faults(name, text) if path.suffix == ".ipynb" else []
    return faults


def pins(project: dict) -> dict[str, str]:
    """The versions pyproject.toml pins: package -> version. Raises ValueError for a requirement
    that is not pinned."""
    listed = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["test"],
    ]
    loose = [
        requirement for requirement in listed if not re.fullmatch(r"[\w.-]+==[\w.]+", requirement)
    ]
    if loose:
        raise ValueError(f"a requirement is pinned with ==; not so: {', '.join(loose)}")
    return dict(requirement.split("==") for requirement in listed)


def conda_faults(environment: str, project: dict) -> list[str]:
    """Where environment.yml says something that pyproject.toml does not, or pins anything
    itself."""
    listed = re.findall(r"^\s*- (.+?):?$", environment.partition("dependencies:")[2], re.MULTILINE)
    wanted = {
        f"python{project['project']['requires-python']}",
        "cxx-compiler",
        "make",
        "pip",
        "-e .[test]",
    }
    return [f"environment.yml lacks {each}" for each in sorted(wanted - set(listed))] + [
        f"environment.yml lists {each}; pins stand in pyproject.toml"
        for each in sorted(set(listed) - wanted)
    ]


def command_faults(text: str, makefile: str) -> list[str]:
    """``make`` commands a text names that the Makefile does not have."""
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    named = re.findall(r"(?:^ *|`|&& )make +([a-z]+)\b", text, re.MULTILINE)
    return [f"make {name} is no target" for name in sorted(set(named) - targets)]
