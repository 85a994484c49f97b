"""Save a training run, load it again: on the same ranks, on others, or in another engine.

    path = checkpoint.save(folder, step, model, optimizer, extra={"rate": rate.state_dict()})
    path = checkpoint.save_async(folder, step, model, optimizer)  # training goes on; path.result()
    found = checkpoint.load(folder, model, optimizer)             # found["step"], found["extra"]

A checkpoint is a ``sealed_folder``: there whole or not at all, with a digest of every file.
``torch.distributed.checkpoint`` decides who writes what of the ``training_state``. Tensors lie in
safetensors files, the rest in a file for ``torch.load(weights_only=True)``, the index in JSON:
nothing here unpickles an object. (torch's default writer, FileSystemWriter, would: its
``.metadata`` is a pickle, and so is everything in it that is no tensor.) Random generators go on
where the number of ranks is the same; with another they are left alone, for nothing would be right.
Draw from (seed, step) what must not change.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save as packed
from torch import nn
from torch.optim import Optimizer

from labkit.recovery import sealed_folder, training_state
from labkit.recovery.incremental import IncrementalWriter
from labkit.recovery.sealed_folder import about, checkpoints, fault

__all__ = [
    "KINDS",
    "about",
    "checkpoints",
    "fault",
    "load",
    "parts_s",
    "save",
    "save_async",
    "spent_s",
    "thread_group",
    "whole",
]

KINDS = ("plain", "sharded", "incremental")
REST = "rest.pt"
_background: dict[str, Any] = {}
"""of saves under way: their process "group", the "last" one, and when its "parts" were"""


def save(
    folder: str | Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    kind: str = "sharded",
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Writes a checkpoint below ``folder`` and returns its path. Called by every rank.

    ``kind``: "plain", rank 0 collects all and writes one file; "sharded", each rank writes its
    part; "incremental", a file per tensor, a hard link where a kept checkpoint has the same bytes.
    ``extra``: numbers, strings, tensors, lists and dicts of them, each rank its own; ValueError for
    what could only be unpickled. The newest ``keep`` stay.
    """
    _settle(KINDS, kind, keep)
    tensors, settings = training_state.collect(model, optimizer, whole=kind == "plain")
    own = training_state.own(extra)
    draft = sealed_folder.begin(Path(folder), step, None)
    if kind != "plain":
        dcp.save(tensors, storage_writer=_writer(kind, draft))
    elif dist.get_rank() == 0:
        data = packed({name: tensor.contiguous() for name, tensor in tensors.items()})
        sealed_folder.write(draft / "whole.safetensors", data)
    facts = {"kind": kind, "shapes": training_state.shapes(tensors)}
    return _close(draft, facts, settings, own, keep, None)


def save_async(
    folder: str | Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    kind: str = "sharded",
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> "Future[Path]":
    """``save`` in the background: returns when the states have been copied, and training may go on.

    The copy takes the memory of what this rank holds (with DDP: of the whole model). All else, the
    folder included, is a thread's, and so are its errors: ``result()`` raises them. The next save
    waits for this one. A rank that ends before ``result()`` came leaves no checkpoint. (The copy is
    made here: ``dcp.async_save`` makes a deep copy of each DTensor first, its mesh included, which
    takes many times as long.)
    """
    parts: dict[str, tuple[float, float]] = {}
    with _spending(parts, "previous"):
        _settle(KINDS[1:], kind, keep)
    _background["parts"] = parts
    with _spending(parts, "group"):
        group = thread_group()
    with _spending(parts, "list"):
        tensors, settings = training_state.collect(model, optimizer)
        own = training_state.own(extra)
        facts = {"kind": kind, "shapes": training_state.shapes(tensors)}
    with _spending(parts, "copy"):
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}

    def finish() -> Path:
        with _spending(parts, "write"):
            draft = sealed_folder.begin(Path(folder), step, group)
            dcp.save(copies, storage_writer=_writer(kind, draft), process_group=group)
        with _spending(parts, "seal"):
            return _close(draft, facts, settings, own, keep, group)

    pool = ThreadPoolExecutor(1, "labkit-save")
    _background["last"] = pool.submit(finish)
    pool.shutdown(wait=False)
    return _background["last"]


