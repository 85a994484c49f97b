"""What the code calls: nothing that reads a file runs what it reads."""

import ast
from pathlib import Path

import files
import pytest

from labkit.launching import run as run_room

ROOT = Path(__file__).parents[2]


PRIVATE = "a rank's or its kernel's own file, in a folder that nobody else can enter"
ALLOWED = {
    "notebooks/sourced.py": {"eval": "sums in the project's own list of numbers"},
    "notebooks/supported.py": {"eval": "sums of numbers alone: the tree is looked at before"},
    "notebooks/src/13_checkpoint_and_recover.py": {
        "torch.load": "a file of the cell, to show what it runs"
    },
    "labkit/accelerate/script_run.py": {"runpy.run_path": "the script that its caller names"},
    "labkit/devices/on_pretend.py": {"exec": "the script that its command line names"},
    "labkit/launching/fork/worker.py": {"pickle.loads": PRIVATE},
    "labkit/launching/job.py": {"pickle.loads": PRIVATE},
    "labkit/launching/nodes/worker.py": {"pickle.loads": PRIVATE},
    "labkit/launching/script.py": {"pickle.loads": PRIVATE},
    "labkit/launching/verdicts/introspect.py": {
        "pickle.loads": "torch's flight recorder of this very process, from memory"
    },
}
RUNS = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "marshal.load",
    "marshal.loads",
    "shelve.open",
    "joblib.load",
    "dill.load",
    "dill.loads",
    "yaml.load",
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "pandas.read_pickle",
    "runpy.run_path",
}


def dangers(text: str) -> list[str]:
    """Calls that run what they read: by name, or by an argument."""
    module = ast.parse(text)
    names = {}
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        head, _, rest = ast.unparse(node.func).partition(".")
        name = names.get(head, head) + ("." + rest if rest else "")
        given = {each.arg: ast.unparse(each.value) for each in node.keywords}
        risky = (
            name in RUNS,
            given.get("shell", "False") != "False",
            given.get("allow_pickle", "False") != "False",
            name in ("numpy.load", "np.load") and "allow_pickle" not in given,
            name == "torch.load" and given.get("weights_only") != "True",
        )
        found += [name] * any(risky)
    return found


def python_only(text: str) -> str:
    """Without the lines that only IPython reads."""
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines())
    return "\n".join(lines)


def test_nothing_that_reads_files_runs_them():
    found = set()
    for part in ("labkit", "notebooks", "benchmarks"):
        for path in files.files(ROOT / part):
            if path.suffix == ".py":
                text = python_only(path.read_text(encoding="utf-8"))
                place = path.relative_to(ROOT).as_posix()
                found |= {(place, name) for name in dangers(text)}
    allowed = {(place, name) for place, names in ALLOWED.items() for name in names}
    assert found == allowed
    assert ValueError in run_room.UNREADABLE and Exception not in run_room.UNREADABLE


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.loads(b)",
        "from pickle import load as read\nread(f)",
        "import numpy as n\nn.load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import torch\ntorch.load(f)",
        "eval(x)",
        "exec(x)",
        "import torch\ntorch.load(f, weights_only=False)",
        "import subprocess\nsubprocess.run(x, shell=True)",
        "import os\nos.system(x)",
        "import numpy as np\nnp.load(f, allow_pickle=flag)",
    ],
)
def test_a_dangerous_call_would_be_found(code):
    assert len(dangers(code)) == 1
    assert (
        dangers(
            "import torch, numpy as np\ntorch.load(f, weights_only=True)\nnp.load(f, "
            "allow_pickle=False)\n"
            "model.eval()\nimport json\njson.load(f)\n'eval(x)'"
        )
        == []
    )
