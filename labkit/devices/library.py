"""Our two C++ libraries for torch: built once per version of torch, beside DeepSpeed's ops, and
loaded into a process that needs one.

``pretend`` is the pretend device, ``through_host`` what gloo needs to carry a device's tensors.
Without a compiler neither can be had, and the rungs that need one are refused with the reason.
"""

import functools
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

from labkit.machine import ops, resources
from labkit.units import check_word
from labkit.words import say

NAMES = ("through_host", "pretend")
SOURCES = Path(__file__).parent / "native"
BUILD_S = 600
"""How long a build may take, in seconds; one takes about 20."""


def path(name: str) -> Path:
    """Where a library stands, or will: its name tells the version of its sources. Raises ValueError
    for a name that is not one of NAMES."""
    check_word(name, NAMES, "a library of ours")
    return ops.folder() / "labkit" / f"{name}-{_digest(name)}.so"


def missing() -> list[str]:
    """The libraries that are not built."""
    return [name for name in NAMES if not path(name).is_file()]


def obstacle() -> str | None:
    """What keeps them from being built here, with the way out; None if nothing does."""
    if resources.version("torch") is None:
        return say("torch is missing. Install it: make env")
    if ops.compiler() is None:
        return say(
            "no C++ compiler, or no Python.h. Install them: apt-get install g++ python3-dev "
            "(conda: cxx-compiler)"
        )
    return None


def build(name: str) -> str:
    """Builds a library; "" if it then stands, else the compiler's last words. Two that build at
    once do the same work twice, and the last one's file stays: it is put there whole."""
    target = path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        _command(name, part),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_S,
    )
    if done.returncode:
        part.unlink(missing_ok=True)
        return "\n".join(done.stdout.splitlines()[-20:])
    part.replace(target)
    return ""


@functools.cache
def load(name: str) -> types.ModuleType:
    """The library as a Python module of this process. Raises ValueError where it is not built."""
    import torch  # its symbols must be there first  # noqa: F401

    if not path(name).is_file():
        raise ValueError(f"{name} is not built here. Build it: python -m labkit ops")
    spec = importlib.util.spec_from_file_location(f"_labkit_{name}", path(name))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _command(name: str, target: Path) -> list[str]:
    """The compiler's call: every .cpp of the library's folder, against this torch and Python."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    include = torch / "include"
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", "-w"]
    places = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]
    libraries = ["-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"]
    return [
        *shlex.split(os.environ.get("CXX") or "c++"),
        *flags,
        f"-DTORCH_EXTENSION_NAME=_labkit_{name}",
        *(f"-I{place}" for place in places),
        *map(str, sorted((SOURCES / name).glob("*.cpp"))),
        "-o",
        str(target),
        f"-L{torch / 'lib'}",
        *libraries,
    ]


def _digest(name: str) -> str:
    """Of a library's sources, in eight characters."""
    import hashlib

    files = sorted((SOURCES / name).iterdir())
    content = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(sys.version.encode() + content).hexdigest()[:8]