def thread_group() -> Any:
    """The process group of a thread that saves, made once. Called by every rank: two threads must
    not send through one group."""
    if "group" not in _background:
        _background["group"] = dist.new_group(backend="gloo")
    return _background["group"]


def spent_s() -> dict[str, float]:
    """Where the time of this rank's latest ``save_async`` went, in seconds by the clock. Training
    stood still for "previous" (the save before), "group" (the first save makes one for the thread's
    messages), "list" (the tensors by their names) and "copy"; the thread took "write" and "seal"
    (digests, the disk, the rename), which are there once the save is done."""
    return {part: ended_s - began_s for part, (began_s, ended_s) in parts_s().items()}


def parts_s() -> dict[str, tuple[float, float]]:
    """The parts of this rank's latest ``save_async``, when each began and ended by
    ``time.perf_counter``: those of ``spent_s``. The thread's are added when they are done."""
    return _background.setdefault("parts", {})


def load(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Brings model and optimizer to where they were. Called by every rank; ``path``: a checkpoint,
    or a folder of them.

    Of a folder, the newest one whose bytes are as written is taken. Returns step, extra (this
    rank's; rank 0's when the number of ranks is another), path, ranks (that saved it), rng (whether
    the random generators go on), skipped (why newer ones were not taken). Raises ValueError for no
    checkpoint, a damaged one, or one of another model.
    """
    _settle()
    choice, skipped = sealed_folder.choose(Path(path))
    index = about(choice)
    saved = index["shapes"]
    rest = torch.load(choice / REST, weights_only=True)
    live = training_state.places(model, optimizer)
    training_state.compare(saved, training_state.shapes(live), optimizer is not None, choice)
    tensors = {name: live[name] for name in saved if name in live}
    dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(choice)))
    training_state.put(tensors, rest, model, optimizer)
    is_same_size = index["ranks"] == dist.get_world_size()
    mine = rest["ranks"][dist.get_rank() if is_same_size else 0]
    if is_same_size:
        training_state.set_generators(mine)
    return {
        "step": index["step"],
        "extra": mine["extra"],
        "path": choice,
        "ranks": index["ranks"],
        "rng": is_same_size,
        "skipped": skipped,
    }


def whole(model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, torch.Tensor]:
    """Copies of all tensors of model and optimizer, gathered on rank 0 by their names in the bare
    model; other ranks get an empty dict. Called by every rank."""
    found = training_state.collect(model, optimizer, whole=True)[0]
    return {name: tensor.clone() for name, tensor in found.items()}  # Adam's step was the live one


@contextlib.contextmanager
def _spending(parts: dict[str, tuple[float, float]], part: str) -> Iterator[None]:
    """Notes when the block began and ended, for ``parts_s``."""
    began_s = time.perf_counter()
    yield
    parts[part] = (began_s, time.perf_counter())


def _settle(kinds: tuple[str, ...] = KINDS, kind: str = "sharded", keep: int = 1) -> None:
    """Raises ValueError for what is no save. An asynchronous save ends before the next begins."""
    if not dist.is_initialized():
        raise ValueError(
            "ranks save and load, and here is no process group: call it in a launched function"
        )
    if kind not in kinds or keep < 1:
        raise ValueError(
            f"a checkpoint is {' or '.join(kinds)}, and 1 or more are kept; got {kind!r} and "
            f"keep={keep}"
        )
    if "last" in _background:
        _background["last"].result()


def _writer(kind: str, draft: Path) -> dcp.HuggingFaceStorageWriter:
    writer = IncrementalWriter if kind == "incremental" else dcp.HuggingFaceStorageWriter
    return writer(str(draft), save_distributed=True)


def _close(
    draft: Path,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    own: Mapping[str, Any],
    keep: int,
    group: Any,
) -> Path:
    """When this rank's tensors are written: what is no tensor, of all ranks in one file; then the
    seal."""
    everybody: list = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, own, group)
    if dist.get_rank() == 0:
        torch.save({**settings, "ranks": everybody}, draft / REST)
        sealed_folder.sync(draft / REST)
    return sealed_folder.seal(draft, facts, keep, group)
