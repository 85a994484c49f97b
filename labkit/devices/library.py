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
from collections.abc import Callable
from pathlib import Path

from labkit.machine import ops, resources
from labkit.machine.doctor import Row
from labkit.units import check_word
from labkit.words import say, to_say

SOURCES = Path(__file__).parent / "native"
NAMES = tuple(sorted({file.parent.name for file in SOURCES.glob("*/*.cpp")}))
OLDEST_TORCH = {"pretend": (2, 13)}
"""The versions that a library was written for: with 2.11 a pretend device breaks down, and on it
2.12's pipelines ask CUDA for the state of its random numbers."""
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


def is_ready(name: str) -> bool:
    """Whether a process can load a library here: it is built, and torch is new enough."""
    return why_not(name) is None


def why_not(name: str) -> str | None:
    """Why a process can't load a library here, with the way out; None if it can."""
    if old := _too_old(name):
        return old
    if path(name).is_file():
        return None
    way_out = obstacle() or "build it (20 s, once): python -m labkit ops"
    return f"our library {name} is not built here: {way_out}"


def _too_old(name: str) -> str | None:
    """That torch is too old for a library, with the version needed; None if it is not, or none."""
    oldest = OLDEST_TORCH.get(name, (2, 0))
    here = resources.version("torch")
    if here is None or tuple(map(int, here.split(".")[:2])) >= oldest:
        return None
    needed = ".".join(map(str, oldest))
    return say(
        "{name} needs torch {needed} or newer; this is {here}", name=name, needed=needed, here=here
    )


def build(name: str) -> str:
    """Builds a library; "" if it then stands, else the compiler's last words. Two that build at
    once do the same work twice, and the last one's file stays: it is put there whole."""
    target = path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        _command(name, part),
        input="".join(f'#include "{file}"\n' for file in sorted((SOURCES / name).glob("*.cpp"))),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_S,
    )
    if done.returncode == 0:
        part.replace(target)
        return ""
    part.unlink(missing_ok=True)
    last_words = "\n".join(done.stdout.splitlines()[-20:])
    return last_words or say("its build ended with code {code}", code=done.returncode)


def jobs() -> dict[str, Callable[[], str]]:
    """For ``machine.ops.build``: each library that is missing -> a function that builds it."""
    return {name: functools.partial(build, name) for name in missing()}


def row() -> Row:
    """What the doctor says of them."""
    num_built = len(NAMES) - len(missing())
    old = next(filter(None, map(_too_old, NAMES)), None)
    built = say("{built} of {libraries} libraries built", built=num_built, libraries=len(NAMES))
    return Row(
        name=to_say("pretend devices"),
        value=old or built,
        ok=num_built == len(NAMES) and old is None,
        required=False,
        fix=obstacle() or ("make env" if old else say("python -m labkit ops")),
    )


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
    """The compiler's call, against this torch and Python. It reads one text that includes every
    file of the library: torch's headers take most of its time, and so are read once."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    include = torch / "include"
    places = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]
    return [
        *shlex.split(os.environ.get("CXX") or "c++"),
        *("-std=c++20", "-O2", "-shared", "-fPIC", "-w", "-x", "c++", "-"),
        f"-DTORCH_EXTENSION_NAME=_labkit_{name}",
        *(f"-I{place}" for place in places),
        *("-o", str(target), f"-L{torch / 'lib'}"),
        *("-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10"),
    ]


def _digest(name: str) -> str:
    """Of a library's sources, in eight characters. Every launch asks: files whose time and size are
    the same are not read again."""
    with os.scandir(SOURCES / name) as found:
        seen = [(file.path, file.stat()) for file in found]
    return _digest_of(tuple(sorted((path, at.st_mtime_ns, at.st_size) for path, at in seen)))


@functools.cache
def _digest_of(sources: tuple[tuple[str, int, int], ...]) -> str:
    """The same, of files as they stand there with a time and a size."""
    import hashlib

    content = b"".join(Path(path).read_bytes() for path, _, _ in sources)
    return hashlib.sha256(sys.version.encode() + content).hexdigest()[:8]
