"""The house rules as functions: who may import whom, and how large things are.

Each takes the package as {dotted name: text} and returns a list of faults, empty when all is well.
What a module may import follows from where it lies and what its file is called, so a new subject
is held to the rules without being registered.
"""

import ast
import graphlib
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from public import parsed

PACKAGE = "labkit"
STAGE = ("machine", "devices", "launching", "measure", "pictures", "widgets", "check")
"""The folders that serve every subject; each imports from those to its left."""
ROLES = ("run", "picture", "board", "check")
"""What the last word of a subject's file says of it; any other file is theory."""
KNOWN = {
    "faults": "run",  # programs that break, made to be launched
    "health": "run",  # what ranks ask about themselves while they run
    "checkpoint": "run",  # what ranks write
    "engines": "run",  # reads live engines
    "demo": "board",  # a command of ``python -m labkit``, from ranks to pictures
    "command": "board",  # the same
    "incremental": "run",  # these three: parts of a checkpoint
    "folder": "run",
    "state": "run",
}
"""Last words of files that have the field's own name instead of a role's, and their role."""
PURE = {
    "check.chapters",
    "check.shared.content",
    "check.shared.mistakes",
    "check.verdict",
    "machine.topology",
    "devices.rung",
    "launching.verdicts.outcome",
    "launching.verdicts.diagnosis",
    "launching.verdicts.disagreement",
}
"""Nouns and theory of the stage: no process, no torch, so pictures and theory may know them."""
EXPERIMENT = "experiment"
GIVEN_BACK = ("launching.job", "launching.run")
"""The noun whose subclasses start runs, and what a start gives back."""
TORCH_NOUNS = ("model", "mesh")
"""The noun that is made of torch, the small transformer; and the one that becomes torch's inside
ranks."""
ENGINES = {"torch", "accelerate", "deepspeed", "transformers"}
FILE_LINES, FUNCTION_LINES, MEDIAN_LINES = 350, 45, 12
FOLDER_FILES, ROOT_FILES = 14, 13
BAD_WORDS = {"manager", "helper", "helpers", "base", "util", "utils", "common", "core"}

Tree = dict[str, str]


def sources(package: Path) -> Tree:
    """Every module of a package: dotted name below the package -> its text."""
    tree = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).with_suffix("").as_posix().replace("/", ".")
        tree[name] = path.read_text(encoding="utf-8")
    return tree


def role(name: str) -> str:
    """What a module is: "noun", "hand" (``__main__``), "stage machine" and so on, "theory", one of
    ROLES, or "front" for a package's own names."""
    folder, _, stem = name.rpartition(".")
    top = folder.split(".")[0]
    if top in STAGE:
        return f"stage {top}"
    if stem == "__init__":
        return "front"
    if not folder:
        return "hand" if stem == "__main__" else "noun"
    last = stem.rpartition("_")[2]
    return KNOWN.get(last, last if last in ROLES else "theory")


def subject(name: str) -> str:
    """The subject that a module belongs to; "" for nouns and the stage."""
    top, _, rest = name.partition(".")
    return top if rest and top not in STAGE else ""


# --- who imports whom ---


def imports(name: str, tree: Tree, *, at_load: bool) -> set[str]:
    """The modules of the package that one module imports: those at load time, or all of them."""
    module = parsed(tree[name])
    found = set()
    for node in _loaded(module.body) if at_load else ast.walk(module):
        for target in _targets(name, node, tree):
            found.add(_module(target, tree))
    return found - {name}


