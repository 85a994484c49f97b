"""DeepSpeed's three CPU ops, built ahead of time: where they stand, which are missing, and building
them.

Without this the first rank that needs one compiles it (minutes for all three), while every other
rank waits. They are built without debug information, which takes almost half of the compiler's
time.
"""

import contextlib
import fcntl
import functools
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from pathlib import Path

from labkit.words import say

EXTENSIONS = {"shm_comm": "deepspeed_shm_comm", "fused_adam": "fused_adam", "cpu_adam": "cpu_adam"}
"""The name we print -> the torch extension, which is also the name of its folder."""
TOGETHER = 3
"""builds at a time: two of the five need one core only, and a compiler takes 0.6 GB"""

_BUILDERS = {
    "shm_comm": "comm:ShareMemCommBuilder",
    "fused_adam": "fused_adam:FusedAdamBuilder",
    "cpu_adam": "cpu_adam:CPUAdamBuilder",
}
_BUILD = """
import importlib, sys
module, name = sys.argv[1].split(":")
builder = getattr(importlib.import_module("deepspeed.ops.op_builder.cpu." + module), name)
builder().load(verbose=True)
"""
_LEAN_COMPILER = """#!/bin/sh
for word do
    shift
    [ "$word" = -g ] || set -- "$@" "$word"
done
exec {compiler} "$@"
"""


def folder() -> Path:
    """Where the ops stand: TORCH_EXTENSIONS_DIR if set, else in this environment, one folder per
    set of versions."""
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return Path(chosen)
    own = sys.prefix != sys.base_prefix or Path(sys.prefix, "conda-meta").is_dir()
    versions = f"py{sys.version_info.major}{sys.version_info.minor}"
    for package in ("torch", "deepspeed"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions += f"-{package}{importlib.metadata.version(package)}"
    home = Path(sys.prefix, "torch_extensions") if own else Path.home() / ".cache" / "labkit"
    return home / versions


def environment() -> dict[str, str]:
    """What a rank without a GPU needs in its environment to find the ops: folder, accelerator, and
    ninja on PATH."""
    path = os.environ.get("PATH", os.defpath)
    # of python and ninja, also where the environment is not activated
    here = str(Path(sys.executable).parent)
    if here not in path.split(os.pathsep):
        path = os.pathsep.join((here, path))
    return {"TORCH_EXTENSIONS_DIR": str(folder()), "DS_ACCELERATOR": "cpu", "PATH": path}


def missing() -> list[str]:
    """The ops that are not built, or whose build was interrupted (torch's lock is then still
    there)."""
    places = {name: folder() / extension for name, extension in EXTENSIONS.items()}
    return [
        name
        for name, place in places.items()
        if not (place / f"{place.name}.so").is_file() or (place / "lock").exists()
    ]


def free_shared_memory(port: str) -> None:
    """Removes the buffers (69 MB a rank) that ranks which the deepspeed command started leave in
    /dev/shm, named by the port: nobody unlinks them when they end (0.19.8)."""
    for file in Path("/dev/shm").glob(f"deepspeed_*_{int(port)}_*"):
        file.unlink(missing_ok=True)


def compiler() -> str | None:
    """The C++ compiler torch calls for an extension ($CXX, else c++), if it is there and so is
    Python.h."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which((os.environ.get("CXX") or "c++").split()[0]) if header.is_file() else None


def ninja() -> str | None:
    """The ninja that builds an extension, if it is there."""
    return shutil.which("ninja", path=environment()["PATH"])


def obstacle() -> str | None:
    """What keeps the ops from being built here, with the way out; None if nothing does."""
    if sys.platform != "linux":
        return say(
            "they are built ahead only on Linux. Elsewhere DeepSpeed builds what it can at first "
            "use"
        )
    if importlib.util.find_spec("deepspeed") is None or ninja() is None:
        return say(
            "DeepSpeed or ninja is missing. Install them: make env (conda: pip install -e .[test])"
        )
    if compiler() is None:
        return say(
            "no C++ compiler, or no Python.h. Install them: apt-get install g++ python3-dev "
            "(conda: cxx-compiler)"
        )
    return None


def hopeless() -> str | None:
    """Why a rank without a GPU could not build at first use what is missing, with the way out; None
    if nothing is missing, or it could, or nobody knows (elsewhere than on Linux)."""
    return obstacle() if sys.platform == "linux" and missing() else None


def jobs() -> dict[str, Callable[[], str]]:
    """What ``build`` is to do for what is missing: op -> a function that builds it, and returns ""
    or the last words of a build that failed. Cpu_adam takes longest, so it is first."""
    return {name: functools.partial(_build_one, name) for name in reversed(missing())}


def build(jobs: Mapping[str, Callable[[], str]], tell: Callable[[str], None]) -> bool:
    """Does jobs, three at a time, because some of them use one core only; ``tell`` gets a line at
    the start and one for each that ends. True if all succeed.

    Our lock keeps two of us apart; the system frees it when its holder dies.
    """
    succeed = True
    with _alone(tell), futures.ThreadPoolExecutor(TOGETHER) as pool:
        tell(say("compiling {names}, three at a time", names=", ".join(jobs)) + "\n")
        running = {pool.submit(_timed, job): name for name, job in jobs.items()}
        try:
            for number, done in enumerate(futures.as_completed(running), start=1):
                failure, took_s = done.result()
                ended = f"{say('failed')}\n{failure}" if failure else f"{took_s:.0f} s"
                tell(f"[{number}/{len(jobs)}] {running[done]}: {ended}\n")
                succeed = succeed and not failure
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return succeed


def _timed(job: Callable[[], str]) -> tuple[str, float]:
    """What a job says, and how many seconds it took."""
    began = time.monotonic()
    return job(), time.monotonic() - began


def _build_one(name: str) -> str:
    """Empty if the op now stands, else the last words of its build.

    An interrupted build leaves torch's lock, at which every later build would wait for ever. So an
    unfinished op is removed first.
    """
    if name not in missing():
        return ""  # another process has built it, while we waited for it
    shutil.rmtree(folder() / EXTENSIONS[name], ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="labkit-ops-") as first:
        _write_lean_compiler(Path(first))
        path = os.pathsep.join((first, environment()["PATH"]))
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, _BUILDERS[name]],
            env=os.environ | environment() | {"PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode == 0 and name not in missing():
        return ""
    last_words = "\n".join(done.stdout.splitlines()[-20:])
    return last_words or say("its build ended with code {code}", code=done.returncode)


def _write_lean_compiler(folder: Path) -> None:
    """Writes a program of the compiler's own name that calls it without -g.

    DeepSpeed asks for -g. A rank that loads an op compares the command with the one of its build,
    and builds anew where they differ: so the command stays as it is, and what it calls does not.
    A compiler that $CXX gives by its path is called by that path, so it keeps -g.
    """
    name = (os.environ.get("CXX") or "c++").split()[0]
    found = compiler()
    if found and os.sep not in name:
        program = folder / name
        program.write_text(_LEAN_COMPILER.format(compiler=shlex.quote(found)))
        program.chmod(0o755)


@contextlib.contextmanager
def _alone(tell: Callable[[str], None]) -> Iterator[None]:
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "building").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(say("another build is under way: waiting for it") + "\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
