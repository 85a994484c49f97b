"""The project keeps its word: what is pinned, exported, promised in the README and made by make."""

import contextlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import files
import pytest

import labkit
from labkit.devices import library

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README, MAKEFILE, CI = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile", ".ci/run")
)
EXPORTS = {
    "__version__",
    "launch",
    "launch_script",
    "start",
    "warm",
    "Job",
    "Slurm",
    "Hosts",
    "Run",
    "LaunchError",
    "RankFailed",
    "pretend",
    "Deadlock",
    "Timeout",
    "Stopped",
    "Refused",
    "sweep",
    "advise",
    "show",
    "table",
    "begin",
    "guess",
    "progress",
    "curves",
    "bars",
    "difference",
    "course",
    "ladder",
}


@pytest.mark.alone  # a bound in seconds
def test_importing_labkit_takes_under_a_fifth_of_a_second_of_cpu_and_loads_nothing_heavy():
    code = (
        "import time, sys; t = time.process_time(); import labkit; "
        "print(time.process_time() - t, *{'torch', 'numpy', 'matplotlib', 'ipywidgets'} & "
        "set(sys.modules))"
    )
    answers = [
        subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).split()
        for _ in range(3)
    ]
    assert min(float(answer[0]) for answer in answers) < 0.2
    assert all(answer[1:] == [] for answer in answers), answers


def test_the_export_list_is_exact():
    assert set(labkit.__all__) == EXPORTS == set(dir(labkit))
    assert labkit.__version__ == PROJECT["project"]["version"]
    with pytest.raises(AttributeError, match="'gpipe' is not among them"):
        labkit.gpipe  # noqa: B018


@pytest.mark.parametrize("name", sorted(EXPORTS))
def test_every_export_is_there(name):
    assert getattr(labkit, name) is not None


def test_environment_yml_agrees_with_pyproject():
    text = (ROOT / "environment.yml").read_text()
    assert files.conda_faults(text, PROJECT) == []
    assert files.conda_faults(text.replace("3.11", "3.12"), PROJECT) == [
        "environment.yml lacks python>=3.11",
        "environment.yml lists python>=3.12; pins stand in pyproject.toml",
    ]
    assert files.conda_faults(text + "      - torch==2.0\n", PROJECT) == [
        "environment.yml lists torch==2.0; pins stand in pyproject.toml"
    ]


def test_what_is_installed_is_what_is_pinned():
    pinned = files.pins(PROJECT)
    assert pinned["torch"] == "2.13.0"
    installed = {name: importlib.metadata.version(name).partition("+")[0] for name in pinned}
    assert installed == pinned


def test_a_loose_requirement_is_refused():
    with pytest.raises(ValueError, match="numpy>=2"):
        files.pins(
            {"project": {"dependencies": ["numpy>=2"], "optional-dependencies": {"test": []}}}
        )


def test_every_make_command_named_is_a_target_and_ci_runs_the_test_command():
    pages = ("CONTRIBUTING.md", "TEACHING.md", "TEACHING.zh.md")
    for text in (README, CI, *((ROOT / page).read_text("utf-8") for page in pages)):
        assert re.search(r"make \w+", text)
        assert files.command_faults(text, MAKEFILE) == []
    assert files.command_faults("    make tea\n`make lab`", MAKEFILE) == ["make tea is no target"]
    assert "    make test" in README
    assert CI.strip().splitlines()[-1] == "make test"


@pytest.mark.parametrize("made", ["slides", "handouts"])
def test_slides_and_handouts_can_be_made_of_one_chapter(made):
    words = ["make", "--no-print-directory", "--dry-run", made]
    for chapters in ((), ("00", "02")):
        asked = [f"CHAPTERS={' '.join(chapters)}"] if chapters else []
        done = subprocess.run(
            [*words, *asked], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
        )
        *_, last = done.stdout.splitlines()
        assert last.split()[1:] == [f"notebooks/{made}.py", *chapters]


def test_the_readmes_first_screen_is_in_order():
    text = README.partition("\n## ")[0]
    parts = [
        "# labkit",
        "](data/readme/",
        "    make lab",
        "    make test",
        "```python",
        "<!-- chapters -->",
        "<!-- /chapters -->",
    ]
    places = [text.find(part) for part in parts]
    assert -1 not in places and places == sorted(places), dict(zip(parts, places, strict=True))


@pytest.mark.timeout(180)
@pytest.mark.real
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.again), "pretend"])
def test_the_readmes_six_lines_of_python_run(device):
    if device == "pretend" and (reason := library.why_not("pretend")):
        pytest.skip(reason)
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len(code.strip().splitlines()) == 6
    done = subprocess.run(
        [sys.executable, "-"],
        input=code,
        capture_output=True,
        text=True,
        timeout=150,
        cwd=ROOT,
        env=os.environ | {"LABKIT_DEVICE": device},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "tensor([4., 4., 4.])" in done.stdout


def test_a_script_beside_a_folder_called_labkit_finds_the_package(tmp_path):
    (tmp_path / "labkit").mkdir()  # as a clone: no package
    (tmp_path / "mine.py").write_text("import labkit\nprint(labkit.__version__)\n")
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=without, capture_output=True, text=True
    )
    assert done.stdout, f"{done.stderr}\nan older install is found by a finder: make env"


