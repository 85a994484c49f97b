"""The same cell on any device: who names a backend or the CPU is listed here, with the reason. What
chooses devices (``labkit/devices``, ``labkit/launching``) is where such words belong."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINS = {
    "labkit/accelerate/script_run.py": (1, "a machine without GPUs is the subject"),
    "labkit/data_parallel/server_run.py": (1, "NCCL can't receive from whoever comes first"),
    "labkit/debugging/faults.py": (1, "a sampler that shuffles does it on the host"),
    "labkit/recovery/checkpoint.py": (1, "a save in the background has a group of its own"),
    "labkit/your_own/run.py": (1, "a reader's module is built on the host, and goes in shards"),
    "notebooks/src/03_data_parallel.py": (
        2,
        "two machines played on one would share GPU 0; a script's function names its device itself",
    ),
    "notebooks/src/07_fsdp.py": (1, "loading is the subject: a whole model is read on the host"),
    "notebooks/src/22_your_own_machine.py": (
        1,
        "the plan's constants are those of this CPU",
    ),
}
"""How often a file does, and why."""
DECIDES = ("labkit/devices/", "labkit/launching/")
CALLS = {"device", "set_default_device", "init_device_mesh", "Generator", "new_group"}
"""Functions whose words are devices or backends."""


def pins(text: str) -> Iterator[int]:
    """The lines that name a backend, or the CPU as a device."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        words = [each for each in node.args if name in CALLS and _is(each, "cpu", "gloo")]
        for keyword in node.keywords:
            if keyword.arg == "backend" and isinstance(keyword.value, ast.Constant):
                words.append(keyword.value)
            elif keyword.arg in ("device", "devices", "device_id", "device_type"):
                words += [keyword.value] if _is(keyword.value, "cpu") else []
        if words:
            yield node.lineno


def _is(node: ast.expr, *words: str) -> bool:
    return isinstance(node, ast.Constant) and node.value in words


def found() -> dict[str, int]:
    """File -> how many of its calls are pinned."""
    counts = {}
    for folder in ("labkit", "notebooks/src"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            lines = list(pins(path.read_text(encoding="utf-8")))
            if lines and not name.startswith(DECIDES):
                counts[name] = len(lines)
    return counts


def test_who_names_a_backend_or_the_cpu_says_why():
    assert found() == {name: count for name, (count, _) in PINS.items()}


def test_there_are_fewer_than_ten_such_places():
    assert sum(found().values()) < 10


@pytest.mark.parametrize(
    "line",
    [
        'lab.launch(f, ranks=2, backend="gloo")',
        'x = torch.ones(3, device="cpu")',
        'with torch.device("cpu"): pass',
        'mesh = init_device_mesh("cpu", (2,))',
        'lab.launch(f, devices="cpu")',
    ],
)
def test_a_pin_is_found(line):
    assert list(pins(line)) == [1]


@pytest.mark.parametrize(
    "line", ['print("cpu")', "x.cpu()", 'x.to("cpu")', "launch(f, backend=backend)"]
)
def test_what_is_none_is_left_alone(line):
    assert not list(pins(line))