def _loaded(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run when a module is loaded; not what stands under TYPE_CHECKING."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for part in ("body", "orelse", "handlers", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _loaded(getattr(node, part, []))


def _targets(name: str, node: ast.AST, tree: Tree) -> Iterator[str]:
    """Dotted names below the package that a statement imports."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        stem = node.module or ""
        if node.level:
            above = [PACKAGE, *name.split(".")][: -node.level]
            stem = ".".join([*above, *filter(None, [node.module])])
        names = [f"{stem}.{alias.name}" for alias in node.names]
    else:
        return
    for each in names:
        head, _, rest = each.partition(".")
        if head == PACKAGE:
            yield rest


def _module(target: str, tree: Tree) -> str:
    """The module that holds a dotted name: the longest beginning that is one."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        found = ".".join(parts[:length])
        if found in tree:
            return found
        if f"{found}.__init__" in tree:
            return f"{found}.__init__"
    return "__init__"


def import_faults(tree: Tree) -> list[str]:
    """Imports that the plan of the house forbids, inside functions too."""
    faults = []
    for name in tree:
        kind = role(name)
        if kind in ("front", "hand"):
            continue
        loaded = imports(name, tree, at_load=True)
        for other in sorted(imports(name, tree, at_load=False)):
            if other not in loaded and is_experiments_own(name, other, tree):
                continue
            if why := forbidden(name, other):
                faults.append(f"{name} ({kind}) imports {other or PACKAGE}: {why}")
    return faults


def is_experiments_own(name: str, other: str, tree: Tree) -> bool:
    """Whether a module is what an experiment may name without loading it: the run and the picture
    of its own subject, and what a start gives back."""
    if name != EXPERIMENT and f"({EXPERIMENT.capitalize()}):" not in tree[name]:
        return False
    mine = subject(name)
    own = mine == subject(other) != "" and role(other) in ("run", "picture")
    return own or other in GIVEN_BACK


def forbidden(name: str, other: str) -> str:
    """Why one module may not import another, or "" where it may."""
    kind = role(name)
    wanted = role(other)
    if wanted in ("front", "hand"):
        return "" if kind in ("board", "check") else "name the module that has what you need"
    if wanted == "noun" or other in PURE:
        return ""
    if kind == "noun":
        return "" if wanted == "stage pictures" else "a noun knows nouns, and pictures of itself"
    if kind.startswith("stage"):
        return _forbidden_on_stage(kind, wanted)
    if wanted in ("board", "check") and subject(other):
        return "" if subject(name) == subject(other) else "boards and checks are for readers alone"
    if kind == "theory" and wanted == "picture" and subject(name) == subject(other):
        return ""  # of what shows itself; at load time ``cycle_faults`` forbids it
    return _forbidden_in_subject(kind, wanted)


def _forbidden_on_stage(kind: str, wanted: str) -> str:
    if not wanted.startswith("stage"):
        return "the stage knows no subject"
    here = STAGE.index(kind.removeprefix("stage "))
    there = STAGE.index(wanted.removeprefix("stage "))
    if kind == "stage pictures" and here != there:
        return "pictures know nouns and pictures"
    if kind == "stage launching" and wanted == "stage measure":
        return ""  # a run's own timeline; at load time ``cycle_faults`` forbids it
    return "" if there <= here else "it stands to the right"


def _forbidden_in_subject(kind: str, wanted: str) -> str:
    allowed = {
        "theory": ("theory",),
        "run": (
            "theory",
            "run",
            "stage machine",
            "stage devices",
            "stage launching",
            "stage measure",
        ),
        "picture": ("theory", "picture", "stage pictures"),
        "board": ("theory", "run", "picture", "board", *(f"stage {each}" for each in STAGE[:-1])),
        "check": ("theory", "run", "picture", "check", *(f"stage {each}" for each in STAGE)),
    }
    if kind == "theory" and wanted == "run":
        return "theory starts nothing"
    return "" if wanted in allowed[kind] else f"{kind} knows {', '.join(allowed[kind])}"


def cycle_faults(tree: Tree) -> list[str]:
    """Imports at load time that go round: of modules, and of subjects."""
    modules = {}
    subjects: dict[str, set[str]] = {}
    for name in tree:
        loads = imports(name, tree, at_load=True)
        parents = {f"{other.rpartition('.')[0]}.__init__" for other in loads}
        modules[name] = (loads | parents & set(tree)) - {name, *_own_fronts(name)}
        if mine := subject(name):
            theirs = {subject(other) for other in imports(name, tree, at_load=False)}
            subjects.setdefault(mine, set()).update(theirs - {mine, ""})
    faults = []
    for what, graph in (("modules", modules), ("subjects", subjects)):
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            faults.append(f"{what} import in a circle: {' <- '.join(error.args[1])}")
    return faults


def _own_fronts(name: str) -> set[str]:
    """The packages that a module lies in: they are being loaded when it is."""
    parts = name.split(".")[:-1]
    above = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return {"__init__", *(f"{each}.__init__" for each in above)}


def engine_faults(tree: Tree) -> list[str]:
    """torch and the like where one thinks or draws; accelerate or deepspeed at import time."""
    faults = []
    for name, text in tree.items():
        module = parsed(text)
        if (
            role(name) in ("noun", "theory", "stage pictures", "picture", "front")
            and name not in TORCH_NOUNS
        ):
            heavy = ENGINES & _heads(ast.walk(module))
            faults += [f"{name} ({role(name)}) imports {engine}" for engine in sorted(heavy)]
        loaded = (ENGINES - {"torch"}) & _heads(_loaded(module.body))
        faults += [f"{name} imports {engine} at import time" for engine in sorted(loaded)]
    return faults


def _heads(nodes: Iterator[ast.AST]) -> set[str]:
    """The first words of what statements import from elsewhere."""
    heads = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            heads |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            heads.add(node.module.split(".")[0])
    return heads


# --- how large ---


def functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method in a module, nested ones included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(parsed(text)) if isinstance(node, kinds)]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from def to end."""
    return function.end_lineno - function.lineno + 1


def size_faults(tree: Tree) -> list[str]:
    """Files and functions over their budget, and a median function that is."""
    faults = []
    lengths = []
    for name, text in tree.items():
        lines = len(text.splitlines())
        if lines > FILE_LINES:
            faults.append(f"{name} has {lines} lines of {FILE_LINES}")
        for function in functions(text):
            lengths.append(length(function))
            if length(function) > FUNCTION_LINES:
                faults.append(
                    f"{name}.{function.name} has {length(function)} lines of {FUNCTION_LINES}"
                )
    median = statistics.median(lengths or [0])
    if median > MEDIAN_LINES:
        faults.append(f"the median function has {median:g} lines of {MEDIAN_LINES}")
    return faults


def folder_faults(tree: Tree) -> list[str]:
    """Folders with more files than one can overlook."""
    files: dict[str, int] = {}
    for name in tree:
        folder = name.rpartition(".")[0]
        files[folder] = files.get(folder, 0) + 1
    faults = []
    for folder, count in files.items():
        most = FOLDER_FILES if folder else ROOT_FILES
        if count > most:
            faults.append(f"{folder or PACKAGE} has {count} files of {most}")
    return faults


# --- what things are called ---


def name_faults(tree: Tree) -> list[str]:
    """Modules, classes and functions whose name says nothing, and modules called like their one
    function."""
    faults = []
    for name, text in tree.items():
        module = parsed(text)
        kinds = (ast.ClassDef, ast.FunctionDef)
        defined = [node.name for node in ast.walk(module) if isinstance(node, kinds)]
        for each in (*name.split("."), *defined):
            words = set(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", each))
            bad = sorted(BAD_WORDS & {word.lower() for word in words})
            faults += [f"{name}: {each} is called {word}" for word in bad]
        public = [node.name for node in module.body if isinstance(node, kinds)]
        public = [each for each in public if not each.startswith("_")]
        if public == [name.rpartition(".")[2]]:
            faults.append(f"{name} is called like the one thing in it")
    return faults