def test_no_file_names_a_persons_folder_holds_outputs_or_weighs_too_much():
    assert len(list(files.files(ROOT))) > 20
    assert files.file_faults(ROOT) == []


def test_a_file_that_may_not_be_committed_is_named(tmp_path):
    cell = {"cell_type": "code", "outputs": [{"text": "1"}], "execution_count": 1}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell], "metadata": {"widgets": {}}}))
    (tmp_path / "b.md").write_text(
        "see /" + "home/ann/labkit, not https://example.org/home/ann nor ~/wo" + "rk/x"
    )
    (tmp_path / "c.bin").write_bytes(b"\xff" * 600_001)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "d.bin").write_bytes(b"\xff" * 600_001)
    assert files.file_faults(tmp_path) == [
        "a.ipynb: cell 0 has been run",
        "a.ipynb: holds widget states",
        "b.md names /" + "home/",
        "c.bin has 600001 bytes of 600000",
    ]


def test_no_deprecated_name_of_torch_is_used():
    code = [path for path in files.files(ROOT) if path.suffix == ".py"]
    assert len(code) > 20
    faults = [files.deprecated_faults(path.name, path.read_text(encoding="utf-8")) for path in code]
    assert [fault for some in faults for fault in some] == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch.cuda.amp as amp",
        "from torch.cuda.amp import autocast",
        "%time\ntorch.cuda.amp.f()",
        "import torch as t\nt.cuda.amp.GradScaler()",
        "from torch.nn import DataParallel",
    ],
)
def test_a_deprecated_name_is_found_however_it_is_written(code):
    assert len(files.deprecated_faults("x", code)) == 1
    assert (
        files.deprecated_faults(
            "x", '# torch.cuda.amp\n"torch.cuda.amp"\nimport torch.cuda.amplitude'
        )
        == []
    )


def test_ruff_finds_nothing_and_would():
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--quiet"]
    done = subprocess.run([*ruff, "."], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout[-3000:]
    found = subprocess.run(
        [*ruff, "-"], input="import os\n", cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "F401" in found.stdout


def test_every_part_of_data_says_where_it_comes_from():
    told = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    parts = [
        path.name + "/" * path.is_dir()
        for path in (ROOT / "data").iterdir()
        if path.name != "README.md"
    ]
    assert "story.txt" in parts
    assert [part for part in parts if f"| `{part}` |" not in told] == []


FAKE_PYTHON = """#!/bin/sh
echo "$*" >> calls
case "$*" in
    *"-m venv"*) for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python";;
    *"-m pip"*) test ! -e no-network;;
esac
"""


def test_make_env_repairs_what_an_interrupted_call_left_and_follows_the_pins(tmp_path):
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)

    def env() -> tuple[int, list[str]]:
        (tmp_path / "calls").write_text("")
        done = subprocess.run(
            ["make", "env", "PYTHON=./python"], cwd=tmp_path, capture_output=True, timeout=30
        )
        return done.returncode, re.findall(
            r"-m (venv --clear|venv|pip|labkit ops)", (tmp_path / "calls").read_text()
        )

    (tmp_path / "no-network").touch()
    assert env() == (2, ["venv --clear", "pip"])
    (tmp_path / "no-network").unlink()
    assert env() == (0, ["venv --clear", "pip", "pip", "pip", "labkit ops"])
    assert env() == (0, ["labkit ops"])
    os.utime(tmp_path / "pyproject.toml", (2**33, 2**33))  # the pins change
    assert env() == (
        0,
        ["pip", "pip", "pip", "labkit ops"],
    )  # in the environment as it is, whatever PYTHON is now


@pytest.mark.parametrize(
    ("python", "told"),
    [
        (None, "no ./python here"),
        ("case $2 in *version_info*) ;; *) exit 1;; esac", "./python lacks venv"),
        ("case $2 in *version_info*) echo too old >&2; exit 1;; esac", "too old"),
    ],
)
def test_make_env_says_in_a_line_what_to_install_before_it_begins(tmp_path, python, told):
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    if python:
        (tmp_path / "python").write_text(f"#!/bin/sh\n{python}\n")
        (tmp_path / "python").chmod(0o755)
    done = subprocess.run(
        ["make", "lab", "PYTHON=./python"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    first = done.stderr.splitlines()[0]
    assert (done.returncode, first.startswith(told)) == (2, True), done.stderr
    assert ("apt-get install g++ python3-dev python3-venv" in first) == (told != "too old")
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("mark", "ci", "outcome"),
    [
        ("browser", "", pytest.skip.Exception),
        ("gpu", "true", pytest.skip.Exception),
        ("browser", "true", pytest.fail.Exception),
        ("notebooks", "true", None),
    ],
)
def test_a_browser_test_without_a_browser_skips_with_a_reason_and_fails_in_ci(
    monkeypatch, pytestconfig, mark, ci, outcome
):
    # by its path: what ``import conftest`` finds may be another folder's
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(conftest, "chromium", lambda: None)
    monkeypatch.setattr(conftest.resources, "num_gpus", lambda: 0)
    item = types.SimpleNamespace(get_closest_marker=lambda name: name == mark)
    expected = pytest.raises(outcome, match="needs") if outcome else contextlib.nullcontext()
    with expected:
        conftest.pytest_runtest_setup(item)
