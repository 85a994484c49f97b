"""What this machine has: cores, memory, GPUs, a loopback; cgroups and affinity are obeyed.

Nothing here imports torch into the calling process.
"""

import functools
import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from labkit.units import check_whole

_CGROUP = Path("/sys/fs/cgroup")
_PROC_CGROUP = Path("/proc/self/cgroup")


def summary() -> dict[str, str | int]:
    """What the record of a run keeps of the machine: not its name, and no path on it."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_bytes": total_bytes(),
        "gpus": num_gpus(),
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch") or "none",
    }


def cores() -> int:
    """Cores this process may use: its CPU affinity, or its cgroup's quota where that is less."""
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    for folder in _cgroup_folders("cpu"):
        version_1 = [read_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = read_text(folder / "cpu.max").split() or version_1
        if quota.isdigit():
            allowed = min(allowed, max(1, int(quota) // int(period)))
    return allowed


def total_bytes() -> int:
    """Memory this process may use in all: the machine's, or its cgroup's limit where that is
    less."""
    import psutil

    return min([psutil.virtual_memory().total, *(limit for limit, _ in _cgroup_memory())])


def available_bytes() -> int:
    """Memory this process can still get: the machine's, or what its cgroup has left where that is
    less."""
    import psutil

    return min([psutil.virtual_memory().available, *(left for _, left in _cgroup_memory())])


def num_gpus() -> int:
    """NVIDIA GPUs torch can use: device files, less what CUDA_VISIBLE_DEVICES hides; 0 with a CPU
    build of torch."""
    if not _torch_has_cuda():
        return 0
    found = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    named = [device for device in visible.split(",") if device.strip() not in ("", "-1")]
    return min(found, len(named))


def read_text(path: Path) -> str:
    """What a small file of the system holds, without the spaces around it; nothing where it can't
    be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def threads(num_ranks: int) -> int:
    """How many threads each of ``num_ranks`` ranks may use, so that together they do not fight for
    the cores."""
    check_whole(num_ranks=num_ranks)
    return max(1, cores() // num_ranks)


def is_stopped(pid: int) -> bool:
    """Whether the system says that a process is stopped: by SIGSTOP, Ctrl-Z or a debugger."""
    import psutil

    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.NoSuchProcess:
        return False


def num_oom_kills() -> int:
    """How often the system has killed a process because memory ran out, since it started; 0 where
    it does not say."""
    found = re.search(r"^oom_kill (\d+)$", read_text(Path("/proc/vmstat")), re.M)
    return int(found[1]) if found else 0


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def loopback() -> str | None:
    """The name of the loopback interface, to which gloo is held: lo on Linux, lo0 on macOS."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""How torch's threads wait for one another in ranks: asleep. Ranks share cores, and threads that
spin take them from the other ranks."""


def gloo_environment() -> dict[str, str]:
    """What keeps gloo on the loopback; nothing where there is none."""
    name = loopback()
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


@functools.cache
def version(package: str) -> str | None:
    """Of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_has_cuda() -> bool:
    spec = importlib.util.find_spec("torch")  # finds it without importing it
    text = read_text(Path(spec.origin).with_name("version.py")) if spec and spec.origin else ""
    return re.search(r"^cuda\b.*= *'", text, re.M) is not None


@functools.cache
def _cpu_model() -> str:
    found = re.search(r"^model name\s*: (.*)$", read_text(Path("/proc/cpuinfo")), re.M)
    return found[1] if found else platform.processor() or platform.machine()


def _cgroup_memory() -> Iterator[tuple[int, int]]:
    """(limit, what is left) in bytes of each cgroup around this process; cached pages can be given
    back: left."""
    for folder in _cgroup_folders("memory"):
        limit = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes")
        used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes")
        cached = re.findall(
            r"^(?:total_)?inactive_file (\d+)$", read_text(folder / "memory.stat"), re.M
        )
        if limit.isdigit() and used.isdigit():
            yield int(limit), int(limit) - int(used) + max(map(int, cached), default=0)


def _cgroup_folders(controller: str) -> Iterator[Path]:
    """This process's cgroup and those above it: version 2 (its line names no controller) and
    version 1."""
    for line in read_text(_PROC_CGROUP).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = _CGROUP / controller if controllers else _CGROUP
            folder = top / path.lstrip("/")
            yield from (
                f for f in (folder, *folder.parents) if f.is_relative_to(top) and f.is_dir()
            )
