"""Starts a function on several machines: packs it into a folder that all of them see, and has
torchrun started on each."""

import json
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from labkit.devices.rung import BACKENDS, Rung
from labkit.launching import settings
from labkit.launching.fork import pickling
from labkit.launching.fork.request import Request, surroundings
from labkit.launching.nodes import places, practice
from labkit.launching.nodes.launchers import HostsLauncher, SlurmLauncher
from labkit.launching.nodes.nodes_job import NodesJob
from labkit.launching.nodes.places import Hosts, Slurm
from labkit.launching.settings import Settings
from labkit.launching.verdicts.verdict import Refused
from labkit.units import check_whole

DEVICES = ("cpu", "cuda")


def start(
    call: bytes,
    on: Slurm | Hosts,
    ranks: int,
    told: Settings,
    *,
    devices: object = None,
    backend: str | None = None,
) -> NodesJob:
    """Starts a packed call on ``ranks`` ranks of several machines. Raises ValueError for what has
    no meaning there."""
    _check(on, ranks, devices, backend)
    request = _request(on, ranks, told, devices)
    _pack(request, call)
    kind = SlurmLauncher if isinstance(on, Slurm) else HostsLauncher
    launcher = kind(on, request.folder, ranks)
    return NodesJob(request, launcher, timeout_s=told.timeout_s, hang_s=told.hang_s)


def script(on: Slurm, fn: Callable, args: tuple, ranks: int | None) -> str:
    """The text for sbatch; the run's folder is ready and stays."""
    cluster = on.practice
    per_node = cluster.ranks_per_node if cluster else max(1, on.gpus_per_node)
    ranks = on.nodes * per_node if ranks is None else ranks
    _check(on, ranks, None, None)
    call = pickling.pack_call(fn, args, {})
    request = _request(on, ranks, settings.current(), None)
    _pack(request, call)
    return on.batch(request.folder, ranks)


def _check(on: Slurm | Hosts, ranks: int, devices: object, backend: str | None) -> None:
    if not isinstance(on, Slurm | Hosts):
        raise Refused(f"on is a lab.Slurm or a lab.Hosts; got a {type(on).__name__}")
    check_whole(1, 10**6, ranks=ranks)
    if ranks % on.num_nodes:
        raise Refused(
            f"every node has as many ranks; {ranks} ranks are not shared by {on.num_nodes} nodes: "
            "take a multiple"
        )
    if devices is not None and devices not in DEVICES:
        raise Refused(
            f"ranks of other machines compute on {' or '.join(DEVICES)}; got {devices!r}. Pretend "
            "and shared devices are this machine's: leave devices out, or on"
        )
    if devices == "cuda" and not on.gpus_per_node:
        raise Refused("on=...(gpus_per_node=...) says how many GPUs a node gives; it says 0")
    if backend is not None:
        raise Refused(
            f"on other machines GPUs talk by nccl and CPUs by gloo; got backend={backend!r}: leave "
            "it out"
        )


def _request(on: Slurm | Hosts, ranks: int, told: Settings, devices: object) -> Request:
    name = "cuda" if on.gpus_per_node and devices != "cpu" else "cpu"
    return surroundings(
        num_ranks=ranks,
        rung=Rung(name=name, backend=BACKENDS[name]),
        seed=int(told.seed),
        folder=_new_folder(on),
        num_threads=places.threads(on.practice, ranks),
        environ={},
    )


def _new_folder(on: Slurm | Hosts) -> Path:
    """A folder of this run's own, that nobody else enters."""
    if on.folder is None and on.practice:
        return Path(tempfile.mkdtemp(prefix="labkit-run-"))
    home = on.folder or practice.record_file().parent / "runs"
    folder = home.absolute() / f"run-{secrets.token_hex(4)}"
    folder.mkdir(parents=True, mode=0o700)
    return folder


def _pack(request: Request, call: bytes) -> None:
    request.call_file.write_bytes(call)
    text = json.dumps(request.to_json())
    (request.folder / "request.json").write_text(text, encoding="utf-8")
