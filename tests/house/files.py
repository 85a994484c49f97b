"""What the files of the tree may hold, and where they agree.

Notebooks without outputs, no paths of a machine, pins in one place, commands that there are, no
deprecated name of torch.
"""

import ast
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

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


LARGEST_BYTES = 600_000


def files(root: Path) -> Iterator[Path]:
    """What stands in the tree, without what git ignores."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(
            name for name in below if name not in IGNORED and not name.endswith(".egg-info")
        )
        yield from (Path(folder, name) for name in sorted(names))


def deprecated_faults(name: str, text: str) -> list[str]:
    """Names that torch has deprecated or removed, in code (prose may speak of them)."""
    code = "\n".join("pass" if re.match("[%!]", line) else line for line in text.splitlines())
    nodes = list(ast.walk(ast.parse(code)))
    alias = {}
    used = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            alias |= {each.asname: each.name for each in node.names if each.asname}
            used |= {each.name for each in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            used |= {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Attribute):
            head, *rest = _dotted(node)
            used.add(".".join([alias.get(head, head), *rest]))
    dotted = tuple(f"{each}." for each in used)
    found = [old for old in DEPRECATED if _below(old, dotted)]
    return [f"{name} uses {old}" for old in found]


def _dotted(node: ast.AST) -> list[str]:
    """The names in ``a.b.c``; where it does not begin with a name, "" is the first."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "")
    return names[::-1]


def _below(old: str, dotted: tuple[str, ...]) -> bool:
    """Whether one of the dotted names lies in the old one."""
    return any(each.startswith(f"{old}.") for each in dotted)


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
