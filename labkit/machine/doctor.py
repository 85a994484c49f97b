"""What this machine has and lacks for the course, and what to do about what is missing.

Nothing here imports torch into the calling process. Versions come from package metadata; what only
an import can prove is tried in a process of its own, so that a broken installation is a row of the
report, not a broken notebook.
"""

import glob
import html
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.machine import ops
from labkit.machine.resources import (
    available_bytes,
    cores,
    loopback,
    num_gpus,
    total_bytes,
    version,
)
from labkit.units import columns_of, format_bytes, padded
from labkit.words import say, to_say

_REINSTALL = to_say("run make env (conda: pip install -e .[test])")
_PROBED = ("torch", "accelerate", "deepspeed")
_PROBE = """
import importlib, json, sys
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
        answer = {"version": module.__version__}
        if name == "torch":
            import torch.distributed as dist
            there = dist.is_available()
            answer["gloo"] = there and dist.is_gloo_available()
            answer["nccl"] = there and dist.is_nccl_available()
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print("labkit " + json.dumps([name, answer]), flush=True)
"""


_MARKS = {"ok": "✓", "missing": "✗", "optional": "–"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing a machine has or lacks."""

    name: str
    """what was looked for"""
    value: str
    """what was found"""
    ok: bool
    """whether that is enough"""
    fix: str
    """what to do if it is not"""
    required: bool = True
    """False if the course runs without it, in part or more slowly"""

    @property
    def state(self) -> str:
        """ "ok", "missing", or "optional" for a missing thing the course can do without."""
        if self.ok:
            return to_say("ok")
        return to_say("missing") if self.required else to_say("optional")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What ``doctor`` found. Prints as text; in a notebook it is a table."""

    rows: tuple[Row, ...]
    """one per thing looked for"""

    @property
    def ok(self) -> bool:
        """Whether nothing required is missing."""
        return all(row.ok or not row.required for row in self.rows)

    def __getitem__(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def __repr__(self) -> str:
        width = max(columns_of(say(row.name)) for row in self.rows)
        lines = []
        for row in self.rows:
            line = f"{padded(say(row.state), 8)}  {padded(say(row.name), width)}  {row.value}"
            lines.append(line if row.ok else f"{line}  -> {row.fix}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What is missing as a table; what is there as another, folded."""
        lacking = [row for row in self.rows if not row.ok]
        found = [row for row in self.rows if row.ok]
        counted = say("{num} of {all} are here", num=len(found), all=len(self.rows))
        folded = f"<details><summary>{counted}</summary>{_html_table(found)}</details>"
        return _html_table(lacking) + folded


def _html_table(rows: Sequence[Row]) -> str:
    """Nothing for no rows. The way out stands in the rows that need one."""
    if not rows:
        return ""
    heads = [say("state"), say("what"), say("found"), say("what to do")]
    lines = []
    for row in rows:
        cells = [f"{_MARKS[row.state]}\xa0{say(row.state)}", say(row.name), row.value, row.fix]
        lines.append(_html_row("td", cells[: 3 if row.ok else 4]))
    head = _html_row("th", heads[: 3 if rows[0].ok else 4])
    return f"<table style='color:inherit'>{head}{''.join(lines)}</table>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    shown = [f"<{tag} style='text-align:left'>{html.escape(cell)}</{tag}>" for cell in cells]
    return f"<tr>{''.join(shown)}</tr>"


def examine() -> Report:
    """Looks at this machine, and tries torch, Accelerate and DeepSpeed in a process of their own
    (about 5 s)."""
    found = _probe()
    return Report(
        rows=(
            _python_row(),
            *_package_rows(found),
            *_backend_rows(found),
            *_device_rows(),
            *_memory_rows(),
            *_compiler_rows(),
        )
    )


def _python_row() -> Row:
    return Row(
        name="python",
        value=platform.python_version(),
        ok=sys.version_info >= (3, 11),
        fix=say("install 3.11 or newer"),
    )


def _package_rows(found: dict[str, dict]) -> Iterator[Row]:
    for name in _PROBED:
        answer = found.get(name, {"error": say("importing it ended the process")})
        yield Row(
            name=name,
            value=answer.get("version") or answer["error"],
            ok="version" in answer,
            fix=say(_REINSTALL),
        )
    for name in ("jupyterlab", "ipywidgets", "jupyterlab_widgets"):
        yield Row(
            name=name,
            value=version(name) or say("not installed"),
            ok=version(name) is not None,
            fix=say(_REINSTALL),
        )


def _backend_rows(found: dict[str, dict]) -> Iterator[Row]:
    of_torch = found.get("torch", {})
    gloo = bool(of_torch.get("gloo"))
    nccl = bool(of_torch.get("nccl"))
    said = {True: say("in this torch"), False: say("not in this torch")}
    yield Row(name="gloo", value=said[gloo], ok=gloo, fix=say(_REINSTALL))
    yield Row(
        name="nccl",
        value=said[nccl],
        ok=nccl,
        required=False,
        fix=say("only needed with GPUs: torch's CUDA build has it"),
    )
    yield Row(
        name=to_say("loopback"),
        value=loopback() or say("none"),
        ok=loopback() is not None,
        fix=say("bring it up: ip link set lo up"),
    )


def _device_rows() -> Iterator[Row]:
    gpus = num_gpus()
    present = len(glob.glob("/dev/nvidia[0-9]*"))
    yield Row(
        name=to_say("GPUs"),
        value=str(gpus or say("none: the CPU computes")),
        ok=gpus == present,
        required=False,
        fix=say(
            "{present} are present: install torch's CUDA build, and look at CUDA_VISIBLE_DEVICES",
            present=present,
        ),
    )
    import psutil

    physical = psutil.cpu_count(logical=False) or say("unknown")
    yield Row(
        name=to_say("cores"),
        value=say("{allowed} allowed ({physical} physical)", allowed=cores(), physical=physical),
        ok=cores() >= 2,
        required=False,
        fix=say("ranks take turns on one core: unpaced timelines will show that"),
    )


def _memory_rows() -> Iterator[Row]:
    free = available_bytes()
    yield Row(
        name=to_say("memory"),
        value=say(
            "{free} free of {total}", free=format_bytes(free), total=format_bytes(total_bytes())
        ),
        ok=free >= 4e9,
        fix=say("close other programs: four ranks with DeepSpeed need about 4 GB"),
    )
    if sys.platform == "linux":
        shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
        yield Row(
            name="/dev/shm",
            value=say("{free} free", free=format_bytes(shared)),
            ok=shared >= 256e6,
            required=False,
            fix=say("large results pass through it. In a container: docker run --shm-size=1g"),
        )


def _compiler_rows() -> Iterator[Row]:
    compiler = ops.compiler()
    lacking = ops.missing()
    yield Row(
        name=to_say("compiler"),
        value=Path(compiler).name if compiler else say("no C++ compiler, or no Python.h"),
        ok=compiler is not None,
        required=False,
        fix=say("apt-get install g++ python3-dev (conda: cxx-compiler)"),
    )
    yield Row(
        name="ninja",
        value=version("ninja") or say("found") if ops.ninja() else say("none"),
        ok=ops.ninja() is not None,
        required=False,
        fix=say(_REINSTALL),
    )
    yield Row(
        name=to_say("DeepSpeed's ops"),
        value=say(
            "{built} of {ops} built",
            built=len(ops.EXTENSIONS) - len(lacking),
            ops=len(ops.EXTENSIONS),
        ),
        ok=not lacking,
        required=False,
        fix=ops.obstacle()
        or say("python -m labkit ops; else the first DeepSpeed run does it (100 s)"),
    )


def _probe() -> dict[str, dict]:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, *_PROBED],
            capture_output=True,
            text=True,
            timeout=120,
            env=os.environ | ops.environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {
            name: {"error": say("importing it failed: {error}", error=error)} for name in _PROBED
        }
    lines = (
        line.removeprefix("labkit ")
        for line in done.stdout.splitlines()
        if line.startswith("labkit ")
    )
    return dict(json.loads(line) for line in lines)
